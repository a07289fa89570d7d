"""What the rule for windows takes. No compiler needed.

``out[.., p, q] = reduce(r, s) f(x[.., a*p + d*r + k, b*q + e*s + l], ...)``: one reduction over windows of constant
extents, all of whose axes move over one tensor, and elementwise stages on its result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Axis, Read, axes_of, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import dim_of, is_plain, lies_along, one_reduction
from tuner.schedule.layout import PackLayout
from tuner.schedule.loops.estimates import lanes_for
from tuner.schedule.rule import need, pattern

MAX_TAPS = 128
"""Positions of a window; all are unrolled."""
MAX_STRIDE = 4
"""Along the vectors: a load for each residue."""

Tap = Mapping[str, int]
"""A position in the window: the value of each reduced axis."""


@dataclass(frozen=True)
class Slide:
    """A dim of the tensor that windows move over, at ``stride * axis + dilation * window + offset``.

    ``window`` is None, and ``size`` 1, for an axis along which there is no window: channels that lie last.
    """

    dim: int
    axis: str
    window: str | None
    size: int
    stride: int = 1
    dilation: int = 1
    offset: int = 0

    @property
    def reach(self) -> int:
        """From the first element of a window to the last."""
        return self.dilation * (self.size - 1)

    def span(self, positions: Any) -> Any:
        """Elements that windows at so many neighbouring positions touch, one at least: numbers of any kind."""
        return self.stride * (positions - 1) + (self.reach + 1)

    def step(self, tap: Tap) -> int:
        """Elements from the first one of the window to that of ``tap``."""
        return self.dilation * tap[self.window] if self.window is not None else 0


@dataclass(frozen=True)
class WindowProgram:
    """``slides``: the dims of ``read`` that tiles span, outermost first; the last one is the dim that vectors run
    along. ``outer``: the other axes of the output. ``after``: elementwise stages on the result of ``stage``.
    ``packed``: reads of constants that do not lie along the vectors, and are packed so."""

    stage: Stage
    after: tuple[Stage, ...]
    read: Read
    slides: tuple[Slide, ...]
    outer: tuple[str, ...]
    taps: tuple[tuple[tuple[str, int], ...], ...]
    packed: tuple[Read, ...] = ()

    @property
    def vector(self) -> Slide:
        return self.slides[-1]

    @property
    def block(self) -> Slide | None:
        """The axis that is cut into blocks, if there is one beside that of the vectors."""
        return self.slides[0] if len(self.slides) > 1 else None

    @property
    def inner(self) -> Slide | None:
        """The axis of which several positions are held in registers."""
        return self.slides[-2] if len(self.slides) > 1 else None

    @property
    def phases(self) -> tuple[int, ...]:
        """Residues, along the vectors, that the windows read."""
        vector = self.vector
        return tuple(sorted({vector.step(dict(tap)) % vector.stride for tap in self.taps}))

    def key(self, read: Read, tap: Tap) -> tuple[Read, tuple[int, ...]]:
        """What a read is known by at a position in the window."""
        return read, tuple(tap[axis] for axis in self.stage.reduce_axes if axis in axes_of(read))

    def lanes(self, task: SearchTask) -> int:
        """Elements of a vector: of 8 bytes if the reduction or what is made of it has such."""
        types, read = task.workload.element_types, task.workload.tensors[self.read.tensor]
        computed = [types.reduced_type(self.stage), *(types.type_of(stage.body) for stage in self.after)]
        return lanes_for(task, [*computed, read.dtype])

    def layout(self, task: SearchTask, read: Read) -> PackLayout:
        """How the tensor of a packed read is packed: panels of a vector of its elements along the vectors' axis."""
        dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[read.tensor].dims)
        along = self.along(read)
        return PackLayout(self.lanes(task), dims=dims, rows=(along,), steps=others(along, len(dims)))

    def along(self, read: Read) -> int:
        """The dim of a packed read that its vectors have neighbours of."""
        return read.indices.index(Axis(self.vector.axis))


def others(dim: int, count: int) -> tuple[int, ...]:
    """All of ``count`` dims but one."""
    return (*range(dim), *range(dim + 1, count))


@pattern
def match(workload: Workload) -> WindowProgram:
    """The windows of a workload."""
    stage, after = one_reduction(workload)
    # It would be computed again for each element of a window.
    need(stage in workload.program.stages, "a stage comes before the reduction")
    sizes = {axis: workload.sizes[axis].constant or 0 for axis in stage.reduce_axes}
    elements, vector = math.prod(sizes.values()), stage.axes[-1]
    need(elements != 0, "the extents of a window are not constant")
    need(elements <= MAX_TAPS, f"a window of {elements} elements is too large to be unrolled")
    moving = {axis for axis, size in sizes.items() if size != 1}
    slid = {read: _slides(stage, read, sizes, moving) for read in reads(stage.body)}
    found = {read: slides for read, slides in slid.items() if slides}
    need(len(found) == 1, f"{len(found)} tensors are read through windows, not one")
    ((read, slides),) = found.items()
    is_moved = {slide.window for slide in slides} >= moving
    need(is_moved, f"not every reduced axis moves a window over {read.tensor}: it is a contraction")
    is_last = slides[-1].axis == vector and slides[-1].dim == len(read.indices) - 1
    need(is_last, f"{read.tensor} does not lie along {vector}")
    need(slides[-1].stride <= MAX_STRIDE, f"windows are more than {MAX_STRIDE} elements apart")
    need(not any(map(reads, read.indices)), f"{read.tensor} is read where an index tensor says")
    packed = tuple(each for each in dict.fromkeys(reads(stage.body)) if _is_packed(workload, each, vector))
    for other in (each for one in (stage, *after) for each in reads(one.body) if each != read):
        is_padded = other.tensor in dict(workload.padding)
        need(not is_padded, f"{other.tensor} is padded and not read through windows")
        need(other in packed or lies_along(other, vector), f"{other.tensor} does not lie along {vector}")
    tiled = {slide.axis for slide in slides}
    outer = tuple(axis for axis in stage.axes if axis not in tiled)
    every = itertools.product(*map(range, sizes.values()))
    taps = tuple(tuple(zip(sizes, tap, strict=True)) for tap in every)
    return WindowProgram(stage, after, read, slides, outer, taps, packed)


def _is_packed(workload: Workload, read: Read, vector: str) -> bool:
    """Whether a read does not lie along the vectors, and is of a constant that can: one of known size, which is read
    nowhere else, each dim along an axis."""
    if lies_along(read, vector) or read.tensor not in workload.constants or not is_plain(read):
        return False
    found = [each for each in workload.program.reads if each.tensor == read.tensor]
    is_known = all(dim.constant for dim in workload.tensors[read.tensor].dims)
    return len(set(found)) == 1 and read.indices.count(Axis(vector)) == 1 and is_known


def _slides(stage: Stage, read: Read, sizes: Mapping[str, int], moving: set[str]) -> tuple[Slide, ...]:
    """The dims of ``read`` that windows move over, and the one along the vectors; none if it is no such read."""
    slides, others = [], []
    for number, index in enumerate(read.indices):
        if not axes_of(index) & {*moving, stage.axes[-1]}:
            others.append(index)
            continue
        dim = dim_of(index, stage.axes, stage.reduce_axes)
        if dim is None:
            return ()
        size = 1 if dim.window is None else sizes[dim.window]
        slides.append(Slide(number, dim.place, dim.window, size, dim.step, dim.dilation, dim.first))
    axes = [slide.axis for slide in slides]
    is_apart = len(set(axes)) == len(axes) and not any(axes_of(index) & set(axes) for index in others)
    return tuple(slides) if is_apart and any(slide.window in moving for slide in slides) else ()
