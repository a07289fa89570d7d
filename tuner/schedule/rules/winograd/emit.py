"""TensorIR for convolutions by minimal filtering, F(2 x 2, 3 x 3):

for block of `lines` rows of tiles:             threads have contiguous shares of all rows
  for channel of the image:
    [tiles are picked from lines of the image]  transforms.py
    [and transformed: V, 16 panels of tiles]
  for point in 16:
    for tile of mr rows of the weight:          the register tile of x86_contraction
      for panel of nv vectors in block
  for channel of the output:
    [sums are transformed back and written, through the elementwise stages]


"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import on_threads, share_of
from tuner.schedule.product.frame import Chunk, Panel, Rows
from tuner.schedule.product.nest import Block, Nest
from tuner.schedule.product.operands.frame import FormFrame
from tuner.schedule.rules.winograd.pattern import POINTS
from tuner.schedule.rules.winograd.products import as_product, convolution_of
from tuner.schedule.rules.winograd.transforms import Transforms
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound_unless_known
from tuner.schedule.vector.memory import Vectors, workspace


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    own = convolution_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        lanes = task.known_target.hardware.lanes()
        frame = WinogradFrame(
            task, own.form, as_product(kernel, 1), {}, function.buffers, Vectors(lanes), function=function, whole=task
        )
        tiles = kernel["lines"] * own.tiles_in_row
        panels = -(-tiles // frame.nr)
        extent = {"m": i64(own.kernels), "n": i64(panels * frame.nr), "k": i64(own.channels)}
        frame = replace(frame, extent=extent, weight=function.buffers[own.weight])
        rows = I.Bind(frame.size(own.form.n[0]) * i64(own.tile_rows))
        on_threads(task.threads, lambda thread: _share(frame, kernel["lines"], panels, rows, thread))
    return function.get()


def _share(frame: WinogradFrame, lines: int, panels: int, rows: TirExpr, thread: TirExpr) -> None:
    """The blocks of one thread, of about as many rows of tiles each."""
    first, last = share_of(rows, thread, frame.task.threads) if frame.task.threads > 1 else (i64(0), rows)
    total = bound_unless_known(last - first)
    blocks = bound_unless_known(tirx.truncdiv(total + i64(lines - 1), i64(lines)))
    own, width = convolution_of(frame.task.workload), panels * frame.nr
    with (
        workspace((i64(POINTS * panels), i64(own.channels), i64(frame.nr))) as inputs,
        # Rows an odd number of cache lines apart.
        workspace((i64(POINTS * own.kernels), i64((width // frame.vectors.lanes | 1) * frame.vectors.lanes))) as sums,
        workspace((i64(POINTS), i64(width + frame.vectors.lanes))) as picked,
        I.serial(i64(0), blocks) as block,
    ):
        begin, end = (
            bound_unless_known(first + tirx.truncdiv(total * at, tirx.max(blocks, i64(1))))
            for at in (block, block + i64(1))
        )
        here = replace(frame, results=(sums, i64(0)))
        transforms = Transforms(here, own, panels, begin, end)
        transforms.forward(picked, inputs)
        with I.serial(i64(0), i64(POINTS)) as point:
            _Products(replace(here, point=point)).write(inputs, panels, transforms.vectors)
        transforms.backward(sums, picked)


@dataclass(frozen=True)
class WinogradFrame(FormFrame):
    """``weight`` [points * kernels, channels]; ``point``: which product of matrices it is."""

    weight: TirExpr = field(kw_only=True, default=None)
    point: TirExpr = field(kw_only=True, default=None)

    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.weight, (self.point * self.extent["m"] + row,)

    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        assert self.results is not None
        return self.results[0], (self.point * self.extent["m"] + row,)


class _Products(Nest):
    """One of the products of a block."""

    frame: WinogradFrame

    def write(self, inputs: TirExpr, panels: int, vectors: TirExpr) -> None:
        """``inputs`` [points * panels, channels, columns], of which the block has so many ``vectors``."""
        nv = self.kernel["nv"]
        full = I.Bind(tirx.truncdiv(vectors, i64(nv)))
        rest = I.Bind(vectors - full * i64(nv))
        base = I.Bind(self.frame.point * i64(panels))

        def panel(index: TirExpr, width: int) -> Panel:
            return Panel(index * i64(self.frame.nr), None, width, base + index, inputs, i64(0))

        def strip(each: Callable[[Panel], None]) -> None:
            with I.serial(i64(0), full) as index:
                each(panel(index, nv))
            for width in range(1, nv):
                with I.If(rest == i64(width)), I.Then():
                    each(panel(full, width))

        rows = Block(i64(0), i64(int(self.m) // self.mr), tirx.IntImm("bool", 1))
        self.write_tiles(strip, Chunk(i64(0), self.k, None, None), Rows(), rows)
