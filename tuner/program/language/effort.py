"""A bound on the work of checking what came from outside: steps are counted, so the bound holds on every machine.

What takes longer for larger input says how much it is about to do. Inside ``limited`` the steps are added up, and the
work ends once there are too many; outside nothing is counted. A step takes one to four microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tuner.errors import InvalidInput


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


class _Exhausted(Exception):
    """Not InvalidInput: what tries an alternative after that must not go on."""


@dataclass(slots=True)
class _Effort:
    left: int
    abandoned: Callable[[], bool]


_current: ContextVar[_Effort | None] = ContextVar("effort", default=None)


def spend(steps: int) -> None:
    """Count ``steps`` before they are made."""
    effort = _current.get()
    if effort is None:
        return
    effort.left -= steps
    if effort.left < 0:
        raise _Exhausted
    if effort.abandoned():
        raise Abandoned


@contextmanager
def limited(steps: int, field: str, remedy: str, abandoned: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Inside at most ``steps`` are made; InvalidInput on ``field`` is raised in place of more.

    A bound inside another one changes nothing. Raises Abandoned at the first step after ``abandoned`` says so.
    """
    if _current.get() is not None:
        yield
        return
    token = _current.set(_Effort(steps, abandoned))
    try:
        yield
    except _Exhausted:
        raise InvalidInput(field, "takes too long to check: it is too large or too intricate", remedy) from None
    finally:
        _current.reset(token)
