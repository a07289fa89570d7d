"""The rule that takes every program on every LLVM target."""

from tuner.schedule.rules.fallback.rule import Fallback

__all__ = ["Fallback"]
