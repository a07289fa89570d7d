"""The rule for programs without reductions: elementwise chains, layout transforms, casts, gathers."""

from tuner.schedule.rules.elementwise.rule import Injective

__all__ = ["Injective"]
