"""The rule for softmax attention: a contraction to scores, their softmax along rows, and a second contraction."""

from tuner.schedule.rules.attention.rule import Attention

__all__ = ["Attention"]
