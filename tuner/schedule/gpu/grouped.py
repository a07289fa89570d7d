"""Rows by group: their numbers sorted by group, and the group that a tile's rows are of."""

from __future__ import annotations

from dataclasses import replace

from tuner.program.language.expr import Read
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.flat import function
from tuner.schedule.gpu.module import Launch
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.writer import Value, Writer

SORTED_AT_ONCE = 1024
"""Rows that a program looks at in one step."""


def find_group(writer: Writer, groups: int, ends: str, block: int) -> None:
    """Write which ``group`` the rows of tile ``tile_m`` are of, where they begin in the order of all rows
    (``first_row``), and where those of the group end (``end_row``). ``ends``: the memory that says where each ends."""
    width = 1 << max(groups - 1, 1).bit_length()
    for line in (
        f"numbers = tl.arange(0, {width})",
        f"ends = tl.load(p_{ends} + numbers, mask=numbers < {groups}, other=0)",
        f"begins = tl.load(p_{ends} + numbers - 1, mask=(numbers > 0) & (numbers < {groups}), other=0)",
        f"tiles = tl.where(numbers < {groups}, (ends - begins + {block - 1}) // {block}, 0)",
        "upto = tl.cumsum(tiles, 0)",
        "group = tl.sum((upto <= tile_m).to(tl.int32), 0)",
        "before = tl.sum(tl.where(numbers == group, upto - tiles, 0), 0)",
        "end_row = tl.sum(tl.where(numbers == group, ends, 0), 0)",
        f"first_row = tl.sum(tl.where(numbers == group, begins, 0), 0) + (tile_m - before) * {block}",
    ):
        writer.line(line)


def sorting(workload: Workload, index: Read, axis: str, groups: int, names: tuple[str, str, str], rows: str) -> Launch:
    """A program for each group counts the rows of those before it, and writes down the numbers of its own. ``names``:
    of the function, of the memory for the order and for the ends; ``rows``: how many there are."""
    name, order, ends = names
    writer, block = Writer(), SORTED_AT_ONCE
    axes = {axis: Value("rows", "int32", frozenset({0}))}
    scope = Scope(writer, workload, axes, {0: f"(rows < {rows})"})

    def each() -> None:
        writer.line(f"rows = start + tl.arange(0, {block})")
        value = replace(scope, known={}).element(index)
        writer.line(f"of = tl.maximum(tl.minimum(tl.cast({value.text}, tl.int32), {groups - 1}), 0)")
        writer.line(f"is_own = ((of == group) & (rows < {rows})).to(tl.int32)")

    writer.line("group = tl.program_id(0)")
    writer.line("before = 0")
    writer.line("own = 0")
    with writer.block(f"for start in range(0, {rows}, {block}):"):
        each()
        writer.line(f"before += tl.sum(((of < group) & (rows < {rows})).to(tl.int32), 0)")
        writer.line("own += tl.sum(is_own, 0)")
    writer.line(f"tl.store(p_{ends} + group, before + own)")
    with writer.block(f"for start in range(0, {rows}, {block}):"):
        each()
        writer.line("at = before + tl.cumsum(is_own, 0) - is_own")
        writer.line(f"tl.store(p_{order} + at, rows, mask=is_own != 0)")
        writer.line("before += tl.sum(is_own, 0)")
    return Launch(function(workload, name, writer, (order, ends)), (str(groups),))
