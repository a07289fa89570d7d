"""TensorIR for chains of products: the loops and the register tile of x86_contraction, one product after the other.

A block of rows at a time (``whole=0``), so that its intermediate stays in cache:

    [pack weights that are new at this call]
    for t in parallel(threads):                       a contiguous share of the rows
      for block in row blocks of mb tiles:
        for chunk in chunks of about fb columns of the intermediate:
          the first products of these rows, at these columns, and the stages behind them
          the second product of these rows: over these steps of its sum

Or all rows at a time (``whole=1``), each product in its own order: threads share its rows and its panels.

    for rows in parts of the rows whose intermediate is not too large:       mostly one
      for t in parallel(threads): the first products, and the stages behind them
      for t in parallel(threads): the second product


"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import in_shares, on_threads
from tuner.schedule.product.frame import Chunk
from tuner.schedule.product.nest import Block, Nest, Share
from tuner.schedule.product.packing import packed_panels
from tuner.schedule.rules.mlp.frame import Kept, LinkFrame, kept
from tuner.schedule.rules.mlp.pattern import Chain, Link, chain_of
from tuner.schedule.rules.mlp.sizes import kept_width, link_kernels, whole_rows
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import DTYPE, Vectors


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    chain = chain_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        frames = tuple(_frames(task, chain, kernel, function))
        with _packed_weights(frames) as packed:
            write = _whole if kernel["whole"] else _blocks
            write(task, kernel, [_reading_packed(frame, packed) for frame in frames])
    return function.get()


def _frames(task: SearchTask, chain: Chain, kernel: MicroKernel, function: KernelFunction) -> Iterator[LinkFrame]:
    """A frame for each product, the second last."""
    vectors = Vectors(task.known_target.hardware.lanes())
    for link, own in zip(chain.links, link_kernels(chain, kernel), strict=True):
        is_second = link is chain.second
        is_last = link is chain.firsts[-1]
        result = chain.out if is_second else chain.second.left if is_last else link.stage.tensor
        dtype = chain.out_dtype if is_second else DTYPE
        extent = link.by_role(function.extents)
        buffers = function.buffers
        yield LinkFrame(task, link, own, extent, buffers, vectors, result=result, result_dtype=dtype)


def _into(frame: LinkFrame, windows: Mapping[str, TirExpr]) -> LinkFrame:
    """The frame with windows on the intermediates."""
    return replace(frame, buffers={**frame.buffers, **windows})


# -- weights ----------------------------------------------------------------------------------------------------------
@contextmanager
def _packed_weights(frames: tuple[LinkFrame, ...]) -> Iterator[Mapping[str, TirExpr]]:
    """Those weights that are new at every call as panels, by tensor."""
    if not frames:
        yield {}
        return
    frame, *rest = frames
    with _packed_weights(tuple(rest)) as others:
        link = frame.contraction
        if link.right_is_constant:
            yield others
            return
        nest = Nest(frame)
        with packed_panels(frame, nest.panels, nest.k) as packed:
            in_shares(nest.panels, frame.task.threads, lambda share: _pack(nest, packed, share))
            yield {**others, link.right: packed}


def _pack(nest: Nest, packed: TirExpr, share: Share) -> None:
    whole = Chunk(i64(0), nest.k, None, None)
    nest.over(share, lambda panel: nest.pack_panel(replace(panel, packed=packed, first=i64(0)), whole))


def _reading_packed(frame: LinkFrame, packed: Mapping[str, TirExpr]) -> LinkFrame:
    """The frame as if its weight had been packed ahead of time."""
    link: Link = frame.contraction
    if link.right_is_constant:
        return frame
    own = replace(link, right_is_constant=True, right_dtype=DTYPE)
    kernel = replace(frame.kernel, values=tuple({**dict(frame.kernel.values), "pack": 0}.items()))
    buffers = {**frame.buffers, link.right: packed[link.right]}
    return replace(frame, contraction=own, kernel=kernel, buffers=buffers)


# -- a block of rows at a time ----------------------------------------------------------------------------------------
def _blocks(task: SearchTask, kernel: MicroKernel, frames: list[LinkFrame]) -> None:
    on_threads(task.threads, lambda thread: _share(kernel, frames, thread))


def _share(kernel: MicroKernel, frames: list[LinkFrame], thread: TirExpr) -> None:
    """What one thread does: its share of the rows."""
    *firsts, second = frames
    nest = _BlockNest(firsts, second, kernel["fb"])
    most = kernel["mb"] * kernel["mr"] + kernel["mr"] - 1
    width = kept_width(nest.length, second.vectors.lanes)
    with kept([frame.result for frame in firsts], second.extent["m"], most, width) as room:
        nest.room = room
        nest.share(thread)


class _BlockNest(Nest):
    """The second product, before each chunk of whose sum the first ones compute the rows of a block."""

    room: Kept

    def __init__(self, firsts: list[LinkFrame], second: LinkFrame, columns: int) -> None:
        super().__init__(second)
        self.firsts, self.second = firsts, second
        size, panel = int(second.extent["k"]), firsts[0].nr
        panels = -(-size // panel)
        # Chunks are of equally many panels of the first products.
        chunks = min(-(-size // columns), panels) if columns else 1
        self.chunk_panels = -(-panels // chunks)
        self.length = min(self.chunk_panels * panel, size)
        self.count = -(-panels // self.chunk_panels)

    def product(self, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        self.blocks(tiles, is_last, lambda block: self._columns(block, panels))

    def _columns(self, block: Block, panels: Share) -> None:
        """A block of rows, one chunk of the intermediate after the other."""
        block = Block(bound(block.start), bound(block.count), block.ends)
        if self.count == 1:
            self._chunk(block, panels, i64(0), Chunk(i64(0), self.k, None, None))
            return
        with I.serial(i64(0), i64(self.count)) as index:
            first = I.Bind(index * i64(self.length))
            even = int(self.k) % self.length == 0
            own = i64(self.length) if even else I.Bind(tirx.min(i64(self.length), self.k - first))
            self._chunk(block, panels, index, Chunk(first, own, index == i64(0), index == i64(self.count - 1)))

    def _chunk(self, block: Block, panels: Share, index: TirExpr, chunk: Chunk) -> None:
        windows = self.room.at(block.start * i64(self.mr), chunk.first)
        tiles = (block.start, I.Bind(block.start + block.count))
        for frame in self.firsts:
            nest = Nest(_into(frame, windows))
            own = index * i64(self.chunk_panels)
            nest.product(tiles, (own, tirx.min(own + i64(self.chunk_panels), nest.panels)), block.ends)
        second = _into(self.second, windows)
        Nest(second).block(block, chunk, panels, second.packed_right, None)


# -- all rows at a time -----------------------------------------------------------------------------------------------
def _whole(task: SearchTask, kernel: MicroKernel, frames: list[LinkFrame]) -> None:
    *firsts, second = frames
    width = kept_width(int(second.extent["k"]), second.vectors.lanes)
    height = whole_rows(len(firsts), width, kernel["mr"])
    tiles, part = Nest(second).tiles, i64(height // kernel["mr"])
    most, results = height + kernel["mr"] - 1, [frame.result for frame in firsts]
    parts = I.Bind(tirx.max(tirx.floordiv(tiles + part - i64(1), part), i64(1)))
    with kept(results, second.extent["m"], most, width) as room, I.serial(i64(0), parts) as index:
        start = bound(index * part)
        rest = Block(start, bound(tirx.min(part, tiles - start)), index == parts - i64(1))
        windows = room.at(start * i64(kernel["mr"]), i64(0))
        for phase in (firsts, [second]):
            nests = [_PartNest(_into(frame, windows), rest) for frame in phase]
            on_threads(task.threads, partial(_share_all, nests))


def _share_all(nests: Sequence[Nest], thread: TirExpr) -> None:
    for nest in nests:
        nest.share(thread)


class _PartNest(Nest):
    """A product of a part of the rows, which threads share."""

    def __init__(self, frame: LinkFrame, part: Block) -> None:
        super().__init__(frame)
        self.part, self.tiles = part, part.count

    def product(self, tiles: Share, panels: Share, is_last: TirExpr) -> None:
        first, last = (I.Bind(self.part.start + tile) for tile in tiles)
        super().product((first, last), panels, tirx.And(is_last, self.part.ends))
