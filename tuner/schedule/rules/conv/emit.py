"""TensorIR for contractions of any form: the loops and the register tile of x86_contraction around gathered operands.

    for b in outer:                                 what is in both operands, or lies between m and n in the output
      for block in row blocks of mb tiles:
        [copy the image that its windows are in]    rows=2
        for chunk in chunks of kc steps of k:
          [gather or pack the block's rows]         rows=1
          for panel of nv vectors:
            [gather or pack the panel]              pack=1
            [its image is copied, for some panels]  pack=3, around the row blocks
            tiles
        [write the block's results]                 join=1

Where the rows are read in place (a weight that was packed ahead of time), a panel goes through all its chunks before
the next one, so that its results stay in cache; they are written panel by panel then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from tuner.program.dtypes import DTYPES
from tuner.program.expr import reads
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.layout import CutLayout, Layout
from tuner.schedule.loops.shares import on_threads
from tuner.schedule.product.frame import Chunk, Panel, Rows
from tuner.schedule.product.match.form import IN_COPY, IN_IMAGE, Form
from tuner.schedule.product.match.groups import form_of, viewed
from tuner.schedule.product.nest import Block, Nest, Share, alone
from tuner.schedule.product.operands.copied import ColumnCopy, CopiedTile, column_copy
from tuner.schedule.product.operands.direct import ImageRows, ImageTile, image_rows
from tuner.schedule.product.operands.frame import FormFrame, View
from tuner.schedule.product.operands.gather import gather_panel, gather_rows
from tuner.schedule.product.operands.operands import outer_role
from tuner.schedule.product.operands.scatter import Range, scatter
from tuner.schedule.product.operands.word_panels import words_of_panel
from tuner.schedule.product.operands.word_rows import room_for_rows, words_of_rows
from tuner.schedule.product.tile import Tile
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dot_products import imported
from tuner.schedule.vector.memory import Vectors, part_of, workspace


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    form = form_of(task.workload, bool(kernel["join"]))
    with kernel_function(task.workload, layouts, name) as function:
        nests = [
            _nest_of(task, own, kernel, function, _buffers(function, layouts, number))
            for number, own in enumerate(form.each)
        ]
        with imported(nests[0].frame.words.dot):
            _write(nests, _stretches(task, form, function))
    return function.get()


def _write(nests: Sequence[_Nest], stretches: TirExpr | None) -> None:
    """The loops of every form: over all of its panels, or over one stretch of them after the other."""

    def share(thread: TirExpr) -> None:
        if stretches is None:
            for nest in nests:
                nest.share(thread)
            return
        with I.serial(i64(0), stretches) as number:
            for nest in nests:
                _Nest(replace(nest.frame, stretch=(number, stretches))).share(thread)

    on_threads(nests[0].frame.whole.threads, share)


def _stretches(task: SearchTask, form: Form, function: KernelFunction) -> TirExpr | None:
    """In how many stretches each thread takes its panels; None where all at once.

    Where vectors run along the places, each line of the output has elements of several phases. All phases write those
    of a stretch while its lines are in half of L2; else every line would come from memory and go there for each phase.
    """
    axis = form.parts[form.n[-1]].axis
    if form.phase is None or axis not in {places.axis for places in form.phase.places}:
        return None
    out = task.workload.tensors[form.out]
    size: TirExpr = i64(DTYPES[out.dtype].bytes)
    for dim in out.dims:
        size = size * dim_expr(dim, function.symbols)
    each = i64(task.threads * task.known_target.hardware.l2_bytes // 2)
    return I.Bind(tirx.floordiv(size + each - i64(1), each))


def _buffers(function: KernelFunction, layouts: Mapping[str, Layout], number: int) -> dict[str, TirExpr]:
    """The operands as phase ``number`` takes them: of one that is packed for all phases, its part."""
    result = dict(function.buffers)
    for tensor, layout in layouts.items():
        if isinstance(layout, CutLayout):
            result[tensor] = part_of(result[tensor], layout.first(number), layout.shape(number))
    return result


def _nest_of(
    task: SearchTask, form: Form, kernel: MicroKernel, function: KernelFunction, buffers: Mapping[str, TirExpr]
) -> _Nest:  # fmt: skip
    """The loops of one form."""
    vectors, own = Vectors(task.known_target.hardware.lanes()), task
    if form.phase is not None:
        own = task.part(form.phase.workload)
        if kernel["rows"] == IN_IMAGE and form.image is None:
            kernel = replace(kernel, values=tuple({**dict(kernel.values), "rows": 1}.items()))
    frame = FormFrame(own, form, kernel, {}, buffers, vectors, function=function, whole=task)
    extent = {role: _product(frame, group) for role, group in form.groups.items()}
    frame = replace(frame, extent=extent)
    # Views have elements.
    return _Nest(replace(frame, views=_views(frame), depth=extent["k"], extent={**extent, "k": _steps(frame)}))


def _steps(frame: FormFrame) -> TirExpr:
    """The words of k."""
    elements, group = frame.extent["k"], frame.words.dot.group
    if group == 1:
        return elements
    if isinstance(elements, tirx.IntImm):
        return i64(-(-int(elements) // group))
    return I.Bind(tirx.floordiv(elements + i64(group - 1), i64(group)))


def _product(frame: FormFrame, names: tuple[str, ...]) -> TirExpr:
    """The extent of a group."""
    size: TirExpr = i64(1)
    for name in names:
        size = size * frame.size(name)
    return I.Bind(size) if not isinstance(size, tirx.IntImm) else size


def _views(frame: FormFrame) -> dict[str, View]:
    """By tensor, and by its place in the contraction, the tensors with dims merged to groups."""
    form, workload = frame.contraction, frame.task.workload

    sizes = {outer_role(name): frame.size(name) for name in form.outer} | {role: frame.extent[role] for role in "mnk"}

    def declared(tensor: str, roles: tuple[str, ...]) -> View:
        shape = [sizes[role] for role in roles]
        buffer, align = frame.buffers[tensor], DTYPES[workload.tensors[tensor].dtype].bytes
        return View(I.decl_buffer(shape, buffer.dtype, data=buffer.data, align=align), roles)

    views = {}
    for side, operand in (("left", form.left), ("right", form.right)):
        if operand.kind == "view":
            views[f"{operand.tensor} {side}"] = declared(operand.tensor, operand.roles)
    if form.out_roles is None:
        return views
    views["out"] = declared(form.out, form.out_roles)
    for read in (read for stage in form.stages for read in reads(stage.body)):
        roles = viewed(workload, form, read, {"m": form.m, "n": form.n})
        if read.tensor not in workload.program.stage and roles is not None:
            views[read.tensor] = declared(read.tensor, roles)
    return views


class _Nest(Nest):
    """The loops around the register tile, where operands are gathered and results are scattered."""

    frame: FormFrame

    def product(self, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        if self.frame.stretch is not None:
            number, count = self.frame.stretch
            first, length = panels[0], panels[1] - panels[0]
            begin, end = (I.Bind(first + tirx.floordiv(length * at, count)) for at in (number, number + i64(1)))
            panels = begin, end
        if self.kernel["pack"] == IN_COPY:
            self._in_copy(tiles, panels, is_last)
            return
        with self.packed_right(panels) as packed, self.packed_left() as left:
            if self.kernel["pack"] == 2:
                whole = Chunk(i64(0), self.k, None, None)
                self.over(panels, lambda panel: self.pack_panel(self.placed(panel, packed, panels), whole))

            def block(result: Block) -> None:
                if not self.kernel["rows"]:
                    self._panel_by_panel(result, panels, packed)
                else:
                    self._all_panels(result, panels, packed, left)

            self.blocks(tiles, is_last, block)

    def _in_copy(self, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        """Panels are read in a copy of the image, which is made for some of them at a time, for all rows."""
        with column_copy(self.frame) as copy:

            def group(some: Share) -> None:
                self.blocks(tiles, is_last, lambda block: self._panel_by_panel(block, some, None, copy))

            copy.groups(panels, group)

    def packed_left(self) -> AbstractContextManager[TirExpr]:
        if self.kernel["rows"] == IN_IMAGE:
            return nullcontext(None)
        if not self.frame.holds_elements:
            return super().packed_left()
        return room_for_rows(self.frame, self.kernel["mb"] * self.mr + self.mr - 1, self.longest())

    def pack_panel(self, panel: Panel, chunk: Chunk) -> None:
        if self.frame.words.dot.group > 1:
            words_of_panel(self.frame, panel, chunk)
        elif self.frame.contraction.right.kind == "gathered":
            gather_panel(self.frame, panel, chunk)
        else:
            super().pack_panel(panel, chunk)

    def pack_rows(self, rows: Rows, count: TirExpr, chunk: Chunk) -> None:
        if self.frame.holds_elements:
            words_of_rows(self.frame, rows, count, chunk)
        elif self.frame.contraction.left.kind == "gathered":
            gather_rows(self.frame, rows, count, chunk)
        else:
            super().pack_rows(rows, count, chunk)

    def tile_type(self, rows: Rows) -> type[Tile]:
        if self.kernel["pack"] == IN_COPY:
            return CopiedTile
        return ImageTile if isinstance(rows, ImageRows) else Tile

    def _panel_by_panel(self, block: Block, panels: Share, packed: TirExpr, copy: ColumnCopy | None = None) -> None:
        """All chunks of a panel before the next one."""

        def use(panel: Panel) -> None:
            panel = panel if copy is None else copy.placed(panel)

            def chunk(chunk: Chunk) -> None:
                if self.kernel["pack"] == 1:
                    self.pack_panel(self.placed(panel, packed, panels, chunk), chunk)
                placed = self.placed(_within(self.frame, panel), packed, panels, chunk)
                self.write_tiles(alone(placed), chunk, Rows(), block)

            with self._results(block, (panel.column, self.frame.columns_in(panel)), i64(0)):
                self.chunks(chunk)

        self.over(panels, use)

    def _all_panels(self, block: Block, panels: Share, packed: TirExpr, left: TirExpr) -> None:
        """All panels at a chunk before the next one, for which the rows are packed anew."""
        first, last = panels[0] * i64(self.frame.nr), tirx.min(panels[1] * i64(self.frame.nr), self.n)
        with self._results(block, (first, last - first), first):
            if self.kernel["rows"] == IN_IMAGE:
                self._in_image(block, panels, packed)
            else:
                self.chunks(lambda chunk: self.block(block, chunk, panels, packed, left))

    def _in_image(self, block: Block, panels: Share, packed: TirExpr) -> None:
        """The same, the rows being windows of a copy of their part of the image, which is made once for all chunks."""
        first, count = self.rows_of(block)
        with image_rows(self.frame, first, I.Bind(count)) as rows:

            def chunk(chunk: Chunk) -> None:
                def use(panel: Panel) -> None:
                    self.write_tiles(alone(self.placed(panel, packed, panels, chunk)), chunk, rows, block)

                self.over(panels, use)

            self.chunks(chunk)

    @contextmanager
    def _results(self, block: Block, columns: Range, skipped: TirExpr) -> Iterator[None]:
        """Tiles are written to a buffer for the block and these columns, and from there to the output at the end.

        ``skipped``: columns of the buffer before the first one.
        """
        if not self.frame.contraction.joined:
            yield
            return
        first, count = self.rows_of(block)
        rows = I.Bind(count)
        width = I.Bind(tirx.max(skipped + columns[1], i64(0)) + i64(self.frame.nr))
        with workspace((rows, width), self.frame.contraction.total) as buffer:
            before, self.frame = self.frame, replace(self.frame, results=(buffer, first))
            yield
            self.frame = before
            scatter(self.frame, buffer, (first, rows), columns, skipped)


def _within(frame: FormFrame, panel: Panel) -> Panel:
    """The panel by its columns in the buffer of results, which holds it alone."""
    if frame.results is None:
        return panel
    return replace(panel, column=i64(0), limit=None if panel.limit is None else panel.limit - panel.column)
