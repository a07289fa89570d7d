"""How large iteration spaces are cut up, so that what is evaluated at a time stays small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tuner.program.language.expr import Axis, reads
from tuner.program.language.notation import Stage
from tuner.program.language.program import Program

MAX_ELEMENTS = 2**22
"""Elements of 8 bytes that the temporaries of a block, or the intermediates of a program, may take at a time."""

AHEAD_SHARE = 0.05
"""Of all points, at most, those of stages that are computed before the others for each axis that these share."""
SAMPLE_RUN, SAMPLE_RUNS = 16, 32
"""Points of a box of a sample, and the number of boxes that are enough: larger ones are taken rather than more, since
each reads what all of them share, such as weights."""

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
    longest axis, or blocks of it and the next longest ones where runs would be too many; the first one at the start of
    all axes, the last one at their end, the others anywhere, the same ones every time. An axis of 0 has none."""
    whole = math.prod(sizes.values())
    points = min(whole, max(2, int(share * whole)))
    wanted = max(1, min(SAMPLE_RUN, points // 2), points // SAMPLE_RUNS)
    extent = dict.fromkeys(sizes, 1)
    for axis in sorted(sizes, key=lambda axis: -sizes[axis]):
        extent[axis] = min(sizes[axis], wanted)
        wanted = max(1, wanted // max(extent[axis], 1))
    box_points = math.prod(extent.values())
    rng = np.random.default_rng(list(sizes.values()))
    result = []
    for number in range(-(-points // box_points) if box_points else 0):
        corner = {axis: int(rng.integers(0, size)) for axis, size in sizes.items()}
        corner = {axis: (0, size - 1, corner[axis])[min(number, 2)] for axis, size in sizes.items()}
        start = {axis: min(at, sizes[axis] - extent[axis]) for axis, at in corner.items()}
        result.append({axis: (at, at + extent[axis]) for axis, at in start.items()})
    return result


def sliced(program: Program, sizes: Mapping[str, int]) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Stages to compute as a whole before all others, and the axes that the others share: all of them keep these, and
    read each other at them as they are, so that slices of them are independent.

    None is computed ahead where all stages share an axis. Else it is what depends on none of the others and is a small
    part of the work: where the sequences of a ragged batch begin.
    """
    if shared := _shared(program, program.stages):
        return (), shared
    points = {stage: math.prod(sizes[axis] for axis in (*stage.axes, *stage.reduce_axes)) for stage in program.stages}

    def is_small(axis: str) -> bool:
        without = sum(count for stage, count in points.items() if axis not in stage.axes)
        return without <= AHEAD_SHARE * sum(points.values())

    axes = [axis for axis in program.stages[-1].axes if _is_closed(program, axis) and is_small(axis)]
    ahead = tuple(stage for stage in program.stages if not set(axes) <= set(stage.axes))
    if any(stage.tensor in program.outputs for stage in ahead):
        return (), ()
    return ahead, _shared(program, [stage for stage in program.stages if stage not in ahead])


def _is_closed(program: Program, axis: str) -> bool:
    """Whether no stage without an axis reads one that has it."""
    own = {stage.tensor for stage in program.stages if axis in stage.axes}
    return not any(
        read.tensor in own for stage in program.stages if stage.tensor not in own for read in reads(stage.body)
    )


def _shared(program: Program, stages: Sequence[Stage]) -> tuple[str, ...]:
    own = {stage.tensor: stage.axes for stage in stages}

    def is_shared(axis: str) -> bool:
        return all(axis in axes for axes in own.values()) and all(
            isinstance(index, Axis) and index.name == axis
            for stage in stages
            for read in reads(stage.body)
            if read.tensor in own
            for index, kept in zip(read.indices, own[read.tensor], strict=True)
            if kept == axis
        )

    return tuple(axis for axis in program.axes if is_shared(axis)) if own else ()
