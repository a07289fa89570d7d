"""The parts of a product, each by what it does: rows (``left``), columns (``right``) and results.

A part says where its elements stand, how they are packed at a call, how one step of them is loaded, and what that
costs. The loops, the register tile and the theory ask nothing else, so that code and theory cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.program.expr import Read
from tuner.program.notation import Stage
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.axes import AT_ONCE, BY_BLOCK
from tuner.schedule.product.packing import pack_panel, pack_rows, packed_panels, packed_rows
from tuner.schedule.tir import TirExpr

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.schedule.loops.shares import Share
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.product.panels import PackedSlice, PanelSource
    from tuner.schedule.product.rows import Extent, PackedRows, RowReader

Place = tuple[TirExpr, tuple[TirExpr, ...]]
"""A buffer, and the indices of an element but for the last one."""


class Left:
    """The rows of a product, ``left[m, k]``. ``dtype``: of its elements in memory."""

    dtype: str
    is_packed_ahead: bool
    """Whether it is packed before all calls."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        """A row, along k, where rows are read as they lie."""
        raise NotImplementedError(f"{type(self).__name__} are read where they are packed")

    def room(self, context: EmitContext, rows: int, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        """Memory for so many rows of so many steps that are packed at the call."""
        return packed_rows(context, rows, steps)

    def pack(self, context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
        """Fill ``count`` rows at these steps of k."""
        pack_rows(context, rows, count, chunk)

    def in_image(self, context: EmitContext, first: TirExpr, count: TirExpr) -> AbstractContextManager[RowReader]:
        """``count`` rows from ``first`` on, read in a padded copy of the image they are windows of."""
        raise NotImplementedError(f"{type(self).__name__} is no window of an image")

    def row_stride(self, of: Estimate) -> Floats:
        """[kernels, shapes] bytes from a row to the next one where rows are read as they lie; 0: they are packed so
        that they do not fall on one set of a cache."""
        stride = np.asarray(of.k * of.words.left_bytes)
        return np.zeros_like(stride) if self.is_packed_ahead else stride

    def packed_word(self, context: EmitContext, packed: TirExpr, row: TirExpr, step: TirExpr) -> TirExpr:
        """The word of a packed row at one step."""
        return packed[row, step]


@dataclass(frozen=True)
class Late:
    """A scale that groups of ``steps`` neighbouring steps of k share, of ``depth`` in all: the partial sum of a group
    is multiplied by ``factor(panel, step, v)``."""

    depth: int
    steps: int
    factor: Callable[[Panel, TirExpr, int], TirExpr]


class Right:
    """The columns of a product, ``right[n, k]``. ``dtype``: of its elements in memory."""

    dtype: str
    is_packed_ahead: bool
    """Whether it is packed before all calls."""
    lies_along_n: bool
    """Whether neighbours in memory are columns, not steps of k."""

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        """One step of k, along n, where columns are read as they lie; or one column, along k, if that is how."""
        raise NotImplementedError(f"{type(self).__name__} are read where they are packed")

    def room(self, context: EmitContext, panels: TirExpr, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        """Memory for so many panels of so many steps that are packed at the call."""
        return packed_panels(context, panels, steps)

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """Fill a panel at these steps of k."""
        pack_panel(context, panel, to, chunk)

    def widen(self, of: Estimate) -> None:
        """Say what an element takes, if it is not read as it is stored: set ``of.words``."""

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        """[kernels, shapes] cycles of bringing the operands from memory; ``in_place``: of panels as they are packed."""
        return in_place

    def packing_cycles(self, of: Estimate) -> Floats:
        """[kernels, shapes] cycles of packing panels at the call."""
        rates, size = of.rates, of.columns * of.k
        element = rates.copy if self.lies_along_n else rates.transpose
        each = size * (element + 4 / rates.l3_bytes * (size * 4 > of.hardware.l2_bytes))
        times = np.where(of.of["pack"] == BY_BLOCK, of.blocks, np.where(of.of["pack"] == AT_ONCE, 1.0, 0.0))
        return np.asarray(times * each)

    def in_copy(self, context: EmitContext) -> AbstractContextManager[PanelSource]:
        """Panels that are read in a padded copy of an image."""
        raise NotImplementedError(f"{type(self).__name__} is no window of an image")

    def late(self, context: EmitContext) -> Late | None:
        """The scale that is left out of ``packed_vector`` and applied to the partial sums of groups; None: there is
        none."""
        return None

    def packed(self, context: EmitContext) -> TirExpr:
        """What was packed ahead: [panels, k, nr]."""
        raise NotImplementedError(f"{type(self).__name__} is not packed ahead")

    def first_panel(self, context: EmitContext) -> TirExpr | None:
        """Where the panels of this batch begin in it; None: at 0."""
        return None

    def packed_vector(self, context: EmitContext, panel: Panel, at: PackedSlice, row: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a row of a panel of it, as the instruction takes it."""
        words = context.words
        return words.right_words(at.buffer[(at.index, row, words.columns(v * context.vectors.lanes))])


class Result:
    """Where results are written. ``dtype``: of its elements; ``computed``: the tensor whose elements the sums are;
    ``epilogue``: the elementwise stages that they go through on their way."""

    dtype: str
    computed: str
    epilogue: tuple[Stage, ...]

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        """A row, along n, where tiles write to it."""
        raise NotImplementedError(f"{type(self).__name__} collects results in a buffer")

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        """What an epilogue reads at a row: its buffer, the indices, and whether n follows these."""
        raise NotImplementedError(f"{type(self).__name__} has no epilogue")

    @contextmanager
    def collected(self, context: EmitContext, rows: Extent, columns: Share, skipped: TirExpr) -> Iterator[Result]:
        """What the tiles of a block write to, which has these ``rows`` and so many ``columns`` from a first one on."""
        yield self

    def within(self, panel: Panel) -> Panel:
        """The panel by its columns in what results are written to."""
        return panel
