"""Rows of the left operand gathered as elements of which the register tile reads words.

Elements stay as small as they are in memory, or as an instruction takes them: what is gathered is bytes, copied.
"""

from __future__ import annotations

from collections.abc import Callable

from tuner.program.expr import Axis, Read
from tuner.schedule.loops.reading import Reader
from tuner.schedule.product.context import Chunk, EmitContext
from tuner.schedule.product.indexing import Values
from tuner.schedule.product.match.factors import Factors, is_contiguous
from tuner.schedule.product.rows import PackedRows
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, stored, stored_type
from tuner.schedule.vector.memory import Vectors

Place = Callable[[TirExpr], Values]
"""From a step of the last part of k to the values of all parts."""
MIN_LANES = 8
"""Elements for which a run is copied in vectors that it is a multiple of."""


def elements_of(context: EmitContext, operand: Factors, values: Values) -> tuple[TirExpr, TirExpr | None, TirExpr]:
    """One element of an operand that is a read of a tensor, as it is stored: what loads it, whether it is inside the
    tensor (None: always), and what stands there where it is not."""
    read = operand.read
    buffer, at, inside = place_of(context, read, values)
    value = buffer[tuple(at)]
    return value, inside, padding_of(context, read)


def padding_of(context: EmitContext, read: Read) -> TirExpr:
    """What a tensor holds outside of its dims, as it is stored."""
    workload = context.task.workload
    value, dtype = dict(workload.padding).get(read.tensor, 0.0), workload.tensors[read.tensor].dtype
    if dtype == "bfloat16":
        return bound(stored(bound(constant(value, "float32", 1)), dtype))
    return constant(value, stored_type(dtype), 1)


def place_of(context: EmitContext, read: Read, values: Values) -> tuple[TirExpr, list[TirExpr], TirExpr | None]:
    """The buffer of a read, the indices of an element, and whether it is inside: None where nothing is outside."""
    workload = context.task.workload
    at = Reader(workload, context.function, context.buffers, context.parts.index(values), 1, None).indices(read)
    inside = None
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
    group, inner = context.words.atom.group, context.form.k[-1]
    first = I.Bind(chunk.first * i64(group))
    length = I.Bind(tirx.min(chunk.length * i64(group), context.depth - first))
    copy = _Copy(context, rows.buffer)
    with I.serial(i64(0), count) as r:
        of_row = {**context.outer, **context.parts.decomposed(context.form.m, rows.row + r)}
        with context.parts.runs(context.form.k, first, length) as (values, start, end, shift):

            def at(step: TirExpr, of: Values = {**of_row, **values}) -> Values:  # noqa: B006 - read only
                return {**of, inner: step}

            copy.run(at, r, start, end, shift)
        if not (isinstance(context.depth, tirx.IntImm) and int(context.depth) % group == 0):
            with I.serial(length, chunk.length * i64(group)) as past:
                I.buffer_store(rows.buffer, constant(0, context.words.atom.element, 1), [r, past])


class _Copy:
    """Writes runs of elements along the last part of k to rows of ``packed``."""

    def __init__(self, context: EmitContext, packed: TirExpr) -> None:
        self.context, self.packed, self.words = context, packed, context.words
        self.operand, self.inner = context.form.left, context.form.k[-1]
        self.read = self.operand.read
        self.is_shifted = self.words.compensation
        self.extent = context.form.parts[self.inner].extent.constant

    def run(self, at: Place, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        """Row ``r`` at the steps ``first`` to ``last``, of which ``at`` gives the values of all parts."""
        lanes = self._lanes()
        if lanes is None:
            with I.serial(first, last) as step:
                self._store(self._element(at(step)), r, step + shift)
        elif self.extent is not None and self.extent % lanes == 0 and self.extent >= lanes:
            self._whole(at, lanes, r, first, last, shift)
        else:
            self._masked(at, lanes, r, first, last, shift)

    def _lanes(self) -> int | None:
        """Elements in a vector; None where they are read one by one. Along the axis nothing may be outside."""
        plain = [index for index in self.read.indices if isinstance(index, Axis) and index.name == self.inner]
        sizes, tensor = self.context.task.workload.sizes, self.context.task.workload.tensors[self.read.tensor]
        is_last = isinstance(self.read.indices[-1], Axis) and self.read.indices[-1].name == self.inner
        is_padded = self.read.tensor in dict(self.context.task.workload.padding)
        inside = not is_padded or (bool(plain) and is_last and sizes[self.inner] == tensor.dims[-1])
        if not (inside and is_contiguous((self.read,), self.inner)):
            return None
        widest = self.words.width
        if self.extent is None:
            return widest
        exact = next(lanes for lanes in _halves(widest) if self.extent % lanes == 0)
        if exact >= MIN_LANES:
            return exact
        lanes = next((lanes for lanes in reversed(_halves(widest)) if lanes >= self.extent), widest)
        return lanes if lanes > 1 else None

    def _whole(self, at: Place, lanes: int, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        """Runs are whole vectors: chunks of k are, too."""
        buffer, place, inside = place_of(self.context, self.read, at(first))

        def vectors(value: Callable[[TirExpr], TirExpr]) -> None:
            with I.serial(i64(0), tirx.truncdiv(last - first, i64(lanes))) as v:
                self._store(value(v * i64(lanes)), r, first + shift + v * i64(lanes), lanes)

        def loaded(step: TirExpr) -> TirExpr:
            return buffer[(*place[:-1], tirx.Ramp(place[-1] + step, i64(1), lanes))]

        if inside is None:
            vectors(loaded)
            return
        outside = tirx.Broadcast(padding_of(self.context, self.read), lanes)
        with I.If(inside):
            with I.Then():
                vectors(loaded)
            with I.Else():
                vectors(lambda step: outside)

    def _masked(self, at: Place, lanes: int, r: TirExpr, first: TirExpr, last: TirExpr, shift: TirExpr) -> None:
        """What is stored past a run is overwritten by the next one, or lies in the room between rows."""
        buffer, place, inside = place_of(self.context, self.read, at(first))
        with I.serial(i64(0), tirx.truncdiv(last - first + i64(lanes - 1), i64(lanes))) as v:
            step = I.Bind(v * i64(lanes))
            limit = place[-1] + (last - first)
            if inside is not None:
                limit = tirx.Select(inside, limit, place[-1])
            value = Vectors(lanes).load(buffer, place[:-1], place[-1] + step, limit)
            if inside is not None:
                value = tirx.Select(
                    tirx.Broadcast(inside, lanes), value, tirx.Broadcast(padding_of(self.context, self.read), lanes)
                )
            self._store(value, r, first + shift + step, lanes)

    def _element(self, values: Values) -> TirExpr:
        value, inside, outside = elements_of(self.context, self.operand, values)
        return value if inside is None else tirx.if_then_else(inside, value, outside)

    def _store(self, value: TirExpr, r: TirExpr, place: TirExpr, lanes: int = 1) -> None:
        value = self.words.narrowed(I.Bind(value), self.is_shifted)
        I.buffer_store(self.packed, value, [r, tirx.Ramp(place, i64(1), lanes) if lanes > 1 else place])


def _halves(widest: int) -> list[int]:
    """That, its half, and so on."""
    return [widest >> by for by in range(widest.bit_length())]
