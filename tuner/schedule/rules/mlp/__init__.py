"""Products of a product, with elementwise stages between them, as in feed-forward layers: see rule.py."""

from tuner.schedule.rules.mlp.rule import X86Chain

__all__ = ["X86Chain"]
