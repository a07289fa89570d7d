"""Contiguous shares of a loop for threads, and numbers of tiles as positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx

Share = tuple[TirExpr, TirExpr]
"""The first value of a loop, and the one past the last."""


def in_shares(size: TirExpr, threads: int, write: Callable[[Share], None]) -> None:
    """``write`` the loop over 0 to ``size`` (int64): as a whole for one thread, else over the share of each thread."""
    if threads == 1:
        write((i64(0), size))
        return
    on_threads(threads, lambda thread: write(share_of(size, thread, threads)))


def on_threads(threads: int, write: Callable[[TirExpr], None]) -> None:
    """``write`` what each thread does, given its number."""
    if threads == 1:
        write(i64(0))
        return
    with I.parallel(i64(0), i64(threads)) as thread:
        write(thread)


def share_of(size: TirExpr, thread: TirExpr, threads: int) -> Share:
    """The share of 0 to ``size`` that a thread has."""
    return tirx.truncdiv(size * thread, i64(threads)), tirx.truncdiv(size * (thread + i64(1)), i64(threads))


def product_of(counts: Mapping[str, TirExpr]) -> TirExpr:
    """How many positions there are (int64)."""
    total: TirExpr = i64(1)
    for count in counts.values():
        total = total * count
    return I.Bind(total)


def position_of(number: TirExpr, counts: Mapping[str, TirExpr]) -> dict[str, TirExpr]:
    """The position of that ``number`` by axis, where the last axis of ``counts`` changes fastest."""
    position: dict[str, TirExpr] = {}
    for axis, count in reversed(list(counts.items())):
        is_outermost = len(position) == len(counts) - 1
        position[axis] = I.Bind(number if is_outermost else tirx.truncmod(number, count))
        number = tirx.truncdiv(number, count)
    return position


def number_of(position: Mapping[str, TirExpr], counts: Mapping[str, TirExpr]) -> TirExpr:
    """The number of a position: the opposite of ``position_of``."""
    number: TirExpr = i64(0)
    for axis, count in counts.items():
        number = number * count + position[axis]
    return number
