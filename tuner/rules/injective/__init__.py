"""The rule for programs without reductions: elementwise chains, layout transforms, casts, gathers."""

from tuner.rules.injective.rule import Injective

__all__ = ["Injective"]
