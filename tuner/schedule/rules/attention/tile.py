"""The register tile of both contractions: rows by vectors of accumulators, and the tiles of a block of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tuner.schedule.rules.attention.frame import Frame
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import DTYPE


@dataclass(frozen=True)
class Tile:
    """``height`` rows from ``row`` on, row ``local`` of a block; the first ``valid`` ones exist (None: all)."""

    row: TirExpr
    local: TirExpr
    height: int
    valid: TirExpr | None = None

    @property
    def count(self) -> TirExpr:
        """How many of its rows exist."""
        return i64(self.height) if self.valid is None else self.valid

    def existing(self, number: int) -> AbstractContextManager[Any]:
        """What is written here runs only where that row exists."""
        return nullcontext() if self.valid is None else _If(i64(number) < self.valid)


class _If:
    """``I.If`` and ``I.Then`` as one."""

    def __init__(self, condition: TirExpr) -> None:
        self._frames = (I.If(condition), I.Then())

    def __enter__(self) -> None:
        for frame in self._frames:
            frame.__enter__()

    def __exit__(self, *error: Any) -> None:
        for frame in reversed(self._frames):
            frame.__exit__(*error)


def when(condition: TirExpr) -> AbstractContextManager[None]:
    """What is written here runs where the condition holds."""
    return _If(condition)


def tiles(frame: Frame, row: TirExpr, rows: TirExpr, use: Callable[[Tile], None]) -> None:
    """The tiles of ``rows`` rows from ``row`` on: whole ones, then the ragged rest, exactly (``tail``) or padded."""
    mr = frame.kernel["mr"]
    size = frame.extent["i"]
    whole = I.Bind(tirx.floordiv(rows, i64(mr)))
    if not (isinstance(size, tirx.IntImm) and int(size) < mr):
        with I.serial(i64(0), whole) as number:
            local = I.Bind(number * i64(mr))
            use(Tile(row + local, local, mr))
    if isinstance(size, tirx.IntImm) and int(size) % mr == 0:
        return
    local = I.Bind(whole * i64(mr))
    rest = I.Bind(rows - local)
    if not frame.kernel["tail"]:
        with when(rest > i64(0)):
            use(Tile(row + local, local, mr, rest))
        return
    for height in range(1, mr):
        with when(rest == i64(height)):
            use(Tile(row + local, local, height))


class Accumulators:
    """One stack slot for each vector: larger buffers would become a heap workspace (docs/decisions/0002)."""

    def __init__(self, frame: Frame, height: int, vectors: int) -> None:
        self._vectors = frame.vectors
        self.lines = [[I.alloc_buffer((frame.lanes,), DTYPE) for _ in range(vectors)] for _ in range(height)]

    def get(self, row: int, vector: int) -> TirExpr:
        return self.lines[row][vector][self._vectors.ramp(0)]

    def set(self, row: int, vector: int, value: TirExpr) -> None:
        I.buffer_store(self.lines[row][vector], value, [self._vectors.ramp(0)])

    def clear(self) -> None:
        for row, line in enumerate(self.lines):
            for vector in range(len(line)):
                self.set(row, vector, self._vectors.zero())

    def add_products(self, rows: Sequence[TirExpr], columns: Sequence[TirExpr]) -> None:
        """One step of the reduction: the outer product of scalars and vectors."""
        columns = [I.Bind(column) for column in columns]
        for row, scalar in enumerate(rows):
            value = I.Bind(tirx.Broadcast(scalar, self._vectors.lanes))
            for vector, column in enumerate(columns):
                self.set(row, vector, self.get(row, vector) + value * column)


def unrolled(first: TirExpr, end: TirExpr, unroll: int, step: Callable[[TirExpr], None]) -> None:
    """A loop of ``unroll`` steps a turn, then the steps that are left over."""
    if unroll == 1:
        with I.serial(first, end) as at:
            step(at)
        return
    turns = I.Bind(tirx.floordiv(end - first, i64(unroll)))
    with I.serial(i64(0), turns) as turn:
        for number in range(unroll):
            step(first + turn * i64(unroll) + i64(number))
    if not (isinstance(end - first, tirx.IntImm) and int(end - first) % unroll == 0):
        with I.serial(first + turns * i64(unroll), end) as at:
            step(at)
