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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tuner.program.job.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.shares import Share, in_shares, on_threads
from tuner.schedule.product.atom import allowed
from tuner.schedule.product.axes import TOTAL_BYTES
from tuner.schedule.product.context import Chunk, EmitContext, context_of
from tuner.schedule.product.matrices import with_totals
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.operands.matrix import MatrixColumns
from tuner.schedule.product.product import ceil_div
from tuner.schedule.product.sources import FromAhead, PackedAtCall
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.memory import DTYPE, workspace

if TYPE_CHECKING:
    from tuner.schedule.rules.mlp.chain import Chain

WHOLE_BYTES = 2**30
"""The most that is kept of the intermediates of all rows at a time."""
Windows = Callable[[TirExpr, TirExpr], Mapping[str, TirExpr]]
"""By tensor windows on what is kept of the intermediates, of which the block from this row and column on is kept."""


def kept_width(columns: int, whole: int, line: int) -> int:
    """Elements in a row of what is kept: whole vectors, or multiplications, rows a ``line`` and more apart from a power
    of two, so that those of a tile do not fall on the same lines of a cache."""
    return -(-columns // whole) * whole + line


def whole_rows(products: int, width: int, mr: int) -> int:
    """Rows, in whole tiles, of which no more than WHOLE_BYTES are kept at a time."""
    return max(WHOLE_BYTES // (products * width * TOTAL_BYTES * mr), 1) * mr


def write(task: SearchTask, chain: Chain, kernel: MicroKernel, function: KernelFunction) -> None:
    """The body of a kernel."""
    with ExitStack() as stack:
        each = zip(chain.products, chain.kernels(kernel, task.known_target.hardware), strict=True)
        contexts = [context_of(task, product, own, function) for product, own in each]
        for atom in {context.words.atom.name: context.words.atom for context in contexts}.values():
            stack.enter_context(allowed(atom))
        second, *firsts = [stack.enter_context(_reading_panels(context)) for context in reversed(contexts)]
        (_whole if kernel["whole"] else _blocks)(chain, kernel, firsts[::-1], second)


@contextmanager
def _reading_panels(context: EmitContext) -> Iterator[EmitContext]:
    """The context as if its weight had been packed ahead of time: one that is new at every call is packed here."""
    weight, nest = context.right, Nest(context)
    assert isinstance(weight, MatrixColumns)
    if weight.is_packed_ahead:
        yield context
        return
    with weight.room(context, nest.panels, nest.k) as packed:
        source = PackedAtCall(context, packed, i64(0))

        def pack(share: Share) -> None:
            source.prepare(lambda use: nest.over(share, use), nest.whole)

        in_shares(nest.panels, context.task.threads, pack)
        kernel = replace(context.kernel, values=tuple({**dict(context.kernel.values), "pack": 0}.items()))
        right = replace(weight, is_packed_ahead=True, dtype=DTYPE)
        yield replace(_with(context, {weight.tensor: packed}), kernel=kernel, right=right)


def _with(context: EmitContext, buffers: Mapping[str, TirExpr]) -> EmitContext:
    return replace(context, buffers={**context.buffers, **buffers})


def _width(second: EmitContext, columns: int) -> int:
    """Elements in a row of so many columns of what is kept."""
    atom, lanes = second.words.atom, second.vectors.lanes
    return kept_width(columns, max(lanes, atom.depth), lanes * atom.group)


@contextmanager
def _kept(chain: Chain, second: EmitContext, tiles: int, width: int) -> Iterator[Windows]:
    """Room for so many ``tiles`` of rows, and a ragged one, of each intermediate, of ``width`` elements in a row."""
    rows, mr = second.extent["m"], second.kernel["mr"]
    if second.words.atom.unit is None:
        room = tirx.max(tirx.min(i64((tiles + 1) * mr - 1), rows), i64(1))
    else:
        # A ragged tile of a matrix unit has all of its rows.
        room = tirx.max(tirx.min(i64(tiles + 1), ceil_div(rows, mr)), i64(1)) * i64(mr)
    with ExitStack() as stack:
        tensors = [first.result.tensor for first in chain.firsts]
        types = {name: stored_type(second.task.workload.tensors[name].dtype) for name in tensors}
        memory = {name: stack.enter_context(workspace((room, i64(width)), types[name])) for name in tensors}

        def windows(row: TirExpr, column: TirExpr) -> Mapping[str, TirExpr]:
            # The code of a product looks at rows and columns of the whole intermediate, wherever these are kept.
            before = bound(row * i64(width) + column)
            return {
                name: I.decl_buffer((rows, i64(width)), types[name], data=data.data, elem_offset=i64(0) - before)
                for name, data in memory.items()
            }

        yield windows


# -- a block of rows at a time ----------------------------------------------------------------------------------------
def _blocks(chain: Chain, kernel: MicroKernel, firsts: list[EmitContext], second: EmitContext) -> None:
    # Chunks of about ``fb`` columns, equally many panels each.
    size, panel = int(firsts[0].extent["n"]), firsts[0].nr
    panels = -(-size // panel)
    chunks = min(-(-size // kernel["fb"]), panels) if kernel["fb"] else 1
    # Chunks end where multiplications do: behind them stands what the next ones take.
    depth = second.words.atom.depth if second.words.atom.unit else 1
    whole = depth // math.gcd(panel, depth)
    each = -(-panels // (chunks * whole)) * whole
    length, count = min(each * panel, size), -(-panels // each)
    width, group = _width(second, length), second.words.atom.group

    def block_of(windows: Windows, nest: Nest, columns: Share, block: Block) -> None:
        block = Block(bound(block.start), bound(block.count), block.ends)
        for index, chunk in _chunks(nest, length // group if count > 1 else 0, count):
            first_column = chunk.first * i64(group) if group > 1 else chunk.first
            kept = windows(block.start * i64(nest.mr), first_column)
            tiles, own = (block.start, I.Bind(block.start + block.count)), index * i64(each)
            for context in firsts:
                first = Nest(_with(context, kept))
                first.product(tiles, (own, tirx.min(own + i64(each), first.panels)), block.ends)
            last = Nest(_with(nest.context, kept))
            rows = last.context.left.reader(last.context, partial(last.rows_of, block), chunk)
            last.at_chunk(block, chunk, columns, FromAhead(last.context), rows)

    def share(thread: TirExpr) -> None:
        with _kept(chain, second, kernel["mb"], width) as windows:

            def product(nest: Nest, tiles: Share, columns: Share, is_last: TirExpr) -> None:
                with with_totals(nest.context, columns) as context:
                    nest.blocks(tiles, is_last, partial(block_of, windows, Nest(context), columns))

            Nest(second).share(thread, product)

    on_threads(second.task.threads, share)


def _chunks(nest: Nest, length: int, count: int) -> Iterator[tuple[TirExpr, Chunk]]:
    """The chunks of k by their numbers."""
    if count == 1:
        yield i64(0), nest.whole
        return
    with I.serial(i64(0), i64(count)) as index:
        first, most = I.Bind(index * i64(length)), i64(length)
        own = most if int(nest.k) % length == 0 else I.Bind(tirx.min(most, nest.k - first))
        yield index, Chunk(first, own, index == i64(0), index == i64(count - 1))


# -- all rows at a time -----------------------------------------------------------------------------------------------
def _whole(chain: Chain, kernel: MicroKernel, firsts: list[EmitContext], second: EmitContext) -> None:
    width = _width(second, int(firsts[0].extent["n"]))
    height = whole_rows(len(firsts), width, kernel["mr"])
    tiles, part = Nest(second).tiles, i64(height // kernel["mr"])
    parts = I.Bind(tirx.max(tirx.floordiv(tiles + part - i64(1), part), i64(1)))
    with _kept(chain, second, height // kernel["mr"], width) as windows, I.serial(i64(0), parts) as index:
        start = bound(index * part)
        rest = Block(start, bound(tirx.min(part, tiles - start)), index == parts - i64(1))
        own = windows(start * i64(kernel["mr"]), i64(0))

        def product(nest: Nest, tiles: Share, panels: Share, is_last: TirExpr) -> None:
            first, last = (I.Bind(rest.start + tile) for tile in tiles)
            nest.product((first, last), panels, tirx.And(is_last, rest.ends))

        def share(nests: Sequence[Nest], thread: TirExpr) -> None:
            for nest in nests:
                nest.share(thread, product)

        for phase in (firsts, [second]):
            nests = [Nest(_with(context, own), rest.count) for context in phase]
            on_threads(second.task.threads, partial(share, nests))
