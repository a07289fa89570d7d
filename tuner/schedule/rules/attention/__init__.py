"""The rule for chains of a contraction, a softmax along rows and a second contraction, in one pass over the rows.

It finds them by what the stages compute (pattern.py), whatever their names: attention, with any elementwise scores
(scale, mask, bias, segments of a ragged batch) and any elementwise stages behind it. Scores are never stored as a
whole: a block of rows keeps its own in cache. ``cols`` panels of k, of nv vectors each, are a block of columns, between
which sums are scaled to the new maximum (online softmax). With 0 a block of rows keeps all its scores, and its maximum
is known before the exponentials. Threads share the blocks of rows of the whole batch. No choice depends on a shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.estimates import (
    Floats,
    call_cycles,
    feature_table,
    flushed_cycles,
    thread_speedup,
    volume,
)
from tuner.schedule.product.axes import default_tile
from tuner.schedule.rule import Extents, NoMatch, Rule, Tiles
from tuner.schedule.rules.attention.chain import Chain
from tuner.schedule.rules.attention.emit import write
from tuner.schedule.rules.attention.pattern import chain_of, match
from tuner.schedule.rules.attention.ranges import position_bytes
from tuner.schedule.rules.attention.tile import Context
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_BODY = 512
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
WIDTHS = (1, 2, 3, 4, 6, 8)
TILES = (1, 2, 4, 8, 16)
PANELS = (0, 1, 2, 4, 8, 16, 32)


class Attention(Rule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "attention"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        return answer if isinstance(answer, NoMatch) else answer.roles(workload)

    def workspace_bytes(self, task: SearchTask) -> int:
        chain, sizes = chain_of(task.workload), task.workload.axis_sizes(task.largest_dims)
        lanes = task.known_target.hardware.lanes()
        j, d, e = (sizes[chain.axis[axis]] for axis in "jde")
        width, rows = WIDTHS[-1] * lanes, HEIGHTS[-1] * TILES[-1]
        keys = (j + width) * (d + lanes)
        columns = max(j, PANELS[-1] * width) + width + lanes
        return 4 * task.threads * (keys + rows * (columns + e + width + 3)) + position_bytes(task, chain)

    def space(self, task: SearchTask) -> SearchSpace:
        chain, registers = chain_of(task.workload), task.known_target.hardware.vector_registers
        axes = (
            Axis("mr", "rows of the register tiles", HEIGHTS),
            Axis("nv", "vectors in a row of the tile of scores", WIDTHS[:-1]),
            Axis("ev", "vectors in a row of the tile of the output", _widths(task, chain)),
            Axis("rows", "tiles in a block of rows", TILES),
            Axis("cols", "panels in a block of columns; 0 is all of them", PANELS),
            Axis("pack", "k is packed at each call", (0, 1) if chain.is_along_d else (1,)),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("ku", "steps of the reductions unrolled", (1, 2, 4)),
        )
        return SearchSpace(self.name, self.version, axes, lambda kernel: _check(kernel, registers), _canonicalise)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """Up to three quarters of the registers; blocks of columns, so that no row is too long for the caches."""
        tile, ev = default_tile(task.known_target.hardware), min(2, _widths(task, chain_of(task.workload))[-1])
        return self.space(task).kernel({**tile, "ev": ev, "rows": 8, "cols": 8, "pack": 1, "tail": 1, "ku": 1})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return _Estimate(task, kernels, extents).cycles() / task.rates.clock_hz

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """Sizes, the visible share, ragged ends, the kernel's values and the estimate."""
        of = _Estimate(task, kernels, extents)
        sizes = [np.log2(each + 1.0) for each in (of.batch, of.i, of.j, of.d, of.e)]
        sizes += [of.seen / np.maximum(of.j, 1.0), of.j % of.lanes]
        sizes += [of.i % of.mr, of.i % (of.mr * of.of["rows"]), of.j % of.nr]
        return feature_table(sizes, kernels, of.cycles() / task.rates.clock_hz)

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        i, j = (chain_of(task.workload).axis[axis] for axis in "ij")
        lanes, rows = task.known_target.hardware.lanes(), kernel["mr"]
        width = kernel["nv"] * lanes
        return {(i,): (rows, rows * kernel["rows"]), (j,): (lanes, width, width * max(1, kernel["cols"]))}

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        write(Context(task, kernel, function))


def _widths(task: SearchTask, chain: Chain) -> tuple[int, ...]:
    """Choices of ``ev``: none is wider than a fixed e, but for the narrowest one."""
    size = task.workload.sizes[chain.axis["e"]].constant
    lanes = task.known_target.hardware.lanes()
    return tuple(width for width in WIDTHS if width == 1 or size is None or (width - 1) * lanes < size)


def _canonicalise(values: Mapping[str, int]) -> dict[str, int]:
    nv, tail = values["nv"] if values["pack"] else 1, values["tail"] if values["mr"] > 1 else 0
    return {**values, "nv": nv, "tail": tail}


def _check(kernel: MicroKernel, registers: int) -> None:
    mr, widest, ku = kernel["mr"], max(kernel["nv"], kernel["ev"]), kernel["ku"]
    # Every accumulator and one row of vectors are live at once, and a broadcast beside them.
    need = mr * widest + widest + 1
    if need > registers:
        text = f"mr={mr} nv={kernel['nv']} ev={kernel['ev']} needs {need} vector registers"
        raise IllegalKernel(f"{text}, there are {registers}")
    if ku * widest > registers:
        raise IllegalKernel(f"ku={ku} loads {ku * widest} vectors in a turn, limit {registers}")
    if kernel["tail"] and mr == 1:
        raise IllegalKernel("tail=1 needs mr above 1: tiles of one row leave no ragged rest")
    if not kernel["pack"] and kernel["nv"] != 1:
        raise IllegalKernel(f"pack=0 reads k in place: needs nv=1, got {kernel['nv']}")
    body = ku * mr * (kernel["nv"] + 2 * kernel["ev"])
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    if body > MAX_BODY:
        raise IllegalKernel(f"ku={ku} tail={kernel['tail']} unroll {body} operations, limit {MAX_BODY}")


TILE_CYCLES = 20.0
"""Start and end of a register tile, beside its stores."""
SCORE_CYCLES = 18.0
"""The maximum, the exponential and the sum of one vector."""
ROW_CYCLES = 90.0
"""The softmax of a row in a block of columns: two loops, and lanes combined."""
PACK_CYCLES = 0.5
"""One element of k that is turned over; a fifth of that where it is copied."""
CROWDED, SPILLED = 0.7, 1.35
"""The share of the registers beyond which accumulators are spilled, and what arithmetic takes then."""
UNKNOWN_SHARE = 0.5
"""Of the columns, where data that nothing is known of says which a row sees."""
SAMPLED_ROWS = 8
"""At which the visible columns are counted."""


class _Estimate:
    """Cycles of micro-kernels: sizes are [shapes], a kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.chain, self.hardware = task, chain_of(task.workload), task.known_target.hardware
        self.flushed = flushed_cycles(task, extents)
        self.of = {name: np.array([[float(kernel[name])] for kernel in kernels]) for name, _ in kernels[0].values}
        self.rates, self.lanes, self.mr = task.rates, self.hardware.lanes(), self.of["mr"]
        self.nr = self.of["nv"] * self.lanes
        self.i, self.j, self.d, self.e = (np.asarray(extents[self.chain.axis[axis]], np.float64) for axis in "ijde")
        self.batch = volume((self.chain.axis[axis] for axis in self.chain.batch), extents)
        self.seen = self._visible(extents)
        self.tiles = np.ceil(self.i / self.mr)
        self.padded = np.where(self.of["tail"] > 0, self.i, self.tiles * self.mr)
        self.height = self.padded / np.maximum(self.tiles, 1.0)
        self.blocks = np.ceil(self.i / (self.mr * self.of["rows"]))
        self.is_blocked = self.of["cols"] > 0
        width = np.where(self.is_blocked, self.nr * self.of["cols"], np.maximum(self.j, 1.0))
        self.passes = np.maximum(np.ceil(self.seen / width), 1.0)
        self.kept = self.mr * self.of["rows"] * np.minimum(width, self.j) * 4

    def _visible(self, extents: Extents) -> Floats:
        """[shapes] columns that the mask leaves visible to a row, in the mean."""
        return np.minimum(self._within_bounds(extents), self._within_limits(extents))

    def _within_limits(self, extents: Extents) -> Floats:
        """What data leaves visible, of which only sizes are known: as many offsets part the columns into sequences of
        one length; else half of them is seen."""
        reduced = [axis for stage in self.chain.positions for axis in stage.reduce_axes]
        if reduced:
            return np.asarray(self.j / np.maximum(np.asarray(extents[reduced[0]], np.float64) - 1.0, 1.0))
        return self.j * UNKNOWN_SHARE if self.chain.mask.limits else self.j

    def _within_bounds(self, extents: Extents) -> Floats:
        if not self.chain.mask.bounds:
            return self.j
        nothing, total = np.zeros(len(self.i)), np.zeros(len(self.i))
        values: dict[str, Any] = {f"extent({name})": np.asarray(size, np.float64) for name, size in extents.items()}
        values |= dict.fromkeys(self.chain.batch, nothing)
        for sample in range(SAMPLED_ROWS):
            values["i"] = np.floor(self.i * (2 * sample + 1) / (2 * SAMPLED_ROWS))
            first, end = nothing, self.j
            for bound in self.chain.mask.bounds:
                limit = np.asarray(bound.limit.evaluate(values), np.float64)
                first, end = (first, np.minimum(end, limit + 1)) if bound.is_upper else (np.maximum(first, limit), end)
            total += np.maximum(end - first, 0.0)
        return total / SAMPLED_ROWS

    def cycles(self) -> Floats:
        """[kernels, shapes]."""
        vectors = np.ceil(self.seen / self.lanes)
        # Scores are written, read and written as exponentials, and read once more.
        moved = 3 * self.i * self.seen * 4 / self._rate(self.kept)
        softmax = self.i * (vectors * SCORE_CYCLES + self.passes * ROW_CYCLES) + moved
        # By vectors along d: as many sums as a vector of columns has lanes, which are combined at the end.
        each = np.ceil(self.d / self.lanes) / self.rates.loads * 1.2 + 3.0
        in_place = self.i * vectors * self.lanes * each
        scores = np.where(self.of["pack"] > 0, self._packed(), in_place)
        work = self.batch * (scores + softmax + self._values())
        shared = work / thread_speedup(self.batch * self.blocks, self.task.threads)
        return np.asarray(shared + self.flushed + call_cycles(self.task))

    def _step(self, vectors: Floats) -> Floats:
        """One step of a register tile: arithmetic, loads, or the latency of its accumulators."""
        # The compiler keeps addresses and constants in registers beside the accumulators, and spills some of these.
        crowded = self.mr * vectors + vectors > CROWDED * self.hardware.vector_registers
        work = self.height * vectors / self.rates.fma_per_cycle(self.hardware) * np.where(crowded, SPILLED, 1.0)
        work = np.maximum(work, (self.height + vectors) / self.rates.loads)
        return np.asarray(np.maximum(work, self.rates.fma_latency))

    def _packed(self) -> Floats:
        """Scores by register tiles, from panels of k."""
        panels = np.ceil(self.seen / self.nr)
        tile = self.d * self._step(self.of["nv"]) + TILE_CYCLES + self.height * self.of["nv"]
        # A panel comes from L2 for each block of rows, and stays in L1 for its tiles.
        moved = self.blocks * panels * self.nr * self.d * 4 / self._rate(self.j * self.d * 4)
        packing = self.j * self.d * PACK_CYCLES * (0.2 if self.chain.j_is_last else 1.0)
        return np.asarray(self.tiles * panels * tile + moved + packing)

    def _values(self) -> Floats:
        ev, width = self.of["ev"], self.of["ev"] * self.lanes
        whole, rest = np.floor(self.e / width), np.ceil(self.e % width / self.lanes)
        step = whole * self._step(ev) + np.where(rest > 0, self._step(np.maximum(rest, 1.0)), 0.0)
        tiles = self.tiles * (self.seen * step + self.passes * (whole + (rest > 0)) * TILE_CYCLES)
        # Loads run ahead of the arithmetic: the slower of them counts.
        moved = self.tiles * self.seen * self.e * 4 / self._rate(self.seen * self.e * 4)
        stored = self.padded * np.ceil(self.e / self.lanes)
        again = np.where(self.is_blocked, 3.0 * (self.passes + 1), 0.0)
        return np.asarray(np.maximum(tiles, moved) + stored * (1.0 + again))

    def _rate(self, size: Floats) -> Floats:
        """Bytes per cycle of the level that keeps so many, beside others."""
        in_l1, in_l2 = size < 0.6 * self.hardware.l1d_bytes, size < 0.6 * self.hardware.l2_bytes
        return np.where(in_l1, self.rates.l1_bytes, np.where(in_l2, self.rates.l2_bytes, self.rates.l3_bytes))
