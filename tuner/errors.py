"""Errors that reach a user. Each says which input was wrong, what was wrong with it, and what would do."""

from __future__ import annotations


class ShapewrightError(Exception):
    """Base of every error that Shapewright raises on purpose."""


class InvalidInput(ShapewrightError, ValueError):
    """An input that can never work.

    ``field`` is a dotted path into what was given (``workload.args.m``), ``problem`` says what is wrong with the
    value there, ``remedy`` says what would be accepted.
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        super().__init__((f"{field}: " if field else "") + problem + (f" ({remedy})" if remedy else ""))
        self.field = field
        self.problem = problem
        self.remedy = remedy

    def within(self, prefix: str) -> InvalidInput:
        """The same error seen from one level further out: ``args.m`` becomes ``workload.args.m``."""
        return InvalidInput(f"{prefix}.{self.field}" if self.field else prefix, self.problem, self.remedy)


class IllegalKernel(ShapewrightError, ValueError):
    """A micro-kernel that the hardware or the rule cannot carry; the message holds the need and the limit."""
