"""How a program can be carried out: schedule rules, their spaces of micro-kernels, and packed layouts of constants."""

from __future__ import annotations

from tuner.schedule.registry import (
    RULES,
    by_rule,
    emit,
    explain,
    is_current,
    layout_group,
    layouts_of,
    prior_latency_s,
    rule_of,
    rules_for,
    rules_of,
    safe_kernel,
    space_of,
)
from tuner.schedule.rule import Extents, Refused, ScheduleRule, extents_of

__all__ = [
    "RULES",
    "Extents",
    "Refused",
    "ScheduleRule",
    "by_rule",
    "emit",
    "explain",
    "extents_of",
    "is_current",
    "layout_group",
    "layouts_of",
    "prior_latency_s",
    "rule_of",
    "rules_for",
    "rules_of",
    "safe_kernel",
    "space_of",
]
