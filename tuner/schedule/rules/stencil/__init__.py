"""Small windows that move over a tensor: pooling, depthwise convolution and stencils, on any number of axes.

The output is cut into tiles. What a tile reads is copied first, with its padding and so that all loads are contiguous;
then the windows are unrolled over a register block of a few positions and vectors. Vectors run along the last axis,
spatial or of channels; a weight that does not lie along it is packed. Axes of a micro-kernel:

===========  ==========================================================================================================
``chunk``    vectors of a tile along the last axis
``block``    values of a tile of the first axis that windows move along; it spans the others as a whole
``rows``     positions of a register block along the last axis but that of the vectors: they share loads
``vectors``  vectors of a register block
``direct``   2: a tile is not copied; its vectors are channels, and read where they lie (``direct``)
``merged``   2: rows of a narrow image share vectors, and the image is a tile (``narrow``); no other axis matters
===========  ==========================================================================================================

Threads share the tiles. No choice depends on a shape that is dynamic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Workload
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout
from tuner.schedule.loops.estimates import Floats, LoopRule, register_check, volume
from tuner.schedule.rule import Extents
from tuner.schedule.rules.stencil.direct import DirectNest, check_direct, is_read_in_place
from tuner.schedule.rules.stencil.emit import TileNest
from tuner.schedule.rules.stencil.estimate import bytes_of, cycles_of, planes_for
from tuner.schedule.rules.stencil.narrow import ImageNest
from tuner.schedule.rules.stencil.pattern import Slide, WindowProgram, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

CHUNKS, BLOCKS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)
MAX_UNROLLED = 400
"""Elements of windows in the code of a register block."""


class Stencil(LoopRule[WindowProgram]):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "windows"
    find = staticmethod(match)

    def named(self, workload: Workload, found: WindowProgram) -> Mapping[str, str]:
        roles = dict.fromkeys(workload.program.axes, "outer") | {slide.axis: "tile" for slide in found.slides}
        return roles | {found.vector.axis: "vector"} | dict.fromkeys(found.stage.reduce_axes, "window")

    def workspace_bytes(self, task: SearchTask) -> int:
        program = self.found(task)
        sizes, lanes = task.workload.axis_sizes(task.largest_dims), program.lanes(task)
        elements = (CHUNKS[-1] * lanes + program.vector.reach + lanes) * len(program.phases)
        for slide in program.slides[:-1]:
            size = min(sizes[slide.axis], BLOCKS[-1]) if slide is program.block else sizes[slide.axis]
            elements *= slide.span(max(size, 1))
        dtype = task.workload.tensors[program.read.tensor].dtype
        return task.threads * elements * max(DTYPES[dtype].bytes, 4)

    def axes(self, task: SearchTask, found: WindowProgram) -> tuple[Axis, ...]:
        merged = (1, 2) if planes_for(task, found) else (1,)
        direct = (1, 2) if is_read_in_place(task.workload, found) else (1,)
        return (
            Axis("chunk", "vectors of a tile", _choices(task, found.vector, CHUNKS, found.lanes(task))),
            Axis("block", "values of a tile's first axis", _choices(task, found.block, BLOCKS, 1)),
            Axis("rows", "positions of a register block", (1,) if found.inner is None else (1, 2, 3, 4, 7, 8)),
            Axis("vectors", "vectors of a register block", (1, 2, 4)),
            Axis("direct", "a tile is read where it lies", direct, is_optional=True),
            Axis("merged", "rows of an image share vectors", merged, is_optional=True),
        )

    def space(self, task: SearchTask) -> SearchSpace:
        """Accumulators must fit into vector registers, and unrolled code into the cache of instructions."""
        found, check_registers = self.found(task), register_check(task, _held, "rows or vectors")

        def check(kernel: MicroKernel) -> None:
            check_registers(kernel)
            held, rows, block = _held(kernel), kernel["rows"], kernel["block"]
            if held > 1 and held * len(found.taps) > MAX_UNROLLED:
                raise IllegalKernel(f"{held * len(found.taps)} unrolled of {MAX_UNROLLED}: fewer rows or vectors")
            if kernel["vectors"] > kernel["chunk"]:
                raise IllegalKernel(f"vectors={kernel['vectors']} of chunk={kernel['chunk']}")
            if found.inner is found.block and rows > block > 1:
                raise IllegalKernel(f"rows={rows} of block={block}")
            if kernel.get("direct") > 1:
                check_direct(task.workload, found, kernel)

        space = super().space(task)
        first = {axis.name: axis.choices[0] for axis in space.axes}

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            return {**first, "merged": 2} if values["merged"] > 1 else dict(values)

        return replace(space, check=check, canonicalise=canonical)

    def wanted(self, task: SearchTask, found: WindowProgram) -> Iterable[Mapping[str, int]]:
        # Channels lie beside one another: a tile is narrow, and the image is high.
        chunk = 2 if found.vector.size == 1 else 8
        return ({"chunk": chunk, "block": 16, "rows": rows, "merged": 2} for rows in (4, 3, 2, 1))

    def cycles(self, task: SearchTask, found: WindowProgram, kernel: MicroKernel, extents: Extents) -> Floats:
        return cycles_of(task, found, kernel, extents)

    def sizes(self, task: SearchTask, found: WindowProgram, extents: Extents) -> list[Floats]:
        row, elements = volume((found.vector.axis,), extents), volume(found.stage.axes, extents)
        logarithms = [np.log2(size + 1) for size in (elements, bytes_of(task, found, extents), row)]
        return [*logarithms, row % found.lanes(task), np.full(len(row), len(found.taps) / found.vector.stride)]

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        found = self.found(task)
        return {read.tensor: found.layout(task, read) for read in found.packed}

    def write(self, task: SearchTask, found: WindowProgram, kernel: MicroKernel, function: KernelFunction) -> None:
        planes = planes_for(task, found) if kernel.get("merged") > 1 else None
        if planes is None:
            nest = DirectNest if kernel.get("direct") > 1 else TileNest
            nest(task, found, kernel, function).emit()
        else:
            ImageNest(task, found, planes, kernel, function).emit()


def _held(kernel: MicroKernel) -> int:
    """Accumulators of a register block."""
    return kernel["rows"] * kernel["vectors"]


def _choices(task: SearchTask, slide: Slide | None, choices: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Those up to the first that spans the whole axis, where its extent is known."""
    if slide is None:
        return choices[:1]
    size = task.workload.sizes[slide.axis].constant
    return tuple(choice for choice in choices if size is None or choice == 1 or choice * unit < 2 * size)
