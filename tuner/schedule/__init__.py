"""How a program can be carried out: schedule rules, their spaces of micro-kernels, and packed layouts of constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.schedule.registry import (
        RULES,
        by_rule,
        default_kernel,
        emit,
        estimate_s,
        explain,
        is_bounded,
        is_current,
        layout_group,
        layouts_of,
        rule_of,
        rules_for,
        rules_of,
        space_of,
        tiles_of,
    )
    from tuner.schedule.rule import Extents, NoMatch, Rule, TirRule, extents_of

__all__ = [
    "RULES",
    "Extents",
    "NoMatch",
    "Rule",
    "TirRule",
    "by_rule",
    "default_kernel",
    "emit",
    "estimate_s",
    "explain",
    "extents_of",
    "is_bounded",
    "is_current",
    "layout_group",
    "layouts_of",
    "rule_of",
    "rules_for",
    "rules_of",
    "space_of",
    "tiles_of",
]

OF_RULES = ("Extents", "NoMatch", "Rule", "TirRule", "extents_of")


def __getattr__(name: str) -> Any:
    """All of these at their first use: rules need NumPy, which whoever only pulls and calls libraries need not have."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tuner.schedule import registry, rule  # noqa: PLC0415

    globals().update({each: getattr(rule if each in OF_RULES else registry, each) for each in __all__})
    return globals()[name]
