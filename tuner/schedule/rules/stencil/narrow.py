"""TensorIR for windows over narrow images: rows of an image share vectors.

Where a row of the output fills no more than half a vector, the rows of an image lie one behind the other in the copy,
with no more padding between them than windows reach, and one step leads from any output to an element of its window:

for image:                                      threads have contiguous shares of them
  [rows are copied to planes: one for each residue modulo the steps of windows, with its padding between the rows]
  for tap: [all vectors of the image, from one row to the next]
  [lanes between two rows are left out, and the others written, through the elementwise stages]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Axis, Read, axes_of, reads
from tuner.program.language.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import NOTHING, Index, Nest, Reader, addition, write_outputs
from tuner.schedule.loops.shares import Share, in_shares, position_of, product_of
from tuner.schedule.rules.stencil.pattern import Slide, Tap, WindowProgram
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant, loaded, register_type
from tuner.schedule.vector.memory import loaded_where, shuffled, workspace

MAX_VECTORS = 8
"""Of an image: all are accumulated at once."""
MAX_TAPS = 400
"""Elements of windows in the code of an image."""


@dataclass(frozen=True)
class Planes:
    """Where the elements of an image lie in its copy: that of row ``y * row.stride + u`` and column ``x * column.stride
    + v`` of the padded image, in plane (u, v), at ``y * pitch + x``.

    ``height``, ``width``: of an output; ``size``: elements of a plane; ``vectors``: of the outputs.
    """

    row: Slide
    column: Slide
    height: int
    width: int
    rows: int
    columns: int
    pitch: int
    size: int
    vectors: int

    @property
    def count(self) -> int:
        return self.row.stride * self.column.stride

    def at(self, down: int, right: int) -> int:
        """Where the element lies that is so far from the first one of the padded image."""
        (y, u), (x, v) = divmod(down, self.row.stride), divmod(right, self.column.stride)
        return (u * self.column.stride + v) * self.size + y * self.pitch + x

    def source(self, number: int) -> int:
        """Where an output of that number lies among those that are computed."""
        y, x = divmod(number, self.width)
        return y * self.pitch + x


def planes_of(workload: Workload, program: WindowProgram, lanes: int) -> Planes | None:
    """The planes of images whose rows share vectors of ``lanes``; None where they do not."""
    if len(program.slides) != 2 or not _is_of_images(workload, program):
        return None
    row, column = program.slides
    dims = workload.tensors[program.read.tensor].dims
    sizes = [workload.sizes[slide.axis].constant for slide in program.slides]
    wholes = [dims[slide.dim].constant for slide in program.slides]
    height, width, rows, columns = (size or 0 for size in (*sizes, *wholes))
    if min(height, width, rows, columns) < 1 or 2 * width > lanes or columns > lanes:
        return None
    pitch = max(width, *(_pitch(column, width, columns, residue) for residue in range(column.stride)))
    vectors = -(-((height - 1) * pitch + width) // lanes)
    if vectors > MAX_VECTORS or vectors * len(program.taps) > MAX_TAPS:
        return None
    # What vectors read past the last row, and what the copy of a row writes past it, is in the plane.
    most = vectors * lanes + row.reach // row.stride * pitch + column.reach // column.stride
    stored = (height + row.reach // row.stride) * pitch + lanes
    size = -(-max(most, stored) // lanes) * lanes
    return Planes(row, column, height, width, rows, columns, pitch, size, vectors)


def _is_of_images(workload: Workload, program: WindowProgram) -> bool:
    """Whether outputs are whole images, one element behind the other, and all else is the same in one of them."""
    stages, inner = (program.stage, *program.after), tuple(slide.axis for slide in program.slides)
    others = [read for stage in stages for read in reads(stage.body) if read.tensor in workload.tensors]
    outside = {read for read in others if read != program.read and read.tensor in workload.program.inputs}
    bare = {node.name for stage in stages for node in values(stage.body) if isinstance(node, Axis)}
    slid = [slide.dim for slide in program.slides]
    is_plain = all(isinstance(index, Axis) for dim, index in enumerate(program.read.indices) if dim not in slid)
    return (
        is_plain
        and all(stage.axes[-2:] == inner for stage in stages)
        and not any(axes_of(read) & set(inner) for read in outside)
        and not bare & set(inner)
    )


def _pitch(column: Slide, width: int, columns: int, residue: int) -> int:
    """From a row of a plane to the next: the padding on the right of a row is that on the left of the next one."""
    needed = width + (column.reach - residue) // column.stride if residue <= column.reach else width
    places = [column.stride * x + residue + column.offset for x in range(needed)]
    return needed - min(sum(place < 0 for place in places), sum(place >= columns for place in places))


class ImageNest(Nest):
    """Writes the loop over images."""

    def __init__(
        self, task: SearchTask, program: WindowProgram, planes: Planes, kernel: MicroKernel, function: KernelFunction
    ) -> None:
        super().__init__(task, kernel, function, program.lanes(task))
        self.program, self.planes, self.stage = program, planes, program.stage
        self.source = task.workload.tensors[program.read.tensor]
        self.padding = dict(task.workload.padding).get(self.source.name)
        self.kept = register_type(self.source.dtype)

    def emit(self) -> None:
        counts = {axis: self.extents[axis] for axis in self.program.outer}

        def images(share: Share) -> None:
            elements = self.planes.count * self.planes.size
            with workspace([i64(elements)], self.kept) as copy:
                with I.serial(i64(0), i64(elements // self.lanes)) as number:
                    I.buffer_store(copy, self._outside(), [self.vectors.ramp(number * i64(self.lanes))])
                with I.serial(*share) as number:
                    starts = position_of(number, counts)
                    self._fill(copy, starts)
                    self._compute(copy, starts)

        in_shares(product_of(counts), self.threads, images)

    def _outside(self) -> TirExpr:
        return constant(self.padding or 0, self.kept, self.lanes)

    def _at(self, starts: Index, first: int, tap: Tap, limit: TirExpr | None = None) -> Reader:
        """A reader of vectors of an image from the output of number ``first`` on."""
        row, column = self.planes.row.axis, self.planes.column.axis
        index = {**starts, row: i64(0), column: i64(first), **{axis: i64(value) for axis, value in tap.items()}}
        return self.reader(index, self.lanes, column, limit)

    # -- the copy -----------------------------------------------------------------------------------------------------
    def _fill(self, copy: TirExpr, starts: Index) -> None:
        """Row after row: each writes a whole vector, of which the next one takes back what is its own."""
        planes, buffer = self.planes, self.function.buffers[self.source.name]
        at = self._at(starts, 0, dict.fromkeys(self.stage.reduce_axes, 0)).indices(self.program.read)
        whole = self.vectors.mask(i64(0), i64(planes.columns))
        for number in range(planes.rows):
            down = number - planes.row.offset
            if not 0 <= down <= planes.row.span(planes.height) - 1:
                continue
            at[planes.row.dim] = i64(number)
            place = [*at[: planes.column.dim], self.vectors.ramp(i64(0))]
            row = bound(loaded(bound(loaded_where(whole, buffer, place)), self.source.dtype))
            for residue in range(planes.column.stride):
                self._put(copy, row, down, residue)

    def _put(self, copy: TirExpr, row: TirExpr, down: int, residue: int) -> None:
        """What a row of the image has of one residue, in its plane."""
        planes, column = self.planes, self.planes.column
        span = column.span(planes.width)
        places = [place for place in range(planes.columns) if (place - column.offset) % column.stride == residue]
        places = [place for place in places if 0 <= place - column.offset < span]
        if not places:
            return
        lanes = [*places, *itertools.repeat(self.lanes, self.lanes - len(places))]
        value = bound(shuffled([row, bound(self._outside())], lanes))
        first = planes.at(down, places[0] - column.offset)
        I.buffer_store(copy, value, [self.vectors.ramp(i64(first))])

    # -- the computation ----------------------------------------------------------------------------------------------
    def _compute(self, copy: TirExpr, starts: Index) -> None:
        totals = self._totals(copy, starts)
        count = self.planes.height * self.planes.width
        for first in range(0, count, self.lanes):
            lanes = [self.planes.source(number) for number in range(first, min(first + self.lanes, count))]
            vectors = sorted({lane // self.lanes for lane in lanes})
            number = {vector: place for place, vector in enumerate(vectors)}
            lanes = [number[lane // self.lanes] * self.lanes + lane % self.lanes for lane in lanes]
            lanes += [0] * (self.lanes - len(lanes))
            value = bound(shuffled([bound(totals[vector][self.vectors.ramp(0)]) for vector in vectors], lanes))
            limit = None if first + self.lanes <= count else i64(count)
            write_outputs((self.stage, *self.program.after), value, self._at(starts, first, {}, limit))

    def _totals(self, copy: TirExpr, starts: Index) -> list[TirExpr]:
        """The outputs, with what lies between rows: every vector with every element of its window."""
        computed, ramp = self.types.reduced_type(self.stage), self.vectors.ramp(0)
        totals = [I.alloc_buffer((self.lanes,), computed) for _ in range(self.planes.vectors)]
        for number, tap in enumerate(map(dict, self.program.taps)):
            reader = self._at(starts, 0, tap)
            known = {read: reader.read(read) for read in self._others()}
            for vector, total in enumerate(totals):
                seen = known | {self.program.read: self._window(copy, tap, vector)}
                evaluator = replace(reader.evaluator(NOTHING), read=partial(_known, seen))
                if number:
                    value = addition(self.stage, computed, evaluator)(bound(total[ramp]))
                else:
                    value = bound(evaluator.value(self.stage.body, computed))
                I.buffer_store(total, value, [ramp])
        return totals

    def _others(self) -> Iterator[Read]:
        return (read for read in dict.fromkeys(reads(self.stage.body)) if read != self.program.read)

    def _window(self, copy: TirExpr, tap: Tap, vector: int) -> TirExpr:
        planes = self.planes
        first = planes.at(planes.row.step(tap), planes.column.step(tap)) + vector * self.lanes
        return bound(copy[self.vectors.ramp(i64(first))])


def _known(seen: dict[Read, TirExpr], read: Read) -> TirExpr:
    return seen[read]
