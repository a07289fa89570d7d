"""Loops over axes: contiguous shares for threads, groups and a rest, numbers of tiles as positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tuner.program.language.notation import Stage
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import align_spills

Share = tuple[TirExpr, TirExpr]
"""The first value of a loop, and the one past the last."""
MAX_SPLIT = 4


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
    with each_thread(threads) as thread:
        write(thread)


@contextmanager
def each_thread(threads: int) -> Iterator[TirExpr]:
    """A loop whose body each of several threads runs, given its number."""
    with I.parallel(i64(0), i64(threads)) as thread:
        # LLVM compiles it as a function of its own.
        align_spills()
        yield thread


def share_of(size: TirExpr, thread: TirExpr, threads: int) -> Share:
    """The share of 0 to ``size`` that a thread has."""
    return tirx.truncdiv(size * thread, i64(threads)), tirx.truncdiv(size * (thread + i64(1)), i64(threads))


def splits(stages: Iterable[Stage], threads: int) -> tuple[int, ...]:
    """Choices of the axis ``split`` of kernels, which ``in_split`` takes."""
    rank = max(1, *(len(stage.axes) for stage in stages))
    return tuple(range(min(rank, MAX_SPLIT))) if threads > 1 else (0,)


def in_split(
    axes: Sequence[str], extents: Mapping[str, TirExpr], split: int, threads: int,
    write: Callable[[Mapping[str, Share]], None],
) -> None:  # fmt: skip
    """``write`` the loops over the axes of an output, given the span of each: the axis of number ``split``, or the last
    one, is divided among the threads."""
    if not axes:
        write({})
        return
    whole, divided = {axis: (i64(0), extents[axis]) for axis in axes}, axes[min(split, len(axes) - 1)]
    in_shares(extents[divided], threads, lambda share: write({**whole, divided: share}))


def over(
    axes: Sequence[str], spans: Mapping[str, Share], visit: Callable[[dict[str, TirExpr]], None],
    index: Mapping[str, TirExpr],
) -> None:  # fmt: skip
    """Serial loops over some axes, the first one outermost; ``visit`` is given ``index`` and their values."""
    if not axes:
        visit(dict(index))
        return
    with I.serial(*spans[axes[0]]) as value:
        over(axes[1:], spans, visit, {**index, axes[0]: value})


def in_groups(share: Share, size: int, visit: Callable[[TirExpr], None]) -> TirExpr:
    """The first value of each whole group of ``size`` values; how many groups there are."""
    first, last = share
    groups = I.Bind(tirx.floordiv(last - first, i64(size)))
    with I.serial(i64(0), groups) as group:
        visit(first + group * i64(size))
    return groups


def in_groups_and_rest(share: Share, size: int, visit: Callable[[TirExpr, int], None]) -> None:
    """``visit`` the first value of each whole group, and ``size``; then each value that is left over, and 1."""
    first, last = share
    rest = first + in_groups(share, size, lambda start: visit(start, size)) * i64(size) if size > 1 else first
    with I.serial(rest, last) as value:
        visit(value, 1)


def in_groups_to(last: TirExpr, size: int, visit: Callable[[TirExpr, int], None]) -> None:
    """``in_groups_and_rest`` of a share that begins with 0 and may be empty."""
    groups = I.Bind(tirx.truncdiv(last, i64(size)))
    with I.serial(i64(0), groups) as group:
        visit(group * i64(size), size)
    if size > 1:
        with I.serial(groups * i64(size), last) as value:
            visit(value, 1)


def in_vectors(share: Share, lanes: int, unroll: int, visit: Callable[[TirExpr, int, int], None]) -> None:
    """Groups of ``unroll`` vectors, single ones, then the rest element by element.

    ``visit``: the first value, the number of lanes, and which vector of a group it is.
    """
    first, last = share

    def group(start: TirExpr) -> None:
        for number in range(unroll):
            visit(start + i64(number * lanes), lanes, number)

    groups = in_groups(share, lanes * unroll, group)
    whole = I.Bind(tirx.floordiv(last - first, i64(lanes)))
    if unroll > 1:
        with I.serial(groups * i64(unroll), whole) as vector:
            visit(first + vector * i64(lanes), lanes, 0)
    with I.serial(first + whole * i64(lanes), last) as value:
        visit(value, 1, 0)


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
