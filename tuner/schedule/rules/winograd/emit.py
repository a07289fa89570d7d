"""TensorIR for convolutions by minimal filtering, F(2 x 2, 3 x 3):

for block of `lines` rows of tiles:             threads have contiguous shares of all rows
  for channel of the image:
    [tiles are picked from lines of the image]  transforms.py
    [and transformed: V, 16 panels of tiles]
  for point in 16:
    for tile of mr rows of the weight:          the register tile
      for panel of nv vectors in block
  for channel of the output:
    [sums are transformed back and written, through the elementwise stages]


"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import on_threads, share_of
from tuner.schedule.product.context import EmitContext, Indexing, Panel, context_of
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.readers import PackedAhead, RowReader
from tuner.schedule.rules.winograd.pattern import (
    POINTS,
    Convolution,
    PointRows,
    PointSums,
    Products,
    as_product,
    convolution_of,
)
from tuner.schedule.rules.winograd.transforms import Transforms
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound_unless_known
from tuner.schedule.vector.memory import workspace


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    own = convolution_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        context = _context(task, own, kernel, function)
        panels = int(context.extent["n"]) // context.nr
        rows = I.Bind(context.parts.size(own.form.n[0]) * i64(own.tile_rows))
        on_threads(task.threads, lambda thread: _share(context, own, kernel["lines"], panels, rows, thread))
    return function.get()


def _context(task: SearchTask, own: Convolution, kernel: MicroKernel, function: KernelFunction) -> EmitContext:
    """What the products of a block are written by."""
    nr = kernel["nv"] * task.known_target.hardware.lanes()
    panels = -(-kernel["lines"] * own.tiles_in_row // nr)
    extent = {"m": i64(own.kernels), "n": i64(panels * nr), "k": i64(own.channels)}
    context = context_of(task, Products(own, kernel["lines"]).product, as_product(kernel, 1), function, extent)
    return replace(context, indexing=Indexing(own.form, function, task.workload, task.workload))


def _share(context: EmitContext, own: Convolution, lines: int, panels: int, rows: TirExpr, thread: TirExpr) -> None:
    """The blocks of one thread, of about as many rows of tiles each."""
    threads, lanes = context.task.threads, context.vectors.lanes
    first, last = share_of(rows, thread, threads) if threads > 1 else (i64(0), rows)
    total = bound_unless_known(last - first)
    blocks = bound_unless_known(tirx.truncdiv(total + i64(lines - 1), i64(lines)))
    width = panels * context.nr
    with (
        workspace((i64(POINTS * panels), i64(own.channels), i64(context.nr))) as inputs,
        # Rows an odd number of cache lines apart.
        workspace((i64(POINTS * own.kernels), i64((width // lanes | 1) * lanes))) as sums,
        workspace((i64(POINTS), i64(width + lanes))) as picked,
        I.serial(i64(0), blocks) as block,
    ):
        begin, end = (
            bound_unless_known(first + tirx.truncdiv(total * at, tirx.max(blocks, i64(1))))
            for at in (block, block + i64(1))
        )
        transforms = Transforms(context, own, panels, begin, end)
        transforms.forward(picked, inputs)
        with I.serial(i64(0), i64(POINTS)) as point:
            _product(_at_point(context, own, sums, point), inputs, point * i64(panels), transforms.vectors)
        transforms.backward(sums, picked)


def _at_point(context: EmitContext, own: Convolution, sums: TirExpr, point: TirExpr) -> EmitContext:
    left, result = PointRows(own.weight, point=point), PointSums(buffer=sums, point=point)
    return replace(context, left=left, result=result)


def _product(context: EmitContext, inputs: TirExpr, start: TirExpr, vectors: TirExpr) -> None:
    """One of the products of a block. ``inputs`` [points * panels, channels, columns], of which the block has so many
    ``vectors`` from panel ``start`` on."""
    nest, nv = Nest(context), context.kernel["nv"]
    full = I.Bind(tirx.truncdiv(vectors, i64(nv)))
    rest = I.Bind(vectors - full * i64(nv))
    base = I.Bind(start)

    def panel(index: TirExpr, width: int) -> Panel:
        reader = PackedAhead(inputs, base + index, i64(0))
        return Panel(index * i64(context.nr), None, width, index, reader)

    def strip(each: Callable[[Panel], None]) -> None:
        with I.serial(i64(0), full) as index:
            each(panel(index, nv))
        for width in range(1, nv):
            with I.If(rest == i64(width)), I.Then():
                each(panel(full, width))

    rows = Block(i64(0), i64(int(nest.m) // nest.mr), tirx.IntImm("bool", 1))
    nest.write_tiles(strip, nest.whole, RowReader(), rows)
