"""Operands gathered as words: rows of the left one, and panels of the right one, neighbours in k of every column side
by side.

Elements stay as small as they are in memory, or as an instruction takes them: what is gathered is bytes, copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuner.program.language.expr import Axis, Read
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Values, where
from tuner.schedule.product.match.factors import in_words, is_contiguous
from tuner.schedule.product.operands import gather
from tuner.schedule.product.readers import PackedRows, PackedSlice
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, stored, stored_type
from tuner.schedule.vector.memory import Vectors

MIN_LANES = 8
"""Elements for which a run is copied in vectors that it is a multiple of."""


# -- elements as they are stored ---------------------------------------------------------------------------------------
def _element(context: EmitContext, read: Read, values: Values) -> TirExpr:
    buffer, at, inside = _place(context, read, values)
    outside = _padding(context, read)
    return buffer[tuple(at)] if inside is None else tirx.if_then_else(inside, buffer[tuple(at)], outside)


def _padding(context: EmitContext, read: Read) -> TirExpr:
    """What a tensor is padded with, as it is stored."""
    workload = context.task.workload
    value, dtype = dict(workload.padding).get(read.tensor, 0.0), workload.tensors[read.tensor].dtype
    if dtype == "bfloat16":
        return bound(stored(bound(constant(value, "float32", 1)), dtype))
    return constant(value, stored_type(dtype), 1)


def _place(context: EmitContext, read: Read, values: Values) -> tuple[TirExpr, list[TirExpr], TirExpr | None]:
    """The buffer of a read, the indices of an element, and whether it is inside: None where nothing is outside."""
    workload, at, inside = context.task.workload, gather.reader_at(context, values).indices(read), None
    if read.tensor in dict(workload.padding):
        dims = workload.tensors[read.tensor].dims
        for index, value, dim, size in zip(read.indices, at, dims, context.parts.sizes_of(read.tensor), strict=True):
            # An index that is an axis of the same extent is never outside.
            if isinstance(index, Axis) and workload.sizes[index.name] == dim:
                continue
            own = tirx.And(value >= i64(0), value < size)
            inside = own if inside is None else tirx.And(inside, own)
    return context.buffers[read.tensor], at, inside


# -- rows -------------------------------------------------------------------------------------------------------------
def words_of_rows(context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
    """``count`` rows at these words of k, the last one filled up with zeros."""
    group = context.words.atom.group
    first = I.Bind(chunk.first * i64(group))
    length = I.Bind(tirx.min(chunk.length * i64(group), context.depth - first))
    copy = _Copy(context, rows.buffer)
    with I.serial(i64(0), count) as r:
        of_row = {**context.outer, **context.parts.decomposed(context.form.m, rows.row + r)}
        with context.parts.runs(context.form.k, first, length) as (values, start, end, shift):
            copy.run({**of_row, **values}, r, start, end, shift)
        if not (isinstance(context.depth, tirx.IntImm) and int(context.depth) % group == 0):
            with I.serial(length, chunk.length * i64(group)) as past:
                I.buffer_store(rows.buffer, constant(0, context.words.atom.element, 1), [r, past])


class _Copy:
    """Writes runs of elements along the last part of k to rows of ``packed``."""

    def __init__(self, context: EmitContext, packed: TirExpr) -> None:
        self.context, self.packed = context, packed
        self.read, self.inner = context.form.left.read, context.form.k[-1]
        self.extent = context.form.parts[self.inner].extent.constant
        self.lanes = self._lanes()

    def _lanes(self) -> int | None:
        """Elements in a vector; None where they are read one by one. Along the axis nothing may be outside."""
        workload, last = self.context.task.workload, self.read.indices[-1]
        if self.read.tensor in dict(workload.padding):
            is_axis = isinstance(last, Axis) and last.name == self.inner
            if not is_axis or workload.sizes[self.inner] != workload.tensors[self.read.tensor].dims[-1]:
                return None
        if not is_contiguous((self.read,), self.inner):
            return None
        widest = self.context.words.width
        if self.extent is None:
            return widest
        halves = [widest >> by for by in range(widest.bit_length())]
        exact = next(lanes for lanes in halves if self.extent % lanes == 0)
        if exact >= MIN_LANES:
            return exact
        lanes = next((lanes for lanes in reversed(halves) if lanes >= self.extent), widest)
        return lanes if lanes > 1 else None

    def run(self, at: Values, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        """Row ``r`` at the steps ``first`` to ``last``; ``at``: the values of all parts but the last one of k."""
        if self.lanes is None:
            with I.serial(first, last) as step:
                self._store(_element(self.context, self.read, {**at, self.inner: step}), r, step + shift)
            return
        # Chunks of k are whole vectors, too.
        is_whole = self.extent is not None and self.extent % self.lanes == 0 and self.extent >= self.lanes
        write = self._whole if is_whole else self._masked
        write(at, self.lanes, r, first, last, shift)

    def _whole(self, at: Values, lanes: int, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        buffer, place, inside = _place(self.context, self.read, {**at, self.inner: first})

        def vectors(outside: TirExpr | None = None) -> None:
            with I.serial(i64(0), tirx.truncdiv(last - first, i64(lanes))) as v:
                step = v * i64(lanes)
                there = buffer[(*place[:-1], tirx.Ramp(place[-1] + step, i64(1), lanes))]
                self._store(there if outside is None else outside, r, first + shift + step, lanes)

        padding = None if inside is None else tirx.Broadcast(_padding(self.context, self.read), lanes)
        where(inside, vectors, lambda: vectors(padding))

    def _masked(self, at: Values, lanes: int, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        """What is stored past a run is overwritten by the next one, or lies in the room between rows."""
        buffer, place, inside = _place(self.context, self.read, {**at, self.inner: first})
        with I.serial(i64(0), tirx.truncdiv(last - first + i64(lanes - 1), i64(lanes))) as v:
            step = I.Bind(v * i64(lanes))
            limit = place[-1] + (last - first)
            if inside is not None:
                limit = tirx.Select(inside, limit, place[-1])
            value = Vectors(lanes).load(buffer, place[:-1], place[-1] + step, limit)
            if inside is not None:
                padding = tirx.Broadcast(_padding(self.context, self.read), lanes)
                value = tirx.Select(tirx.Broadcast(inside, lanes), value, padding)
            self._store(value, r, first + shift + step, lanes)

    def _store(self, value: TirExpr, r: TirExpr, place: TirExpr, lanes: int = 1) -> None:
        words = self.context.words
        value = words.taken(I.Bind(value), words.left, words.compensation)
        I.buffer_store(self.packed, value, [r, tirx.Ramp(place, i64(1), lanes) if lanes > 1 else place])


# -- panels -----------------------------------------------------------------------------------------------------------
def words_of_panel(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """A panel's slice of a right operand that is gathered: in vectors, each of which may go over several runs of the
    last axis of n, or element by element."""
    strided, lanes = gather.strided_read(context), context.vectors.lanes
    if strided is None:
        _elements(context, panel, to, chunk)
        return
    with I.serial(i64(0), i64(panel.vectors)) as v:
        column = I.Bind(panel.column + v * i64(lanes))
        valid = gather.columns_in_vector(panel, column, lanes)
        over = gather.runs_of_vector(context, column)
        with _words(context, to, chunk) as (each, row):
            neighbours = [_vector(context, strided, over, values, is_step, valid) for values, is_step in each]
            to.store(context.words.of_columns(neighbours), row, v)


Step = tuple[Values, TirExpr | None]
"""The values of the parts of k at one of its steps, and whether that is before the end of k; None: it is."""


@contextmanager
def _words(context: EmitContext, to: PackedSlice, chunk: Chunk) -> Iterator[tuple[Sequence[Step], TirExpr]]:
    """The words of a chunk: their steps, and the row of the packed panel."""
    group, names, first = context.words.atom.group, context.form.k, chunk.first - to.first
    if in_words(context.form.parts, names[-1:], group):
        # No word goes from one run of the last part to the next.
        steps = chunk.first * i64(group), chunk.length * i64(group)
        with context.parts.runs(names, *steps) as (values, *ends, shift):
            start, end, before = (tirx.truncdiv(each, i64(group)) for each in (*ends, shift))
            with I.serial(start, end) as word:
                in_k = [{**values, names[-1]: word * i64(group) + i64(j)} for j in range(group)]
                yield [(of_step, None) for of_step in in_k], first + word + before
        return
    is_whole = in_words(context.form.parts, names, group)
    with I.serial(i64(0), chunk.length) as step:
        each: list[Step] = []
        for j in range(group):
            flat = I.Bind((chunk.first + step) * i64(group) + i64(j))
            each.append((context.parts.decomposed(names, flat), None if is_whole else flat < context.depth))
        yield each, first + step


def _vector(
    context: EmitContext, strided: gather.Strided, over: gather.Runs, values: Values,
    is_step: TirExpr | None, valid: TirExpr,
) -> TirExpr:  # fmt: skip
    """A vector of columns at one step, of which ``valid`` lanes are columns."""
    dtype = stored_type(str(context.form.right.read_dtype))
    slot = I.alloc_buffer((context.vectors.lanes,), dtype)
    outside = _padding(context, strided.read)
    if is_step is not None:
        outside = tirx.Select(is_step, outside, constant(0, dtype, 1))
        valid = I.Bind(tirx.Select(is_step, valid, i64(0)))
    values = {**context.outer, **values}
    return I.Bind(gather.loaded_runs(context, strided, slot, over, values, outside, valid))


def _elements(context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
    """Element by element. Columns past the last one are left as they are: they are computed and not stored."""
    words, group, right = context.words, context.words.atom.group, context.form.right
    zero = constant(0, stored_type(str(right.read_dtype)), 1)
    with I.serial(i64(0), context.columns_in(panel)) as column:
        of_column = {**context.outer, **context.parts.decomposed(context.form.n, panel.column + column)}
        with _words(context, to, chunk) as (each, row):
            for j, (values, is_step) in enumerate(each):
                value = _element(context, right.read, {**of_column, **values})
                value = value if is_step is None else tirx.if_then_else(is_step, value, zero)
                value = words.taken(I.Bind(value), words.right, words.row_compensation)
                I.buffer_store(to.buffer, value, [to.index, row, column * i64(group) + i64(j)])
