"""TensorIR for chains of products: the engine's loops and register tile, one product after the other.

A block of rows at a time (``whole=0``), so that its intermediate stays in cache:

    [pack weights that are new at this call]
    for t in parallel(threads):                       a contiguous share of the rows
      for block in row blocks of mb tiles:
        for chunk in chunks of about fb columns of the intermediate:
          the first products of these rows, at these columns, and the stages behind them
          the second product of these rows: over these steps of its sum

Or all rows at a time (``whole=1``), each product in its own order: threads share its rows and its panels.

    for rows in parts of the rows whose intermediate is not too large:       mostly one
      for t in parallel(threads): the first products, and the stages behind them
      for t in parallel(threads): the second product


"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import Share, in_shares, on_threads
from tuner.schedule.product.context import Chunk, EmitContext, context_of
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult
from tuner.schedule.product.readers import FromAhead, PackedAtOnce, RowReader
from tuner.schedule.rules.mlp.kept import Kept, kept, kept_width, link_kernels, whole_rows
from tuner.schedule.rules.mlp.pattern import chain_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import DTYPE


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    chain = chain_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        contexts = tuple(
            context_of(task, product, own, function)
            for product, own in zip(chain.products, link_kernels(chain, kernel), strict=True)
        )
        with _packed_weights(contexts) as packed:
            write = _whole if kernel["whole"] else _blocks
            write(task, kernel, [_reading_packed(context, packed) for context in contexts])
    return function.get()


def _into(context: EmitContext, windows: Mapping[str, TirExpr]) -> EmitContext:
    """The context with windows on the intermediates."""
    return replace(context, buffers={**context.buffers, **windows})


def _weight(context: EmitContext) -> MatrixColumns:
    assert isinstance(context.right, MatrixColumns)
    return context.right


def _result(context: EmitContext) -> str:
    """The tensor that results are written to."""
    assert isinstance(context.result, MatrixResult)
    return context.result.tensor


# -- weights ----------------------------------------------------------------------------------------------------------
@contextmanager
def _packed_weights(contexts: tuple[EmitContext, ...]) -> Iterator[Mapping[str, TirExpr]]:
    """Those weights that are new at every call as panels, by tensor."""
    if not contexts:
        yield {}
        return
    context, *rest = contexts
    with _packed_weights(tuple(rest)) as others:
        weight = _weight(context)
        if weight.is_packed_ahead:
            yield others
            return
        nest = Nest(context)
        with weight.room(context, nest.panels, nest.k) as packed:
            in_shares(nest.panels, context.task.threads, lambda share: _pack(nest, packed, share))
            yield {**others, weight.tensor: packed}


def _pack(nest: Nest, packed: TirExpr, share: Share) -> None:
    source = PackedAtOnce(nest.context, packed, i64(0))
    source.prepare(lambda use: nest.over(share, use), nest.whole)


def _reading_packed(context: EmitContext, packed: Mapping[str, TirExpr]) -> EmitContext:
    """The context as if its weight had been packed ahead of time."""
    weight = _weight(context)
    if weight.is_packed_ahead:
        return context
    kernel = replace(context.kernel, values=tuple({**dict(context.kernel.values), "pack": 0}.items()))
    buffers = {**context.buffers, weight.tensor: packed[weight.tensor]}
    return replace(context, kernel=kernel, buffers=buffers, right=replace(weight, is_packed_ahead=True, dtype=DTYPE))


# -- a block of rows at a time ----------------------------------------------------------------------------------------
def _blocks(task: SearchTask, kernel: MicroKernel, contexts: list[EmitContext]) -> None:
    on_threads(task.threads, lambda thread: _share(kernel, contexts, thread))


def _share(kernel: MicroKernel, contexts: list[EmitContext], thread: TirExpr) -> None:
    """What one thread does: its share of the rows."""
    *firsts, second = contexts
    chunks = _Chunks.of(firsts[0], second, kernel["fb"])
    most = kernel["mb"] * kernel["mr"] + kernel["mr"] - 1
    width = kept_width(chunks.length, second.vectors.lanes)
    with kept([_result(first) for first in firsts], second.extent["m"], most, width) as room:
        fused = _Fused(firsts, second, chunks, room)
        Nest(second).share(thread, fused.product)


@dataclass(frozen=True)
class _Chunks:
    """``count`` chunks of the intermediate, of ``panels`` panels of the first products: ``length`` columns."""

    panels: int
    length: int
    count: int

    @staticmethod
    def of(first: EmitContext, second: EmitContext, columns: int) -> _Chunks:
        """Chunks of about so many columns, equally many panels each; one of all columns if that is 0."""
        size, panel = int(second.extent["k"]), first.nr
        panels = -(-size // panel)
        chunks = min(-(-size // columns), panels) if columns else 1
        each = -(-panels // chunks)
        return _Chunks(each, min(each * panel, size), -(-panels // each))


@dataclass(frozen=True)
class _Fused:
    """The second product, before each chunk of whose sum the first ones compute the rows of a block."""

    firsts: list[EmitContext]
    second: EmitContext
    chunks: _Chunks
    room: Kept

    def product(self, nest: Nest, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        """What a share does, as ``Nest.share`` asks."""
        nest.blocks(tiles, is_last, lambda block: self._columns(nest, block, panels))

    def _columns(self, nest: Nest, block: Block, panels: Share) -> None:
        """A block of rows, one chunk of the intermediate after the other."""
        block = Block(bound(block.start), bound(block.count), block.ends)
        count, length = self.chunks.count, self.chunks.length
        if count == 1:
            self._chunk(nest, block, panels, i64(0), nest.whole)
            return
        with I.serial(i64(0), i64(count)) as index:
            first = I.Bind(index * i64(length))
            even = int(nest.k) % length == 0
            own = i64(length) if even else I.Bind(tirx.min(i64(length), nest.k - first))
            self._chunk(nest, block, panels, index, Chunk(first, own, index == i64(0), index == i64(count - 1)))

    def _chunk(self, nest: Nest, block: Block, panels: Share, index: TirExpr, chunk: Chunk) -> None:
        windows = self.room.at(block.start * i64(nest.mr), chunk.first)
        tiles = (block.start, I.Bind(block.start + block.count))
        for context in self.firsts:
            first = Nest(_into(context, windows))
            own = index * i64(self.chunks.panels)
            first.product(tiles, (own, tirx.min(own + i64(self.chunks.panels), first.panels)), block.ends)
        second = _into(self.second, windows)
        Nest(second).at_chunk(block, chunk, panels, FromAhead(second), RowReader())


# -- all rows at a time -----------------------------------------------------------------------------------------------
def _whole(task: SearchTask, kernel: MicroKernel, contexts: list[EmitContext]) -> None:
    *firsts, second = contexts
    width = kept_width(int(second.extent["k"]), second.vectors.lanes)
    height = whole_rows(len(firsts), width, kernel["mr"])
    tiles, part = Nest(second).tiles, i64(height // kernel["mr"])
    most, results = height + kernel["mr"] - 1, [_result(first) for first in firsts]
    parts = I.Bind(tirx.max(tirx.floordiv(tiles + part - i64(1), part), i64(1)))
    with kept(results, second.extent["m"], most, width) as room, I.serial(i64(0), parts) as index:
        start = bound(index * part)
        rest = Block(start, bound(tirx.min(part, tiles - start)), index == parts - i64(1))
        windows = room.at(start * i64(kernel["mr"]), i64(0))
        for phase in (firsts, [second]):
            nests = [Nest(_into(context, windows), rest.count) for context in phase]
            on_threads(task.threads, partial(_share_all, nests, rest))


def _share_all(nests: Sequence[Nest], part: Block, thread: TirExpr) -> None:
    """Products of a part of the rows, which threads share."""

    def product(nest: Nest, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        first, last = (I.Bind(part.start + tile) for tile in tiles)
        nest.product((first, last), panels, tirx.And(is_last, part.ends))

    for nest in nests:
        nest.share(thread, product)
