"""Row-wise programs as one Triton kernel: some rows a program, their columns in one tile, or in a loop over tiles.

A reduction is of all columns of a row, and what follows reads it: softmax and the norms, at one reading of the input
where rows fit a tile. Longer rows are read once for each reduction, and once for the output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Read, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Tensor, Workload
from tuner.schedule.access import lies_along, stride
from tuner.schedule.gpu.flat import axes_of, function, size_of
from tuner.schedule.gpu.functions import COMBINE, REDUCE, TYPES, identity
from tuner.schedule.gpu.module import Launch
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.writer import Value, Writer, cast, dim_text, spread
from tuner.schedule.rule import Mismatch
from tuner.schedule.rules.rows.frame import Frame, frame_of

MIN_COLUMNS = 16
"""A fixed row of fewer elements fills no tile."""


@dataclass(frozen=True)
class RowTile:
    """``block``: columns of a tile; ``rows``: of a program."""

    rows: int = 4
    block: int = 256
    num_warps: int = 4
    num_stages: int = 1


def row_frame(workload: Workload) -> Frame | None:
    """The program over common axes, where tiles along its rows are loads of neighbours."""
    try:
        frame = frame_of(workload)
    except Mismatch:
        return None
    along = [read for read in frame.input_reads if not any(map(reads, read.indices))]
    if not all(lies_along(read, frame.vector) for read in along):
        return None
    size = _size(workload, frame, frame.columns).constant
    is_short = size is not None and size < MIN_COLUMNS
    return None if is_short and _has_long_rows(frame) else frame


def _has_long_rows(frame: Frame) -> bool:
    """Whether neighbours in memory are rows, or there is nothing but one reduction."""
    return len(frame.stages) == 1 or any(stride(read, frame.rows[-1]) == 1 for read in frame.input_reads if frame.rows)


def _size(workload: Workload, frame: Frame, axes: tuple[str, ...]) -> DimExpr:
    return math.prod((workload.sizes[part] for part in frame.parts_of(axes)), start=DimExpr.of(1))


class RowEmitter:
    """Writes the kernel of one row-wise program."""

    def __init__(self, workload: Workload, frame: Frame, tile: RowTile, name: str, is_wide: bool) -> None:
        # Without rows there is one.
        tile = tile if frame.rows else replace(tile, rows=1)
        self.workload, self.frame, self.tile, self.name = workload, frame, tile, name
        self.sizes = {axis: _size(workload, frame, (axis,)) for axis in frame.axes}
        tensors = {tensor: self._merged(workload.tensors[tensor]) for tensor in workload.program.tensors}
        self.writer = Writer()
        self.scope = Scope(self.writer, workload, {}, {}, is_wide, tensors=tensors, sizes=self.sizes)
        self.count = size_of(frame.columns, self.sizes, self.scope.symbols)
        self.shape = (tile.rows, tile.block)

    def _merged(self, tensor: Tensor) -> Tensor:
        groups = self.frame.groups.get(tensor.name, ())
        dims = tuple(math.prod((tensor.dims[dim] for dim in group), start=DimExpr.of(1)) for group in groups)
        return replace(tensor, dims=dims)

    def launch(self, is_looped: bool) -> Launch:
        """The kernel; ``is_looped``: rows may be longer than a tile."""
        writer, tile = self.writer, self.tile
        rows = size_of(self.frame.rows, self.sizes, self.scope.symbols) if self.frame.rows else "1"
        writer.line(f"rows = tl.program_id(0) * {tile.rows} + tl.arange(0, {tile.rows})")
        at = Value(spread("rows", 0, 2), "int32", frozenset({0}))
        at = writer.bind(cast(at, "int64")) if self.scope.is_wide else at
        axes = axes_of(writer, self.frame.rows, self.sizes, self.scope.symbols, at)
        masks = {0: f"({spread('rows', 0, 2)} < {rows})"} if self.frame.rows else {}
        self.scope = self.scope.with_axes(axes, masks)
        self._looped() if is_looped else self._at_once()
        symbols = {name: value.text for name, value in self.scope.symbols.items()}
        total = math.prod((self.sizes[axis] for axis in self.frame.rows), start=DimExpr.of(1))
        grid = f"cdiv(max({dim_text(total, symbols, is_host=True)}, 0), {tile.rows})" if self.frame.rows else "1"
        return Launch(function(self.workload, self.name, writer), (grid,), tile.num_warps, tile.num_stages)

    # -- a row in one tile --------------------------------------------------------------------------------------------
    def _at_once(self) -> None:
        scope, _ = self._columns("tl.arange(0, {})")
        for stage in self.frame.stages:
            if stage.reducer:
                dtype = self._reduced_type(stage)
                value = self._inside(scope, scope.value(stage.body, dtype), identity(str(stage.reducer), dtype))
                self._finish(scope, stage, REDUCE[str(stage.reducer)].format(value, 1))
            else:
                self._define(scope, stage)

    def _columns(self, numbers: str) -> tuple[Scope, str]:
        """A scope at the columns ``numbers``."""
        at = self.writer.bind(Value(numbers.format(self.tile.block) + "[None, :]", "int32", frozenset({1})), "columns")
        axes = axes_of(self.writer, self.frame.columns, self.sizes, self.scope.symbols, at)
        is_whole = self.count.isdecimal() and int(self.count) % self.tile.block == 0
        masks = dict(self.scope.masks) if is_whole else {**self.scope.masks, 1: f"({at.text} < {self.count})"}
        inner = self.scope.with_axes(axes, masks)
        inner.known.update(self.scope.known)
        return inner, at.text

    def _inside(self, scope: Scope, value: Value, start: str) -> str:
        """A value in all of a tile, and ``start`` past its columns."""
        text = value.text if 1 in value.dims else f"tl.broadcast_to({value.text}, {self.shape})"
        if value.dims == {1}:
            text = f"tl.broadcast_to({value.text}, {self.shape})"
        return f"tl.where({scope.masks[1]}, {text}, {start})" if 1 in scope.masks else text

    def _reduced_type(self, stage: Stage) -> str:
        assert self.scope.types is not None
        return self.scope.types.reduced_type(stage)

    def _finish(self, scope: Scope, stage: Stage, text: str) -> None:
        """A reduction whose value is ``text``, stored if a call gives it out."""
        value = scope.or_nothing(stage, Value(text, self._reduced_type(stage), frozenset({0})), self.count)
        self._keep(scope, stage, self.writer.bind(value, stage.tensor))

    def _define(self, scope: Scope, stage: Stage) -> None:
        self._keep(scope, stage, scope.value(stage.body))

    def _keep(self, scope: Scope, stage: Stage, value: Value) -> None:
        if stage.tensor in self.workload.program.outputs:
            self._store(scope, stage, value)
        kept = scope.passed_through(stage, value)
        if not set(stage.axes) & set(self.frame.columns):
            self.scope.known[Read(stage.tensor, tuple(map(Axis, stage.axes)))] = kept

    def _store(self, scope: Scope, stage: Stage, value: Value) -> None:
        if not self.frame.rows and not stage.axes:
            # One element: a tile of one is no scalar.
            text = f"tl.sum(tl.sum({value.text}, axis=1), axis=0)" if value.dims else value.text
            scope.store(stage, Value(text, value.dtype), {}, self.shape)
            return
        if not self.frame.rows and value.dims & {0}:
            value = replace(value, dims=frozenset({1}))
        scope.store(stage, value, scope.masks, self.shape)

    # -- a row in many tiles ------------------------------------------------------------------------------------------
    def _looped(self) -> None:
        columns, outputs = set(self.frame.columns), self.workload.program.outputs
        for stage in self.frame.stages:
            if stage.reducer:
                self._reduce(stage)
            elif not columns & set(stage.axes):
                self._define(self.scope, stage)
        written = [s for s in self.frame.stages if columns & set(s.axes) and s.tensor in outputs]
        if written:
            with self._tiles() as scope:
                for stage in self._needed([stage.tensor for stage in written]):
                    self._define(scope, stage)

    def _tiles(self) -> _Loop:
        return _Loop(self)

    def _reduce(self, stage: Stage) -> None:
        reducer, dtype = str(stage.reducer), self._reduced_type(stage)
        start, name = identity(reducer, dtype), self.writer.name("total")
        self.writer.line(f"{name} = tl.full({self.shape}, {start}, {TYPES[dtype]})")
        with self._tiles() as scope:
            for before in self._needed([read.tensor for read in reads(stage.body)]):
                scope.passed_through(before, scope.value(before.body))
            value = self._inside(scope, scope.value(stage.body, dtype), start)
            self.writer.line(f"{name} = {COMBINE[reducer].format(name, value)}")
        self._finish(self.scope, stage, REDUCE[reducer].format(name, 1))

    def _needed(self, names: list[str]) -> list[Stage]:
        """The stages along columns that these tensors are made of, themselves included, in order."""
        columns, by_name = set(self.frame.columns), {stage.tensor: stage for stage in self.frame.stages}
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            stage = by_name.get(waiting.pop())
            if stage is not None and columns & set(stage.axes) and stage.tensor not in found:
                found.add(stage.tensor)
                waiting += [read.tensor for read in reads(stage.body)]
        return [stage for stage in self.frame.stages if stage.tensor in found]


class _Loop:
    """Tiles of all columns, one after the other."""

    def __init__(self, emitter: RowEmitter) -> None:
        self.emitter = emitter

    def __enter__(self) -> Scope:
        writer, block = self.emitter.writer, self.emitter.tile.block
        writer.line(f"for start in range(0, {self.emitter.count}, {block}):")
        writer.depth += 1
        scope, _ = self.emitter._columns("(start + tl.arange(0, {}))")
        return scope

    def __exit__(self, *_: object) -> None:
        self.emitter.writer.depth -= 1
