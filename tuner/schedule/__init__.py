"""How a program can be carried out: schedule rules, their spaces of micro-kernels, and packed layouts of constants."""

from __future__ import annotations

from tuner.schedule.registry import (
    RULES,
    by_rule,
    default_kernel,
    emit,
    estimate_s,
    explain,
    is_current,
    layout_group,
    layouts_of,
    rule_of,
    rules_for,
    rules_of,
    space_of,
)
from tuner.schedule.rule import Extents, NoMatch, Rule, extents_of

__all__ = [
    "RULES",
    "Extents",
    "NoMatch",
    "Rule",
    "by_rule",
    "default_kernel",
    "emit",
    "estimate_s",
    "explain",
    "extents_of",
    "is_current",
    "layout_group",
    "layouts_of",
    "rule_of",
    "rules_for",
    "rules_of",
    "space_of",
]
