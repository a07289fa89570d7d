"""What the rule for windows takes. No compiler needed.

``out[.., p, q] = reduce(r, s) f(x[.., a*p + d*r + k, b*q + e*s + l], ...)``: one reduction over windows of constant
extents, all of whose axes move over one tensor, and elementwise stages on its result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tuner.program.expr import Expr, Read, axes_of, reads
from tuner.program.indices import index_dim
from tuner.program.notation import Stage
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import stride
from tuner.schedule.loops.reductions import one_reduction
from tuner.schedule.rule import NoMatch, matched
from tuner.schedule.tir import TirExpr

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

    def step(self, tap: Tap) -> int:
        """Elements from the first one of the window to that of ``tap``."""
        return self.dilation * tap[self.window] if self.window is not None else 0


@dataclass(frozen=True)
class WindowProgram:
    """``slides``: the dims of ``read`` that tiles span, outermost first; the last one is the dim that vectors run
    along. ``outer``: the other axes of the output. ``after``: elementwise stages on the result of ``stage``."""

    stage: Stage
    after: tuple[Stage, ...]
    read: Read
    slides: tuple[Slide, ...]
    outer: tuple[str, ...]
    taps: tuple[tuple[tuple[str, int], ...], ...]

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


@lru_cache(maxsize=1024)
def match(workload: Workload) -> WindowProgram | NoMatch:
    """The windows of a workload, or why it is not made of them."""
    parts = one_reduction(workload)
    if isinstance(parts, NoMatch):
        return parts
    problem = _size_problem(workload, parts[0])
    return NoMatch(problem) if problem else _windows(workload, *parts)


def window_program_of(workload: Workload) -> WindowProgram:
    """The windows of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


# -- what is refused ----------------------------------------------------------------------------------------------
def _size_problem(workload: Workload, stage: Stage) -> str | None:
    sizes = [workload.sizes[axis].constant for axis in stage.reduce_axes]
    if any(size is None or size < 1 for size in sizes):
        return "the extents of a window are not constant"
    taps = math.prod(size or 0 for size in sizes)
    return f"a window of {taps} elements is too large to be unrolled" if taps > MAX_TAPS else None


# -- windows ------------------------------------------------------------------------------------------------------
def _windows(workload: Workload, stage: Stage, after: tuple[Stage, ...]) -> WindowProgram | NoMatch:
    moving = {axis for axis in stage.reduce_axes if workload.sizes[axis].constant != 1}
    slid = {read: _slides(workload, stage, read, moving) for read in reads(stage.body)}
    found = {read: slides for read, slides in slid.items() if slides}
    if len(found) != 1:
        return NoMatch(f"{len(found)} tensors are read through windows, not one")
    ((read, slides),) = found.items()
    if {slide.window for slide in slides} & moving != moving:
        return NoMatch(f"not every reduced axis moves a window over {read.tensor}: it is a contraction")
    if slides[-1].axis != stage.axes[-1] or slides[-1].dim != len(read.indices) - 1:
        return NoMatch(f"{read.tensor} does not lie along {stage.axes[-1]}")
    if slides[-1].stride > MAX_STRIDE:
        return NoMatch(f"windows are more than {MAX_STRIDE} elements apart")
    problem = _other_problem(workload, (stage, *after), read)
    if problem:
        return NoMatch(problem)
    tiled = {slide.axis for slide in slides}
    outer = tuple(axis for axis in stage.axes if axis not in tiled)
    return WindowProgram(stage, after, read, slides, outer, tuple(_taps(workload, stage)))


def _slides(workload: Workload, stage: Stage, read: Read, moving: set[str]) -> tuple[Slide, ...]:
    """The dims of ``read`` that windows move over, and the one along the vectors; none if it is no such read."""
    slides = []
    for dim, index in enumerate(read.indices):
        if not axes_of(index) & (moving | {stage.axes[-1]}):
            continue
        slide = _slide(workload, stage, dim, index)
        if slide is None:
            return ()
        slides.append(slide)
    axes = [slide.axis for slide in slides]
    others = [index for dim, index in enumerate(read.indices) if all(slide.dim != dim for slide in slides)]
    is_apart = len(set(axes)) == len(axes) and not any(axes_of(index) & set(axes) for index in others)
    return tuple(slides) if is_apart and any(slide.window in moving for slide in slides) else ()


def _slide(workload: Workload, stage: Stage, dim: int, index: Expr) -> Slide | None:
    """``index`` as ``stride * axis + dilation * window + offset``, or None."""
    position = index_dim(index)
    if position is None:
        return None
    terms: dict[str, int] = {}
    for monomial, coefficient in position.terms:
        if len(monomial) > 1 or not all(isinstance(atom, str) and atom in _axes(stage) for atom in monomial):
            return None
        terms[str(monomial[0]) if monomial else ""] = coefficient
    offset = terms.pop("", 0)
    axes = [axis for axis in terms if axis in stage.axes]
    windows = [axis for axis in terms if axis in stage.reduce_axes]
    if len(axes) != 1 or len(windows) > 1 or min(terms.values()) < 1:
        return None
    if not windows:
        return Slide(dim, axes[0], None, 1, terms[axes[0]], 1, offset)
    size = workload.sizes[windows[0]].constant or 1
    return Slide(dim, axes[0], windows[0], size, terms[axes[0]], terms[windows[0]], offset)


def _other_problem(workload: Workload, stages: tuple[Stage, ...], windowed: Read) -> str | None:
    """What the other operands must be: contiguous along the vectors, or the same for all of a vector."""
    padded, vector = dict(workload.padding), stages[0].axes[-1]
    if any(reads(index) for index in windowed.indices):
        return f"{windowed.tensor} is read where an index tensor says"
    for read in (read for stage in stages for read in reads(stage.body) if read != windowed):
        if read.tensor in padded:
            return f"{read.tensor} is padded and not read through windows"
        if stride(read, vector) not in (0, 1) or any(vector in axes_of(inner) for inner in _looked_up(read)):
            return f"{read.tensor} does not lie along {vector}"
    return None


def _looked_up(read: Read) -> Iterator[Read]:
    return itertools.chain.from_iterable(map(reads, read.indices))


def _axes(stage: Stage) -> tuple[str, ...]:
    return stage.axes + stage.reduce_axes


def _taps(workload: Workload, stage: Stage) -> Iterator[tuple[tuple[str, int], ...]]:
    sizes = [range(workload.sizes[axis].constant or 1) for axis in stage.reduce_axes]
    for position in itertools.product(*sizes):
        yield tuple(zip(stage.reduce_axes, position, strict=True))


@dataclass(frozen=True)
class Tile:
    """``starts``: the index of every axis of the output at the tile's first element; ``sizes``: how many values the
    axes take that the tile spans, less than a whole tile at the ends."""

    starts: Mapping[str, TirExpr]
    sizes: Mapping[str, TirExpr]


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: of 8 bytes if the reduction or what is made of it has such."""
    program, types = window_program_of(task.workload), task.workload.element_types
    computed = [types.reduced_type(program.stage), *(types.type_of(stage.body) for stage in program.after)]
    computed.append(task.workload.tensors[program.read.tensor].dtype)
    is_wide = any(dtype in ("int64", "float64") for dtype in computed)
    return task.known_target.hardware.lanes(8 if is_wide else 4)
