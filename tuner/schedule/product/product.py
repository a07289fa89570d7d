"""A product as the loops around the register tile and their theory see it, and its parts: rows (``left``), columns
(``right``) and results.

A part says where its elements stand, how they are packed at a call, how one step of them is loaded, and what that
costs. The loops, the register tile and the theory ask nothing else, so that code and theory cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Read
from tuner.program.language.notation import Stage
from tuner.program.target import Hardware
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.axes import AT_ONCE, BY_BLOCK, TOTAL_BYTES
from tuner.schedule.product.readers import RowReader
from tuner.schedule.rule import Extents
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.dtypes import vector_type
from tuner.schedule.vector.memory import Vectors, workspace

if TYPE_CHECKING:
    from tuner.program.language.workload import Workload
    from tuner.schedule.layout import PackLayout
    from tuner.schedule.loops.shares import Share
    from tuner.schedule.product.context import Chunk, EmitContext, Panel
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.product.readers import PackedRows, PackedSlice
    from tuner.schedule.product.sizes import Sizes
    from tuner.schedule.product.sources import Extent, PanelSource


DTYPE = "float32"
UNSUPPORTED = frozenset(name for name, dtype in DTYPES.items() if dtype.bytes > TOTAL_BYTES or dtype.kind == "b")
"""Dtypes that no tensor of the workload may have: wider than a lane of the accumulators, or bool."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """``out[m, n] = sum(k) left[m, k] * right[n, k]``, then elementwise stages; or a batch of such products.

    ``axes``: the program's axis of each role, where it is one; ``sizes``: from the extents of the program's axes to
    those of the roles, where these are not one axis each. ``dynamic``: the roles whose extents are symbols; ``depth``:
    the extent of k, None where it is dynamic. ``atoms``: the instructions that there are for it, by their depth.
    ``pack_of_dots``: the choice of ``pack`` by which vectors run along the axis that is summed over, as both operands
    do; None where they do not. ``is_by_panel``: whether a panel goes through all chunks of k before the next one, where
    rows are read as they lie.
    """

    axes: Mapping[str, str]
    left: Left
    right: Right
    result: Result
    dynamic: frozenset[str]
    depth: int | None
    atoms: Callable[[Hardware], Mapping[int, Atom]]
    has_batch: bool = False
    sizes: Callable[[Extents], Extents] | None = None
    pack_of_dots: int | None = None
    is_by_panel: bool = False

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program, where each role is one axis."""
        return {axis: role for role, axis in self.axes.items()}

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their roles here."""
        return {role: extents[axis] for role, axis in self.axes.items()} if self.sizes is None else self.sizes(extents)


def can_hold_partial(dtype: str) -> bool:
    """Whether a partial sum can be stored, bit by bit, in an output of that dtype."""
    return DTYPES[dtype].bytes == TOTAL_BYTES


def ceil_div(value: TirExpr, by: int) -> TirExpr:
    """``value / by``, rounded up."""
    return tirx.floordiv(value + i64(by - 1), i64(by))


Place = tuple[TirExpr, tuple[TirExpr, ...]]
"""A buffer, and the indices of an element but for the last one."""


class Left:
    """The rows of a product, ``left[m, k]``. ``dtype``: of its elements in memory; ``is_packed_ahead``: whether it is
    packed before all calls."""

    dtype: str
    is_packed_ahead: bool
    packs_elements: ClassVar[bool] = False
    """Whether rows that are packed at the call are the elements of words, and not these."""
    lies_in_words: ClassVar[bool] = False
    """Whether rows lie as if they were packed, with room for whole multiplications of a matrix unit."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        """A row, along k, where rows are read as they lie."""
        raise NotImplementedError(f"{type(self).__name__} are read where they are packed")

    def reader(self, context: EmitContext, extent: Extent, chunk: Chunk) -> RowReader:
        """What reads the rows of a block as they lie."""
        return RowReader()

    def room(self, context: EmitContext, rows: int, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        """Memory for so many rows of so many steps that are packed at the call. Rows start a cache line and more apart
        from a power of two, so that the rows of a tile do not fall on the same lines of a cache."""
        columns = context.whole_vectors(steps) + i64(context.vectors.lanes)
        dtype = context.words.atom.element if self.packs_elements else context.words.register
        return workspace((i64(rows), columns * i64(self.word_elements(context))), dtype)

    def word_elements(self, context: EmitContext) -> int:
        """Elements of a packed row that are a word."""
        return context.words.atom.group if self.packs_elements else 1

    def pack(self, context: EmitContext, rows: PackedRows, count: TirExpr, chunk: Chunk) -> None:
        """Fill ``count`` rows at these steps of k."""
        lanes, words, group = context.vectors.lanes, context.words, context.words.atom.group
        vectors = tirx.floordiv(chunk.length, i64(lanes))
        if context.ragged_k is not None:
            # The last word of k is not read as a whole: elements of the next row times zero are NaN if those are
            # infinite.
            elements = context.ragged_k - chunk.first * i64(group)
            vectors = I.Bind(tirx.min(vectors, tirx.floordiv(elements, i64(lanes * group))))
        with I.serial(i64(0), count) as r:
            buffer, place = self.row(context, rows.row + r)
            with I.serial(i64(0), vectors) as v:
                value = words.of_row(buffer, place, chunk.first + v * i64(lanes), lanes)
                I.buffer_store(rows.buffer, value, [r, context.vectors.ramp(v * i64(lanes))])
            with I.serial(vectors * i64(lanes), chunk.length) as p:
                value = words.of_row(buffer, place, chunk.first + p, limit=context.ragged_k)
                I.buffer_store(rows.buffer, value, [r, p])

    def in_image(self, context: EmitContext, first: TirExpr, count: TirExpr) -> AbstractContextManager[RowReader]:
        """``count`` rows from ``first`` on, read in a padded copy of the image they are windows of."""
        raise NotImplementedError(f"{type(self).__name__} is no window of an image")

    def row_stride(self, of: Estimate) -> Floats:
        """[kernels, shapes] bytes from a row to the next one where rows are read as they lie; 0: they are packed so
        that they do not fall on one set of a cache."""
        stride = np.asarray(of.depth * of.words.left_bytes)
        return np.zeros_like(stride) if self.is_packed_ahead or self.packs_elements else stride

    def first_share(self, of: Sizes) -> Floats:
        """The share of the products of a batch that are the first to read their rows."""
        return np.ones((1, 1))


@dataclass(frozen=True)
class Late:
    """A scale that groups of ``steps`` neighbouring steps of k share, of ``depth`` in all: the partial sum of a group
    is multiplied by ``factor(panel, step, v)``, and added to the totals in float32. ``start``: which row of a packed
    panel has what the sums of a group begin with, by the group's number; None: they begin with zero."""

    depth: int
    steps: int
    factor: Callable[[Panel, TirExpr, int], TirExpr]
    start: Callable[[TirExpr], TirExpr] | None = None


class Right:
    """The columns of a product, ``right[n, k]``. ``dtype``: of its elements in memory; ``is_packed_ahead``: whether it
    is packed before all calls; ``lies_along_n``: whether neighbours in memory are columns, not steps of k."""

    dtype: str
    is_packed_ahead: bool
    lies_along_n: bool
    is_made_in_call: ClassVar[bool] = False
    """Whether the call itself makes it, so that the caches have it."""

    @property
    def is_read_as_stored(self) -> bool:
        """Whether tiles multiply elements as they are stored. Others say by themselves what their streams take."""
        return True

    @property
    def is_in_rows(self) -> bool:
        """Whether it may be read where it lies, each step of k in a row of memory."""
        return self.lies_along_n and not self.is_packed_ahead

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        """One step of k, along n, where columns are read as they lie; or one column, along k, if that is how."""
        raise NotImplementedError(f"{type(self).__name__} are read where they are packed")

    # -- packed at the call ---------------------------------------------------------------------------------------
    def room(self, context: EmitContext, panels: TirExpr, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        """Memory for so many panels of so many steps that are packed at the call."""
        atom = context.words.atom
        return workspace((panels, context.whole_vectors(steps), i64(context.nr * atom.group)), atom.element)

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """Fill a panel at these steps of k."""
        write = self._copy if self.lies_along_n else self._transpose
        write(context, panel, to, chunk)

    def _copy(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """Columns that lie [k, n]: a vector of them at each of the neighbours of a word, side by side."""
        group, lanes = context.words.atom.group, context.vectors.lanes
        with I.serial(i64(0), chunk.length) as step:
            for v in range(panel.vectors):
                neighbours = []
                for j in range(group):
                    buffer, at = self.step(context, (chunk.first + step) * i64(group) + i64(j))
                    value = context.vectors.load(buffer, at, panel.column + i64(v * lanes), panel.limit)
                    neighbours.append(value if group == 1 else I.Bind(value))
                to.store(context.words.of_columns(neighbours), chunk.first - to.first + step, i64(v))

    def _transpose(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """Columns that lie [n, k]: squares of lanes x lanes words, transposed in registers."""
        lanes = context.vectors.lanes
        if context.words.atom.group > 1:
            # Words past the chunk are those of the next one, or zero past k.
            with I.serial(i64(0), ceil_div(chunk.length, lanes)) as square:
                self._squares(context, panel, to, chunk, I.Bind(square * i64(lanes)), context.depth)
            return
        whole = tirx.floordiv(chunk.length, i64(lanes))
        with I.serial(i64(0), whole) as square:
            self._squares(context, panel, to, chunk, square * i64(lanes), None)
        with I.If(whole * i64(lanes) < chunk.length), I.Then():
            self._squares(context, panel, to, chunk, whole * i64(lanes), chunk.first + chunk.length)

    def _squares(
        self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk, step: TirExpr, limit: TirExpr | None
    ) -> None:
        """The squares of all columns from ``step`` of the chunk on; elements at and past ``limit`` are not touched."""
        words, lanes, rows = context.words, context.vectors.lanes, chunk.first - to.first + step
        packed = vector_type(words.atom.element, words.width)
        first = (chunk.first + step) * i64(words.atom.group)
        with I.serial(i64(0), i64(panel.vectors)) as v:
            square = []
            for lane in range(lanes):
                column = panel.column + v * i64(lanes) + i64(lane)
                if panel.limit is not None:
                    # Surplus columns hold copies of the last valid one; they are computed and not stored.
                    column = tirx.min(column, panel.limit - i64(1))
                buffer, at = self.step(context, column)
                square.append(I.Bind(words.of_column(Vectors(words.width).load(buffer, at, first, limit))))
            for lane, turned in enumerate(context.vectors.transposed(square)):
                value = turned if str(turned.ty.dtype) == packed else tirx.reinterpret(packed, turned)
                to.store(value, rows + i64(lane), v)

    def in_copy(self, context: EmitContext) -> AbstractContextManager[PanelSource]:
        """Panels that are read in a padded copy of an image."""
        raise NotImplementedError(f"{type(self).__name__} is no window of an image")

    # -- packed ahead ---------------------------------------------------------------------------------------------
    def layouts(self, workload: Workload, panels: PackLayout) -> Mapping[str, PackLayout]:
        """How the tensors of it that are constants are packed; ``panels``: an operand that lies [n, k]."""
        return {}

    def packed(self, context: EmitContext) -> TirExpr:
        """What was packed ahead: [panels, k, nr]."""
        raise NotImplementedError(f"{type(self).__name__} is not packed ahead")

    def first_panel(self, context: EmitContext) -> TirExpr:
        """Where the panels of this batch begin in it."""
        return i64(0)

    def packed_vector(self, context: EmitContext, panel: Panel, at: PackedSlice, row: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a row of a panel of it, as the instruction takes it."""
        return context.words.taken(at.load(context.words, row, v), self.dtype)

    def late(self, context: EmitContext) -> Late | None:
        """The scale, if there is one, that ``packed_vector`` leaves out, for the partial sums of groups."""
        return None

    # -- theory ---------------------------------------------------------------------------------------------------
    def widen(self, of: Sizes) -> None:
        """Say what an element takes, if it is not read as it is stored: set ``of.words``."""

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        """[kernels, shapes] cycles of bringing the operands from memory; ``in_place``: of panels as they are packed."""
        return in_place

    def packing_cycles(self, of: Estimate) -> Floats:
        """[kernels, shapes] cycles of packing panels at the call."""
        rates, size = of.rates, of.columns * of.k
        element = rates.copy if self.lies_along_n else rates.transpose
        beyond = TOTAL_BYTES / of.below_l2 * (size * TOTAL_BYTES > of.hardware.l2_bytes)
        read = element + beyond * of.in_streams(of.row_streams if self.lies_along_n else of.nr)
        # Panels that are all written before they are read do not stay in L2.
        each = {BY_BLOCK: of.blocks * read, AT_ONCE: read + 2 * beyond}
        return np.asarray(size * sum(np.where(of.of["pack"] == choice, value, 0.0) for choice, value in each.items()))

    def picked(self, of: Estimate) -> Floats:
        """[kernels, 1] the share of its vectors that are picked from two others, as a multiplication reads them."""
        return np.zeros_like(of.nv)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Where results are written. ``dtype``: of its elements; ``computed``: the tensor whose elements the sums are;
    ``epilogue``: the elementwise stages that they go through on their way."""

    dtype: str
    computed: str
    epilogue: tuple[Stage, ...] = ()
    is_turned: ClassVar[bool] = False
    """Whether results lie along m (operands/turned.py)."""

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
