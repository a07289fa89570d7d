"""Rows multiplied by the matrix of their group, as in mixtures of experts: see rule.py."""

from tuner.schedule.rules.moe.rule import X86Grouped

__all__ = ["X86Grouped"]
