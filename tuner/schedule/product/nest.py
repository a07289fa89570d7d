"""The loop nest around the register tile of a product, ``out[m, n] = sum(k) left[m, k] * right[n, k]``.

Schedule primitives reach about nine tenths of what this does: they cannot place prefetches, keep one stack slot for
each accumulator vector, or give each ragged remainder code of its own (docs/decisions/0002). The loop nest is

    for t in parallel(threads):                     a contiguous share of the batch's panels, and of row blocks
      for b in batch:
        [pack every panel]                          pack=2
        for block in row blocks of mb tiles:        these rows of the left operand stay in L2
          for chunk in chunks of kc steps of k:     what a panel holds of them stays in L1 or L2
            [pack the block's rows]                 rows=1
            for strip of nb panels of nv vectors:   its chunk x nr slices of the right operand are reused by the block
              [pack the panel]                      pack=1
              for tile of mr rows in block:
                for panel in strip:                 mr x nv accumulators in registers (tile.py)
              the ragged rest of the rows, once, in the last block

Full tiles run without predicates. A ragged rest of rows runs exact code for that many rows (``tail=1``) or a full tile
whose surplus rows are clamped to the last row and not stored (``tail=0``): padding inside the tile, never of a tensor.
A ragged last panel masks its loads and stores, lane by lane; where its width is not known ahead, ``edge=1`` gives it
code for each number of vectors. With ``edge=2`` the few columns behind its whole vectors are computed along k (few.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tuner.schedule.loops.shares import Share
from tuner.schedule.product.atom import configured
from tuner.schedule.product.axes import FEW_ALONG_K, panels_of_strip, parts_of_k
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Part
from tuner.schedule.product.dots import dots
from tuner.schedule.product.few import FewTile, with_few
from tuner.schedule.product.matrices import MatrixTile, finish_waiting, with_totals
from tuner.schedule.product.product import ceil_div
from tuner.schedule.product.readers import RowReader
from tuner.schedule.product.sources import Each, PanelSource, RowSource, panel_source, row_source
from tuner.schedule.product.turned import TurnedTile
from tuner.schedule.product.vectors import VectorTile
from tuner.schedule.tir import I, TirExpr, i64, tirx

Write = Callable[["Nest", Share, Share, TirExpr], None]
"""Writes the tiles and panels of a share of one product; the last one says whether the ragged rest of rows is in it."""


class Nest:
    """Writes the loops around the register tile."""

    def __init__(self, context: EmitContext, tiles: TirExpr | None = None) -> None:
        """``tiles``: how many tiles of rows threads share; by default all whole ones."""
        self.context, self.kernel, self.mr = context, context.kernel, context.kernel["mr"]
        self.m, self.n, self.k = context.extent["m"], context.extent["n"], context.steps.length
        self.tiles = tirx.floordiv(self.m, i64(self.mr)) if tiles is None else tiles
        self.panels = context.panels

    @property
    def whole(self) -> Chunk:
        """All of k, or the context's part of it."""
        return self.context.steps

    # -- shares ---------------------------------------------------------------------------------------------------
    def share(self, thread: TirExpr, write: Write | None = None) -> None:
        """What one thread does: threads form a grid of ``split_k`` parts of k by ``tb`` batch shares by row shares by
        ``tn`` column shares. ``write``: what is done of each product, its rows and panels of this share; by default
        ``product``."""
        write = write or Nest.product
        across, columns, parts = self.kernel["tb"], self.kernel["tn"], parts_of_k(self.kernel)
        rows = self.context.task.threads // (across * columns * parts)
        column, rest = tirx.floormod(thread, i64(columns)), tirx.floordiv(thread, i64(columns))
        row, batch = tirx.floormod(rest, i64(rows)), tirx.floordiv(rest, i64(rows))
        tiles, panels = _part(self.tiles, row, rows), _part(self.panels, column, columns)
        is_last, nest = row == i64(rows - 1), self
        if parts > 1:
            batch, number = tirx.floormod(batch, i64(across)), tirx.floordiv(batch, i64(across))
            nest = Nest(replace(self.context, part=_part_of_k(self.context, number, parts)))
        with configured(self.context.words.atom):
            if "b" not in self.context.extent:
                write(nest, tiles, panels, is_last)
                return
            with nest._batch(panels, batch, across) as (index, own):
                write(Nest(nest.context.at(index)), tiles, own, is_last)

    @contextmanager
    def _batch(self, panels: Share, index: TirExpr, parts: int) -> Iterator[tuple[TirExpr, Share]]:
        """A loop over the ``index``-th of ``parts`` shares of the batch: the number of a product, and its panels.

        Shares are equal in panels: the first and the last product of one may be partial. A ragged last panel of less
        than half the width belongs to the panel before it.
        """
        products, (first, last) = self.context.extent["b"], panels
        counted = tirx.floordiv(self.n + i64(self.context.nr // 2), i64(self.context.nr))
        # A share of the columns may be empty; the divisor must not be 0.
        each = tirx.max(tirx.min(last, counted) - first, i64(1))
        if parts == 1 or (isinstance(each, tirx.IntImm) and int(each) == 1):
            with I.serial(*_part(products, index, parts)) as number:
                yield number, panels
            return
        each = each if isinstance(each, tirx.IntImm) else I.Bind(each)
        begin, end = map(I.Bind, _part(products * each, index, parts))
        with I.serial(tirx.floordiv(begin, each), tirx.floordiv(end + each - i64(1), each)) as number:
            done = I.Bind(number * each)
            start = I.Bind(first + tirx.max(begin - done, i64(0)))
            yield number, (start, I.Bind(tirx.Select(end - done < each, first + end - done, last)))

    def product(self, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        """One product of matrices: the rows and panels of this share."""
        if self.context.by_dots:
            dots(self.context, tiles, panels, is_last)
            return
        before, kc = self.context, self.kernel["kc"]
        longest = tirx.min(self.k, i64(kc)) if kc else self.k
        with (
            with_totals(before, panels) as self.context,
            panel_source(self.context, panels, longest) as panels_alone,
            with_few(self.context, panels_alone, self.few, longest) as source,
            row_source(self.context, longest) as rows,
        ):
            source.prepare(lambda use: self.over(panels, use), self.whole)
            by_panel = self.context.product.is_by_panel and not self.kernel["rows"]
            write = self._panel_by_panel if by_panel else self.block

            def some(of_these: Share) -> None:
                self.blocks(tiles, is_last, lambda block: write(block, of_these, source, rows))

            source.groups(panels, some)
        self.context = before

    # -- orders ---------------------------------------------------------------------------------------------------
    def block(self, block: Block, panels: Share, source: PanelSource, rows: RowSource) -> None:
        """Every panel over the rows of one block at a chunk before the next one."""
        first, last = panels[0] * i64(self.context.nr), tirx.min(panels[1] * i64(self.context.nr), self.n)
        extent = partial(self.rows_of, block)
        with self._results(block, (first, last - first), first), rows(extent) as reader_at:
            self.chunks(lambda chunk: self.at_chunk(block, chunk, panels, source, reader_at(chunk)))

    def at_chunk(self, block: Block, chunk: Chunk, panels: Share, source: PanelSource, rows: RowReader) -> None:
        """Every panel over the rows of one block at one chunk."""

        def use(strip: Each) -> None:
            source.refill(strip, chunk)
            self.write_tiles(lambda write: strip(lambda panel: write(source.placed(panel, chunk))), chunk, rows, block)

        self._over_strips(panels, panels_of_strip(self.kernel), use)
        finish_waiting(self.context, rows)

    def _panel_by_panel(self, block: Block, panels: Share, source: PanelSource, rows: RowSource) -> None:
        """All chunks of a panel before the next one, so that its results stay in cache."""

        def use(panel: Panel) -> None:
            panel = source.opened(panel)

            def at_chunk(chunk: Chunk) -> None:
                source.refill(single_panel(panel), chunk)
                placed = source.placed(self.context.result.within(panel), chunk)
                self.write_tiles(single_panel(placed), chunk, RowReader(), block)

            with self._results(block, (panel.column, self.context.columns_in(panel)), i64(0)):
                self.chunks(at_chunk)

        self.over(panels, use)

    @contextmanager
    def _results(self, block: Block, columns: Share, skipped: TirExpr) -> Iterator[None]:
        """Tiles of a block are written where results belong or, where these are scattered, to a buffer for the block
        and so many columns from the first of ``columns`` on, and from there at the end. ``skipped``: columns of the
        buffer before the first one."""
        before = self.context
        with before.result.collected(before, partial(self.rows_of, block), columns, skipped) as result:
            self.context = replace(before, result=result)
            yield
            self.context = before

    # -- loops ----------------------------------------------------------------------------------------------------
    def blocks(self, tiles: Share, is_last: TirExpr, use: Callable[[Block], None]) -> None:
        """Row blocks outermost. The ragged rest of the rows joins the last block, while its panel is in cache.

        The last two blocks are of one size: a short one would have the whole right operand streamed for a few rows.
        """
        mb = self.kernel["mb"]
        first, last = tiles
        blocks = I.Bind(tirx.max(ceil_div(last - first, mb), i64(1)))
        left = last - first - (blocks - i64(2)) * i64(mb)
        final = I.Bind(tirx.Select(blocks > i64(1), tirx.floordiv(left, i64(2)), last - first))
        with I.serial(i64(0), blocks) as block:
            ends = block == blocks - i64(1)
            start = I.Bind(tirx.Select(ends, last - final, first + block * i64(mb)))
            count = I.Bind(tirx.Select(ends, final, tirx.min(i64(mb), last - final - start)))
            use(Block(start, count, tirx.And(is_last, ends)))

    def chunks(self, use: Callable[[Chunk], None]) -> None:
        """As many chunks as kc makes of k: of one length in whole vectors if k is fixed, or of kc but for the last."""
        kc, lanes, k = self.kernel["kc"], self.context.vectors.lanes, self.k
        if kc == 0 or (isinstance(k, tirx.IntImm) and int(k) <= kc):
            use(self.whole)
            return
        if isinstance(k, tirx.IntImm):
            count = ceil_div(k, kc)
            length = ceil_div(k, int(count) * lanes) * i64(lanes)
        else:
            # One at least: sums over nothing are zero, and must be written. No division by their number: what guards
            # it against zero may be simplified away where it is known, and the division moved out of there.
            count, length = I.Bind(tirx.max(ceil_div(k, kc), i64(1))), i64(kc)
        with I.serial(i64(0), count) as index:
            first = I.Bind(index * length)
            even = isinstance(k, tirx.IntImm) and int(k) % int(length) == 0
            own = length if even else I.Bind(tirx.min(length, k - first))
            use(Chunk(self.whole.first + first, own, index == i64(0), index == count - i64(1)))

    def rows_of(self, block: Block) -> tuple[TirExpr, TirExpr]:
        """The first row of a block, and how many it has."""
        rest = tirx.Select(block.ends, self.m - tirx.floordiv(self.m, i64(self.mr)) * i64(self.mr), i64(0))
        return I.Bind(block.start * i64(self.mr)), block.count * i64(self.mr) + rest

    def over(self, panels: Share, use: Callable[[Panel], None]) -> None:
        """Full panels, then the ragged one if this share holds it."""
        self._over_strips(panels, 1, lambda strip: strip(use))

    def _over_strips(self, panels: Share, nb: int, use: Callable[[Each], None]) -> None:
        """Full panels in strips of ``nb``, then the ragged one by itself."""
        full = tirx.floordiv(self.n, i64(self.context.nr))
        stop = tirx.min(panels[1], full)
        if nb == 1:
            with I.serial(panels[0], stop) as index:
                use(single_panel(self._full(index)))
        else:
            stop = I.Bind(stop)
            strips = I.Bind(ceil_div(tirx.max(stop - panels[0], i64(0)), nb))
            with I.serial(i64(0), strips) as number:
                start = I.Bind(panels[0] + number * i64(nb))
                end = I.Bind(tirx.min(start + i64(nb), stop))

                def strip(each: Callable[[Panel], None]) -> None:
                    with I.serial(start, end) as index:
                        each(self._full(index))

                use(strip)
        # The ragged last panel. A share may be empty.
        here, first = tirx.And(panels[0] <= full, panels[1] > full), full * i64(self.context.nr)
        for vectors, condition in self._ragged(full):
            with I.If(tirx.And(here, condition)), I.Then():
                use(single_panel(Panel(first, None if self.few else self.n, vectors, full)))
        if self.few:
            with I.If(here), I.Then():
                use(single_panel(Panel(self.n - i64(self.few), self.n, 1, full, few=self.few)))

    def _full(self, index: TirExpr) -> Panel:
        return Panel(index * i64(self.context.nr), None, self.kernel["nv"], index)

    def _ragged(self, full: TirExpr) -> list[tuple[int, TirExpr]]:
        """The widths in vectors that a ragged last panel may have, each with when it has."""
        nv, lanes, columns = self.kernel["nv"], self.context.vectors.lanes, self.n - full * i64(self.context.nr)
        if isinstance(self.n, tirx.IntImm):
            ragged = int(self.n) % self.context.nr - self.few
            return [(-(-ragged // lanes), tirx.IntImm("bool", 1))] if ragged else []
        if not self.kernel["edge"]:
            return [(nv, columns > i64(0))]
        return [
            (width, tirx.And(columns > i64((width - 1) * lanes), columns <= i64(width * lanes)))
            for width in range(1, nv + 1)
        ]

    @property
    def few(self) -> int:
        """The last columns that are computed along k."""
        is_chosen = self.kernel["edge"] == FEW_ALONG_K
        return int(self.n) % self.context.vectors.lanes if is_chosen else 0

    def write_tiles(self, strip: Each, chunk: Chunk, rows: RowReader, block: Block) -> None:
        """The full tiles of one block, each over all panels of a strip before the next one, then the ragged rest of
        the rows if the block ends them."""
        of_vectors = TurnedTile if self.context.result.is_turned else VectorTile
        kind = of_vectors if self.context.words.atom.unit is None else MatrixTile

        def tile(row: TirExpr, height: int, ordinal: TirExpr, valid: TirExpr | None = None) -> None:
            def one(panel: Panel) -> None:
                own = FewTile if panel.few else kind
                own(self.context, panel, chunk, rows, row, height, valid).emit(ordinal)

            strip(one)

        with I.serial(i64(0), block.count) as ordinal:
            tile((block.start + ordinal) * i64(self.mr), self.mr, ordinal)
        if isinstance(self.m, tirx.IntImm) and int(self.m) % self.mr == 0:
            return
        row = I.Bind(tirx.floordiv(self.m, i64(self.mr)) * i64(self.mr))
        rest = I.Bind(self.m - row)
        if not self.kernel["tail"]:
            with I.If(tirx.And(block.ends, rest > i64(0))), I.Then():
                tile(row, self.mr, block.count, rest)
            return
        whole = self.context.words.atom.rows
        if whole == 1:
            exact = [(height, rest == i64(height), None) for height in range(1, self.mr)]
        else:
            # As many rows as whole instructions have.
            heights = range(whole, self.mr + 1, whole)
            exact = [(most, tirx.And(rest > i64(most - whole), rest <= i64(most)), rest) for most in heights]
        with I.If(block.ends), I.Then():
            for height, condition, valid in exact:
                with I.If(condition), I.Then():
                    tile(row, height, block.count, valid)


@dataclass(frozen=True)
class Block:
    """``count`` tiles of rows from tile ``start`` on; the ragged rest of the rows too if it ``ends`` them."""

    start: TirExpr
    count: TirExpr
    ends: TirExpr


def single_panel(panel: Panel) -> Each:
    """A strip of one panel."""
    return lambda use: use(panel)


def _part(total: TirExpr, index: TirExpr, parts: int) -> Share:
    """The ``index``-th of ``parts`` contiguous shares of ``range(total)``, sizes differing by one at most."""
    if parts == 1:
        return i64(0), total
    # Rounded up: the last share, which has the ragged rest to do besides, gets no more than the others.
    return ceil_div(total * index, parts), ceil_div(total * (index + i64(1)), parts)


def _part_of_k(context: EmitContext, index: TirExpr, parts: int) -> Part:
    """The ``index``-th of ``parts`` parts of k, in whole vectors and groups of steps that share a factor. Where k is
    short the last ones are empty; these begin with 0, so that no operand is asked for what is past its end."""
    k, late, unit = context.extent["k"], context.right.late(context), context.vectors.lanes
    if late is not None and late.steps < late.depth:
        unit = math.lcm(unit, late.steps)
    length = ceil_div(k, parts * unit) * i64(unit)
    first = I.Bind(index * length)
    if isinstance(k, tirx.IntImm) and int(k) == parts * int(length):
        return Part(index, first, length)
    begin = I.Bind(tirx.Select(first < k, first, i64(0)))
    return Part(index, begin, I.Bind(tirx.max(tirx.min(length, k - first), i64(0))))
