"""How large iteration spaces are cut up, so that what is evaluated at a time stays small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tuner.program.language.expr import Axis
from tuner.program.language.program import Program

MAX_ELEMENTS = 2**22
"""Elements of 8 bytes that the temporaries of a block, or the intermediates of a program, may take at a time."""

SAMPLE_RUN, SAMPLE_RUNS = 16, 64
"""Points of a run of a sample, and the number of runs that are enough: longer ones are taken rather than more."""

Box = Mapping[str, tuple[int, int]]
"""The first value of each axis and the one after its last."""


def lengths(box: Box, axes: Sequence[str]) -> list[int]:
    """The shape of an array over ``axes``."""
    return [box[axis][1] - box[axis][0] for axis in axes]


def block_of(sizes: Mapping[str, int], cost: Callable[[Mapping[str, int]], float]) -> dict[str, int]:
    """The whole of ``sizes``, halved along the axis that saves most until ``cost`` is within MAX_ELEMENTS."""
    block = dict(sizes)
    while cost(block) > MAX_ELEMENTS and max(block.values(), default=1) > 1:
        halves = {axis: block | {axis: -(-size // 2)} for axis, size in block.items() if size > 1}
        best = min(halves, key=lambda axis: (cost(halves[axis]), -block[axis]))
        block = halves[best]
    return block


def tiles(whole: Box, block: Mapping[str, int], axes: Sequence[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Boxes of ``axes`` that cover ``whole`` in steps of ``block``. An empty axis has none."""
    steps = [range(*whole[axis], max(block[axis], 1)) for axis in axes]
    for corner in itertools.product(*steps):
        yield {
            axis: (start, min(start + block[axis], whole[axis][1])) for axis, start in zip(axes, corner, strict=True)
        }


def sampled(sizes: Mapping[str, int], share: float) -> list[dict[str, tuple[int, int]]]:
    """Boxes over the axes of ``sizes`` that are about ``share`` of all points, and two points at least: runs along the
    longest axis, the first one at the start of all axes, the last one at their end, the others anywhere, the same ones
    every time. An axis of 0 has none."""
    whole = math.prod(sizes.values())
    points = min(whole, max(2, int(share * whole)))
    along = max(sizes, key=lambda axis: sizes[axis])
    run = min(sizes[along], max(1, min(SAMPLE_RUN, points // 2), points // SAMPLE_RUNS))
    rng = np.random.default_rng(list(sizes.values()))
    result = []
    for number in range(-(-points // run) if run else 0):
        corner = {axis: int(rng.integers(0, size)) for axis, size in sizes.items()}
        corner = {axis: (0, size - 1, corner[axis])[min(number, 2)] for axis, size in sizes.items()}
        box = {axis: (at, at + 1) for axis, at in corner.items()}
        start = min(corner[along], sizes[along] - run)
        result.append({**box, along: (start, start + run)})
    return result


def shared_axes(program: Program) -> tuple[str, ...]:
    """Axes that every stage keeps and that intermediates are read at as they are: slices of them are independent."""

    def is_shared(axis: str) -> bool:
        kept = all(axis in stage.axes for stage in program.stages)
        return kept and all(
            isinstance(index, Axis) and index.name == axis
            for read in program.reads
            if read.tensor in program.stage
            for index, own in zip(read.indices, program.stage[read.tensor].axes, strict=True)
            if own == axis
        )

    return tuple(axis for axis in program.axes if is_shared(axis))
