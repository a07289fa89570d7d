"""Products of a product, with elementwise stages between them, as in feed-forward layers: see rule.py."""

from tuner.rules.x86_chain.rule import X86Chain

__all__ = ["X86Chain"]
