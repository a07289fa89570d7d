"""TensorIR for the x86 contraction micro-kernels, built directly: ``out[m, n] = sum_k left[m, k] * right``.

Schedule primitives reach about nine tenths of what this does: they cannot place prefetches, keep one stack slot for
each accumulator vector, or give each ragged remainder code of its own (docs/decisions/0003). The loop nest is

    for t in parallel(threads):                     a contiguous share of row blocks and of panels
      for block in row blocks of mb tiles:          these rows of the left operand stay in L2
        for panel of nv vectors:                    its k x nr slice of the right operand is reused by the block
          for tile of mr rows in block:             mr x nv accumulators in registers
            for k: nv vector loads, mr broadcasts, mr * nv fused multiply-adds
          the ragged rest of the rows, once, in the last block

Full tiles run without predicates. A ragged rest of rows runs exact code for that many rows (``tail=1``) or a full tile
whose surplus rows are clamped to the last row and not stored (``tail=0``): padding inside the tile, never of a tensor.
A ragged last panel masks its loads and stores, lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.kernel import MicroKernel
from tuner.layout import PanelLayout
from tuner.rules.x86_contraction.epilogue import apply_epilogue, is_short
from tuner.signature import arguments, extents, i64, symbols
from tuner.task import SearchTask

DTYPE = "float32"
DL_CPU, DL_FLOAT = 1, 2
Expr = Any


def emit(task: SearchTask, kernel: MicroKernel, layout: PanelLayout | None, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every dynamic dim; returns 0."""
    with IRBuilder() as builder, I.prim_func(private=True):
        I.func_name(name)
        # Functions with a parallel loop return an error code.
        I.func_ret(tvm.ir.PrimType("int32"))
        I.func_attr({"tirx.noalias": True})
        dims = symbols(task.workload)
        shapes = arguments(task.workload, dims, layout)
        pointers = {operand: I.arg(f"{operand}_data", I.ptr(DTYPE)) for operand in shapes}
        for dim, symbol in dims.items():
            I.arg(dim, symbol)
        buffers = {
            operand: I.decl_buffer(shape, DTYPE, data=pointers[operand], align=4)
            for operand, shape in shapes.items()
        }
        _Emitter(task, kernel, extents(task.workload, dims), buffers).body()
        I.Return(tirx.IntImm("int32", 0))
    return builder.get()


@dataclass(frozen=True)
class _Panel:
    """One panel of the output: its first column, and the first column past the valid ones (None: all are valid)."""

    index: Expr
    column: Expr
    limit: Expr | None
    vectors: int


class _Emitter:
    """Writes one kernel into the IRBuilder that is open."""

    def __init__(
        self, task: SearchTask, kernel: MicroKernel, extent: dict[str, Expr], buffers: dict[str, Expr]
    ) -> None:
        self.task, self.kernel, self.extent, self.buffers = task, kernel, extent, buffers
        assert task.target is not None
        self.lanes = task.target.hardware.lanes()
        self.vector = f"{DTYPE}x{self.lanes}"
        self.mr, self.nv = kernel["mr"], kernel["nv"]
        self.nr = self.nv * self.lanes
        contraction = task.workload.op.contraction
        self.left, self.right = buffers[contraction.left.name], buffers[contraction.right.name]
        self.out = buffers[contraction.output.name]
        self.packed_ahead = contraction.right.constant
        self.packed: Expr | None = self.right if self.packed_ahead else None

    # -- loops ----------------------------------------------------------------------------------------------------
    def body(self) -> None:
        threads = self.task.threads
        if threads == 1:
            self._share(i64(0))
            return
        with I.parallel(i64(0), i64(threads)) as thread:
            self._share(thread)

    def _share(self, thread: Expr) -> None:
        """What one thread does: threads form a grid of ``tn`` column shares by ``threads / tn`` row shares."""
        m, n = self.extent["m"], self.extent["n"]
        columns = self.kernel["tn"]
        rows = self.task.threads // columns
        row_thread, column_thread = tirx.floordiv(thread, i64(columns)), tirx.floormod(thread, i64(columns))
        tiles = tirx.floordiv(m, i64(self.mr))
        panels = tirx.floordiv(n + i64(self.nr - 1), i64(self.nr))
        first_tile, last_tile = _part(tiles, row_thread, rows)
        first_panel, last_panel = _part(panels, column_thread, columns)
        is_last = row_thread == i64(rows - 1)
        if self.packed_ahead or not self.kernel["pack"]:
            self._blocks(first_tile, last_tile, is_last, lambda tile: self._panels(first_panel, last_panel, tile))
        else:
            self._packed_online(first_tile, last_tile, first_panel, last_panel, is_last)

    def _blocks(
        self, first: Expr, last: Expr, is_last: Expr, panels: Callable[[Callable[[_Panel], None]], None]
    ) -> None:
        """Row blocks outermost. The ragged rest of the rows joins the last block, while its panel is in cache."""
        mb = self.kernel["mb"]
        tiles = last - first
        blocks = tirx.max(tirx.floordiv(tiles + i64(mb - 1), i64(mb)), i64(1))
        with I.serial(i64(0), blocks) as block:
            start = I.Bind(first + block * i64(mb))
            count = I.Bind(tirx.min(i64(mb), last - start))
            ends = tirx.And(is_last, block == blocks - i64(1))
            panels(lambda panel: self._tiles(panel, start, count, ends))

    def _packed_online(self, first: Expr, last: Expr, first_panel: Expr, last_panel: Expr, is_last: Expr) -> None:
        """Panels outermost: each is packed into a workspace just before all the rows use it."""
        k = self.extent["k"]
        # Allocated by hand: the compiler would move an allocation of its own to where the device is not known.
        request = [tirx.IntImm("int32", DL_CPU), tirx.IntImm("int32", 0), tirx.Cast("uint64", k * i64(self.nr * 4))]
        request += [tirx.IntImm("int32", DL_FLOAT), tirx.IntImm("int32", 32)]
        pointer = tvm.ir.PointerType(tvm.ir.PrimType(DTYPE))
        data = I.Bind(tvm.ir.Call("tirx.TVMBackendAllocWorkspace", request, ret_ty=pointer))
        workspace = I.decl_buffer((i64(1), k, i64(self.nr)), DTYPE, data=data, align=64)
        self.packed = workspace

        def use(panel: _Panel) -> None:
            with I.serial(i64(0), k) as row:
                for v in range(panel.vectors):
                    value = self._load(self.right, (row,), panel.column + i64(v * self.lanes), panel.limit)
                    I.buffer_store(workspace, value, [i64(0), row, self._ramp(i64(v * self.lanes))])
            self._tiles(_Panel(i64(0), panel.column, panel.limit, panel.vectors), first, last - first, is_last)

        self._panels(first_panel, last_panel, use)
        I.evaluate(tvm.ir.Call("tirx.TVMBackendFreeWorkspace", [*request[:2], data], ret_ty="int32"))

    def _panels(self, first: Expr, last: Expr, use: Callable[[_Panel], None]) -> None:
        """Full panels, then the ragged one if this share holds it."""
        n = self.extent["n"]
        full = tirx.floordiv(n, i64(self.nr))
        with I.serial(first, tirx.min(last, full)) as index:
            use(_Panel(index, index * i64(self.nr), None, self.nv))
        if isinstance(n, tirx.IntImm):
            ragged = int(n) % self.nr
            vectors = -(-ragged // self.lanes)
        else:
            ragged, vectors = 1, self.nv
        if ragged:
            with I.If(last > full), I.Then():
                use(_Panel(full, full * i64(self.nr), n, vectors))

    def _tiles(self, panel: _Panel, start: Expr, count: Expr, ends: Expr) -> None:
        """The full tiles of one block over one panel, then the ragged rest of the rows if ``ends``."""
        with I.serial(i64(0), count) as tile:
            self._tile(panel, (start + tile) * i64(self.mr), self.mr, tile)
        m = self.extent["m"]
        if isinstance(m, tirx.IntImm) and int(m) % self.mr == 0:
            return
        row = I.Bind(tirx.floordiv(m, i64(self.mr)) * i64(self.mr))
        rest = I.Bind(m - row)
        if not self.kernel["tail"]:
            with I.If(tirx.And(ends, rest > i64(0))), I.Then():
                self._tile(panel, row, self.mr, count, valid=rest)
            return
        with I.If(ends), I.Then():
            for rows in range(1, self.mr):
                with I.If(rest == i64(rows)), I.Then():
                    self._tile(panel, row, rows, count)

    # -- one tile -------------------------------------------------------------------------------------------------
    def _tile(self, panel: _Panel, row: Expr, rows: int, tile: Expr, valid: Expr | None = None) -> None:
        """``rows`` x ``panel.vectors`` accumulators over all of k; only the first ``valid`` rows are stored."""
        k = self.extent["k"]
        # One buffer of one vector each: larger or `local` ones become a heap workspace, and with a prefetch in the
        # loop every accumulator would be stored at each step.
        acc = [[I.alloc_buffer((self.lanes,), DTYPE) for _ in range(panel.vectors)] for _ in range(rows)]
        zero = tirx.Broadcast(tirx.FloatImm(DTYPE, 0.0), self.lanes)
        for accumulator in (vector for line in acc for vector in line):
            I.buffer_store(accumulator, zero, [self._ramp(0)])
        index = [row + i64(r) for r in range(rows)]
        if valid is not None:
            index = [tirx.min(i, self.extent["m"] - i64(1)) for i in index]
        unroll = self.kernel["ku"]
        steps = tirx.floordiv(k, i64(unroll))
        with I.serial(i64(0), steps) as step:
            for u in range(unroll):
                self._step(panel, acc, index, step * i64(unroll) + i64(u))
            self._prefetch_next_panel(panel, tile * steps + step)
        if not (isinstance(k, tirx.IntImm) and int(k) % unroll == 0):
            with I.serial(steps * i64(unroll), k) as p:
                self._step(panel, acc, index, p)
        self._store(panel, acc, row, valid)

    def _step(self, panel: _Panel, acc: list[list[Expr]], rows: list[Expr], p: Expr) -> None:
        """One k: every accumulator takes one fused multiply-add."""
        columns = [I.Bind(self._right(panel, p, v)) for v in range(panel.vectors)]
        near = self.kernel["near"]
        if near and self.packed is not None:
            for v in range(panel.vectors):
                _prefetch(self.packed, [panel.index, p + i64(near), i64(v * self.lanes)])
        for line, row in zip(acc, rows, strict=True):
            value = I.Bind(tirx.Broadcast(self.left[row, p], self.lanes))
            for accumulator, column in zip(line, columns, strict=True):
                I.buffer_store(accumulator, accumulator[self._ramp(0)] + value * column, [self._ramp(0)])

    def _right(self, panel: _Panel, p: Expr, v: int) -> Expr:
        """Vector ``v`` of row ``p`` of the right operand, from wherever it is packed."""
        if self.packed is not None:
            return self.packed[panel.index, p, self._ramp(i64(v * self.lanes))]
        return self._load(self.right, (p,), panel.column + i64(v * self.lanes), panel.limit)

    def _prefetch_next_panel(self, panel: _Panel, position: Expr) -> None:
        """Spread the fetch of the next panel over the tiles of this one: one of its rows for each unrolled step.

        Panels lie one behind the other, so row ``position`` of the next one is also row ``k + position`` of this one;
        what it runs past (the following panel, or the end of the buffer) costs a wasted prefetch and no fault.
        """
        if self.kernel["ahead"] and self.packed_ahead:
            for v in range(panel.vectors):
                _prefetch(self.packed, [panel.index + i64(1), position, i64(v * self.lanes)])

    def _store(self, panel: _Panel, acc: list[list[Expr]], row: Expr, valid: Expr | None) -> None:
        """Write the accumulators, through the epilogue; a long one runs over the tile again while it is in L1."""
        epilogue = self.task.workload.epilogue
        inline = is_short(epilogue)
        for r, line in enumerate(acc):
            with self._if_valid(i64(r), valid):
                for v, accumulator in enumerate(line):
                    column = panel.column + i64(v * self.lanes)
                    self._finish(panel, row + i64(r), column, accumulator[self._ramp(0)], epilogue if inline else ())
        if inline:
            return
        rows = valid if valid is not None else i64(len(acc))
        with I.serial(i64(0), rows) as r, I.serial(i64(0), i64(panel.vectors)) as v:
            column = I.Bind(panel.column + v * i64(self.lanes))
            value = self._load(self.out, (row + r,), column, panel.limit)
            self._finish(panel, row + r, column, value, epilogue)

    def _finish(self, panel: _Panel, row: Expr, column: Expr, value: Expr, epilogue: tuple[str, ...]) -> None:
        """Store ``value`` after ``epilogue`` as the vector of the output that starts at ``row``, ``column``."""

        def operand(name: str, axes: tuple[str, ...]) -> Expr:
            return self._load(self.buffers[name], (row,) if axes[0] == "m" else (), column, panel.limit)

        value = apply_epilogue(epilogue, value, self.lanes, operand, I.Bind)
        if panel.limit is None:
            I.buffer_store(self.out, value, [row, self._ramp(column)])
        else:
            mask = self._mask(column, panel.limit)
            I.evaluate(tirx.op.masked_store(self.out, value, row, self._ramp(column), mask))

    @contextmanager
    def _if_valid(self, row: Expr, valid: Expr | None) -> Iterator[None]:
        """What is written here runs for the first ``valid`` rows of a tile, for all of them if that is None."""
        if valid is None:
            yield
            return
        with I.If(row < valid), I.Then():
            yield

    # -- vectors --------------------------------------------------------------------------------------------------
    def _ramp(self, start: Expr | int) -> Expr:
        return tirx.Ramp(start, tirx.IntImm("int64", 1) if not isinstance(start, int) else 1, self.lanes)

    def _mask(self, column: Expr, limit: Expr) -> Expr:
        # The intrinsic is generated for int32 alone, and compares without sign.
        valid = tirx.Cast("int32", tirx.max(tirx.min(limit - column, i64(self.lanes)), i64(0)))
        return tirx.op.get_active_lane_mask(f"boolx{self.lanes}", tirx.IntImm("int32", 0), valid)

    def _load(self, buffer: Expr, prefix: tuple[Expr, ...], column: Expr, limit: Expr | None) -> Expr:
        """A vector of ``buffer[*prefix, column:]``; lanes at and past ``limit`` are not touched."""
        if limit is None:
            return buffer[(*prefix, self._ramp(column))]
        return tirx.op.masked_load(self.vector, buffer, *prefix, self._ramp(column), self._mask(column, limit))


def _part(total: Expr, index: Expr, parts: int) -> tuple[Expr, Expr]:
    """The ``index``-th of ``parts`` contiguous shares of ``range(total)``, sizes differing by one at most."""
    if parts == 1:
        return i64(0), total
    # Rounded up: the last share, which has the ragged rest to do besides, gets no more than the others.
    return (
        tirx.floordiv(total * index + i64(parts - 1), i64(parts)),
        tirx.floordiv(total * (index + i64(1)) + i64(parts - 1), i64(parts)),
    )


def _prefetch(buffer: Expr, indices: list[Expr]) -> None:
    """Ask for a cache line, for reading, to be kept in every level."""
    address = tirx.address_of(buffer[tuple(indices)])
    i32 = [tirx.IntImm("int32", value) for value in (0, 3, 1)]
    I.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *i32))
