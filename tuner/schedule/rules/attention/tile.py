"""What an attention kernel's code looks at: its task, operands, extents and scratch; and its register tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tuner.program.expr import Expr as Ast
from tuner.program.expr import Read
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Reader
from tuner.schedule.rules.attention.chain import DOTS, QUOTIENT, Chain
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE, Vectors


@dataclass(frozen=True)
class Scratch:
    """What one thread keeps. ``keys`` [panels, d, nr]: k packed, or None; ``scores`` [rows, columns of a block];
    ``top`` and ``total`` [rows]; ``mixed`` [rows, e] and ``factor`` [rows] where there are several blocks."""

    keys: TirExpr
    scores: TirExpr
    top: TirExpr
    total: TirExpr
    factor: TirExpr = None
    mixed: TirExpr = None


@dataclass(frozen=True)
class Frame:
    """One kernel while it is written. ``extent`` and ``index``: by the chain's names of axes."""

    task: SearchTask
    chain: Chain
    kernel: MicroKernel
    function: KernelFunction
    vectors: Vectors
    extent: Mapping[str, TirExpr]
    index: Mapping[str, TirExpr]
    scratch: Scratch | None = None

    def at(self, index: Mapping[str, TirExpr]) -> Frame:
        return replace(self, index={**self.index, **index})

    def using(self, scratch: Scratch) -> Frame:
        return replace(self, scratch=scratch)

    @property
    def room(self) -> Scratch:
        if self.scratch is None:
            raise ValueError("no scratch is allocated yet")
        return self.scratch

    @property
    def lanes(self) -> int:
        return self.vectors.lanes

    @property
    def nr(self) -> int:
        """Columns of a panel of scores."""
        return int(self.kernel["nv"]) * self.lanes

    @property
    def is_blocked(self) -> bool:
        """Whether the columns are gone through in several blocks."""
        return bool(self.kernel["cols"])

    # -- operands -------------------------------------------------------------------------------------------------
    def place(self, read: Read, **index: TirExpr) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer of q, k or v, and the indices of an element."""
        reader = self._reader({**self.index, **index}, 1, None, None)
        return self.function.buffers[read.tensor], reader.indices(read)

    def element(self, read: Read, **index: TirExpr) -> TirExpr:
        buffer, at = self.place(read, **index)
        return self._widened(read, buffer[tuple(at)])

    def vector(self, read: Read, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """A vector along the last index; elements at and past ``limit`` are not touched and give zero."""
        buffer, at = self.place(read, **index)
        return self._widened(read, self.vectors.load(buffer, at[:-1], at[-1], limit))

    def _widened(self, read: Read, value: TirExpr) -> TirExpr:
        """What was loaded from a tensor as float32."""
        dtype = self.task.workload.tensors[read.tensor].dtype
        return value if dtype == DTYPE else bound(loaded(bound(value), dtype))

    def value(self, expr: Ast, instead: TirExpr, along: str, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """An elementwise part in vectors ``along`` an axis, with ``instead`` where it reads what was computed."""
        reader = self._reader({**self.index, **index}, self.lanes, along, limit)
        types = self.task.workload.element_types
        for name in (DOTS.tensor, QUOTIENT.tensor):
            types = types.with_tensor(name, DTYPE)

        def read(node: Read) -> TirExpr:
            return instead if node in (DOTS, QUOTIENT) else reader.read(node)

        extent = self.function.extents.__getitem__
        return Evaluator(types, self.lanes, read, reader.axis, extent).value(expr, DTYPE)

    def _reader(self, index: Mapping[str, TirExpr], lanes: int, along: str | None, limit: TirExpr | None) -> Reader:
        return Reader(self.task.workload, self.function, self.function.buffers, index, lanes, along, limit)

    # -- which columns are visible ----------------------------------------------------------------------------------
    def first_column(self, row: TirExpr) -> TirExpr:
        """The first column that the bounds leave visible to a row; those of later rows are no earlier."""
        return self._limit(False, i64(0), tirx.max, row)

    def end_column(self, row: TirExpr) -> TirExpr:
        """The first column past those that the bounds leave visible to a row."""
        return self._limit(True, self.extent["j"], tirx.min, row)

    def _limit(
        self, is_upper: bool, start: TirExpr, combine: Callable[[TirExpr, TirExpr], TirExpr], row: TirExpr
    ) -> TirExpr:
        sizes = {f"extent({name})": value for name, value in self.function.extents.items()}
        values = {**sizes, **self.index, "i": row}
        result = start
        for each in self.chain.mask.bounds:
            if each.is_upper == is_upper:
                result = combine(result, dim_expr(each.limit, values) + i64(int(is_upper)))
        return I.Bind(result)

    @property
    def has_lower_bound(self) -> bool:
        return any(not each.is_upper for each in self.chain.mask.bounds)


def up(value: TirExpr, step: int) -> TirExpr:
    """How many steps hold ``value`` elements."""
    return tirx.floordiv(value + i64(step - 1), i64(step))


def down(value: TirExpr, step: int) -> TirExpr:
    """``value`` rounded down to a multiple."""
    return tirx.floordiv(value, i64(step)) * i64(step)


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
