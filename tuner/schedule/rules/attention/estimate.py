"""What theory expects of kernels of attention: cycles of both products and of the softmax, and what each order of loops
moves between the caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.schedule.loops.estimates import Floats, call_cycles, flushed_cycles, thread_speedup, volume
from tuner.schedule.product.atom import Atom
from tuner.schedule.rule import Extents
from tuner.schedule.rules.attention.pattern import chain_of
from tuner.schedule.rules.attention.visible import visible
from tuner.schedule.rules.attention.words import atom_of_values, atoms_of_scores
from tuner.schedule.space import MicroKernel

TILE_CYCLES = 20.0
"""Start and end of a register tile, beside its stores."""
SCORE_CYCLES = 18.0
"""The maximum, the exponential and the sum of one vector."""
ROW_CYCLES = 90.0
"""The softmax of a row in a block of columns: two loops, and lanes combined."""
PACK_CYCLES = 0.5
"""One element of k that is turned over; a fifth of that where it is copied."""
WORD_CYCLES = 0.2
"""One word of v whose elements are put side by side."""
WEIGHED = 1.5
"""Bytes of scores and of rounded exponentials, over those of scores."""
CROWDED, SPILLED = 0.7, 1.35
"""The share of the registers beyond which accumulators are spilled, and what arithmetic takes then."""


class Estimate:
    """Cycles of micro-kernels: sizes are [shapes], a kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.chain, self.hardware = task, chain_of(task.workload), task.known_target.hardware
        self.flushed = flushed_cycles(task, extents)
        names = {"group", *(name for name, _ in kernels[0].values)}
        self.of = {name: np.array([[float(kernel.get(name))] for kernel in kernels]) for name in names}
        self.rates, self.lanes, self.mr = task.rates, self.hardware.lanes(), self.of["mr"]
        self.nr = self.of["nv"] * self.lanes
        self.i, self.j, self.d, self.e = (np.asarray(extents[self.chain.axis[axis]], np.float64) for axis in "ijde")
        self.batch = volume((self.chain.axis[axis] for axis in self.chain.batch), extents)
        self.seen = visible(self.chain, extents)
        self._of_words()
        self.tiles = np.ceil(self.i / self.mr)
        self.padded = np.where(self.of["tail"] > 0, self.i, self.tiles * self.mr)
        self.height = self.padded / np.maximum(self.tiles, 1.0)
        self.blocks = np.ceil(self.i / (self.mr * self.of["rows"]))
        self.is_blocked = self.of["cols"] > 0
        self.width = np.where(self.is_blocked, self.nr * self.of["cols"], np.maximum(self.j, 1.0))
        self.passes = np.maximum(np.ceil(self.seen / self.width), 1.0)
        self.kept = self.mr * self.of["rows"] * np.minimum(self.width, self.j) * 4

    def _of_words(self) -> None:
        """[kernels, 1] of each product the elements of a step, and the time of its instruction in multiply-adds."""
        self.scored, self.scored_issue = np.ones_like(self.mr), np.ones_like(self.mr)
        self.mixing, self.mixing_issue = np.ones_like(self.mr), np.ones_like(self.mr)
        self.units: list[tuple[NDArray[np.bool_], Atom]] = []
        workload = self.task.workload
        for depth, atom in atoms_of_scores(workload, self.chain, self.hardware).items():
            if depth == 1:
                continue
            of, issue = self.of["group"] == depth, self.rates.of_instruction(atom.name) or atom.operations
            self.scored[of], self.scored_issue[of] = atom.group, issue
            if (other := atom_of_values(workload, self.chain, depth, self.hardware)) is not None:
                issue = self.rates.of_instruction(other.name) or other.operations
                self.mixing[of], self.mixing_issue[of] = other.group, issue
            if atom.unit is not None:
                self.units.append((of, atom))

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

    def _step(self, vectors: Floats, issue: Floats) -> Floats:
        """One step of a register tile: arithmetic, loads, or the latency of its accumulators. ``issue``: the time of
        an instruction, in multiply-adds."""
        # The compiler keeps addresses and constants in registers beside the accumulators, and spills some of these.
        crowded = self.mr * vectors + vectors > CROWDED * self.hardware.vector_registers
        rate = self.rates.fma_per_cycle(self.hardware)
        work = self.height * vectors * issue / rate * np.where(crowded, SPILLED, 1.0)
        work = np.maximum(work, (self.height + vectors) / self.rates.loads)
        step = np.maximum(work, self.rates.fma_latency)
        for of, atom in self.units:
            step = np.where(of, self._unit_step(atom, vectors), step)
        return np.asarray(step)

    def _unit_step(self, atom: Atom, vectors: Floats) -> Floats:
        """One word of a step where tiles are multiplied: multiplications are of several, and loads of rows."""
        assert atom.unit is not None
        down, across = np.ceil(self.mr / atom.rows), vectors * self.lanes / atom.unit.columns
        loads = (down * atom.rows + across * atom.steps) / self.rates.loads
        cycles = atom.unit_cycles(self.rates, self.hardware)
        return np.asarray(np.maximum(down * across * cycles, loads) / atom.steps)

    def _packed(self) -> Floats:
        """Scores by register tiles, from panels of k."""
        panels, d = np.ceil(self.seen / self.nr), np.ceil(self.d / self.scored)
        tile = d * self._step(self.of["nv"], self.scored_issue) + TILE_CYCLES + self.height * self.of["nv"]
        # A panel comes from L2 for each block of rows, and stays in L1 for its tiles.
        moved = self.blocks * panels * self.nr * d * 4 / self._rate(self.j * d * 4)
        packing = self.j * d * PACK_CYCLES * (0.2 if self.chain.j_is_last else 1.0)
        return np.asarray(self.tiles * panels * tile + moved + packing)

    def _values(self) -> Floats:
        ev, width = self.of["ev"], self.of["ev"] * self.lanes
        whole, rest = np.floor(self.e / width), np.ceil(self.e % width / self.lanes)
        last = np.where(rest > 0, self._step(np.maximum(rest, 1.0), self.mixing_issue), 0.0)
        step, seen = whole * self._step(ev, self.mixing_issue) + last, self.seen / self.mixing
        tiles = self.tiles * (seen * step + self.passes * (whole + (rest > 0)) * TILE_CYCLES)
        # Loads run ahead of the arithmetic: the slower of them counts.
        size = seen * self.e * 4
        moved = self.tiles * size / self._rate(size)
        # Packed values of a block of columns come for the first tile of rows, and stay beside scores and weights.
        block = np.minimum(self.width / self.mixing, seen) * self.e * 4 + WEIGHED * self.kept
        again = self.blocks * size / self._rate(size) + (self.tiles - self.blocks) * size / self._rate(block)
        moved = np.where(self.mixing > 1, again, moved)
        packing = np.where(self.mixing > 1, self.j * self.e / self.mixing * WORD_CYCLES, 0.0)
        stored = self.padded * np.ceil(self.e / self.lanes)
        scaled = np.where(self.is_blocked, 3.0 * (self.passes + 1), 0.0)
        return np.asarray(np.maximum(tiles, moved) + stored * (1.0 + scaled) + packing)

    def _rate(self, size: Floats) -> Floats:
        """Bytes per cycle of the level that keeps so many, beside others."""
        in_l1, in_l2 = size < 0.6 * self.hardware.l1d_bytes, size < 0.6 * self.hardware.l2_bytes
        return np.where(in_l1, self.rates.l1_bytes, np.where(in_l2, self.rates.l2_bytes, self.rates.l3_bytes))
