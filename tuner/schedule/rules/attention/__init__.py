"""The rule for chains of a contraction, a softmax along rows and a second contraction, in one pass over the rows.

It finds them by what the stages compute (pattern.py), whatever their names: attention, with any elementwise scores
(scale, mask, bias, segments of a ragged batch) and any elementwise stages behind it. Scores are never stored as a
whole: a block of rows keeps its own in cache. ``cols`` panels of k, of nv vectors each, are a block of columns, between
which sums are scaled to the new maximum (online softmax). With 0 a block of rows keeps all its scores, and its maximum
is known before the exponentials. Threads share the blocks of rows of the whole batch. No choice depends on a shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.estimates import feature_table
from tuner.schedule.product.atom import Atom, registers_of
from tuner.schedule.product.axes import atom_axes, atom_of, default_tile
from tuner.schedule.rule import Extents, NoMatch, Tiles, TirRule
from tuner.schedule.rules.attention.chain import Chain
from tuner.schedule.rules.attention.context import Context
from tuner.schedule.rules.attention.emit import write
from tuner.schedule.rules.attention.estimate import Estimate
from tuner.schedule.rules.attention.pattern import chain_of, match
from tuner.schedule.rules.attention.ranges import position_bytes
from tuner.schedule.rules.attention.words import atoms_of_scores
from tuner.schedule.space import DEFAULT_CHOICE, Axis, MicroKernel, SearchSpace

MAX_BODY = 512
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
WIDTHS = (1, 2, 3, 4, 6, 8)
TILES = (1, 2, 4, 8, 16)
PANELS = (0, 1, 2, 4, 8, 16, 32)


class Attention(TirRule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "attention"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        return answer if isinstance(answer, NoMatch) else answer.roles(workload)

    def workspace_bytes(self, task: SearchTask) -> int:
        chain, sizes = chain_of(task.workload), task.workload.axis_sizes(task.largest_dims)
        lanes = task.known_target.hardware.lanes()
        j, d, e = (sizes[chain.axis[axis]] for axis in "jde")
        atoms = atoms_of_scores(task.workload, chain, task.known_target.hardware)
        width, rows = WIDTHS[-1] * lanes, _heights(atoms)[-1] * TILES[-1]
        keys = (j + width) * (d + lanes)
        columns = max(j, PANELS[-1] * width) + width + lanes
        if len(atoms) > 1:
            # Words of v beside those of k, rounded exponentials beside scores, and q.
            keys, columns = keys + (j + width) * (e + width), 2 * columns + d + width
        return 4 * task.threads * (keys + rows * (columns + e + width + 3)) + position_bytes(task, chain)

    def space(self, task: SearchTask) -> SearchSpace:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        atoms, check = atoms_of_scores(task.workload, chain, hardware), partial(_check, hardware=hardware)
        axes = (
            Axis("mr", "rows of the register tiles", _heights(atoms)),
            Axis("nv", "vectors in a row of the tile of scores", WIDTHS[:-1]),
            Axis("ev", "vectors in a row of the tile of the output", _widths(task, chain)),
            Axis("rows", "tiles in a block of rows", TILES),
            Axis("cols", "panels in a block of columns; 0 is all of them", PANELS),
            Axis("pack", "k is packed at each call", (0, 1) if chain.is_along_d else (1,)),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("ku", "steps of the reductions unrolled", (1, 2, 4)),
            *atom_axes(atoms, is_optional=True),
        )
        return SearchSpace(
            self.name, self.version, axes, partial(check, atoms=atoms), partial(_canonicalise, atoms=atoms)
        )

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """Up to three quarters of the registers; blocks of columns, so that no row is too long for the caches."""
        tile, ev = default_tile(task.known_target.hardware), min(2, _widths(task, chain_of(task.workload))[-1])
        return self.space(task).kernel({**tile, "ev": ev, "rows": 8, "cols": 8, "pack": 1, "tail": 1, "ku": 1})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return Estimate(task, kernels, extents).cycles() / task.rates.clock_hz

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """Sizes, the visible share, ragged ends, the kernel's values and the estimate."""
        of = Estimate(task, kernels, extents)
        sizes = [np.log2(each + 1.0) for each in (of.batch, of.i, of.j, of.d, of.e)]
        sizes += [of.seen / np.maximum(of.j, 1.0), of.j % of.lanes]
        sizes += [of.i % of.mr, of.i % (of.mr * of.of["rows"]), of.j % of.nr]
        return feature_table(sizes, [_as_packed(kernel) for kernel in kernels], of.cycles() / task.rates.clock_hz)

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


def _heights(atoms: Mapping[int, Atom]) -> tuple[int, ...]:
    """Rows of register tiles, of those in matrix units too."""
    units = [atom for atom in atoms.values() if atom.unit is not None]
    return tuple(sorted({*HEIGHTS, *(atom.rows * down for atom in units for down in (1, 2, 3))}))


def _canonicalise(values: Mapping[str, int], atoms: Mapping[int, Atom]) -> dict[str, int]:
    nv, tail = values["nv"] if values["pack"] else 1, values["tail"] if values["mr"] > 1 else 0
    # What is read in place is widened: it takes as long to read as to multiply.
    group = {} if values["pack"] or "group" not in values else {"group": DEFAULT_CHOICE}
    whole = {**values, "nv": nv, "tail": tail, **group}
    # Tiles of a matrix unit are whole, and its multiplications deep.
    return whole | ({"tail": 0, "ku": 1} if atom_of(whole, atoms).unit else {})


def _as_packed(kernel: MicroKernel) -> MicroKernel:
    """With the elements of a packed word for ``pack``: every workload has the same features, and learns from others."""
    values = dict(kernel.values) | {"pack": kernel["pack"] * kernel.get("group")}
    return replace(kernel, values=tuple((name, value) for name, value in values.items() if name != "group"))


def _check(kernel: MicroKernel, hardware: Hardware, atoms: Mapping[int, Atom]) -> None:
    mr, widest, ku = kernel["mr"], max(kernel["nv"], kernel["ev"]), kernel["ku"]
    atom, registers = atom_of(kernel, atoms), hardware.vector_registers
    if not kernel["pack"] and kernel["nv"] != 1:
        raise IllegalKernel(f"pack=0 reads k in place: needs nv=1, got {kernel['nv']}")
    if atom.unit is not None:
        if mr % atom.rows:
            raise IllegalKernel(f"mr={mr} is no multiple of the {atom.rows} rows of a tile")
        if registers_of(atom, hardware.lanes(), mr, widest)[2] > atom.unit.registers:
            raise IllegalKernel(
                f"mr={mr} nv={kernel['nv']} ev={kernel['ev']} need more than {atom.unit.registers} tiles"
            )
        return
    if mr not in HEIGHTS:
        raise IllegalKernel(f"mr={mr} is for the tiles of a matrix unit")
    # Every accumulator and one row of vectors are live at once, and a broadcast beside them.
    need = mr * widest + widest + 1
    if need > registers:
        text = f"mr={mr} nv={kernel['nv']} ev={kernel['ev']} needs {need} vector registers"
        raise IllegalKernel(f"{text}, there are {registers}")
    if ku * widest > registers:
        raise IllegalKernel(f"ku={ku} loads {ku * widest} vectors in a turn, limit {registers}")
    if kernel["tail"] and mr == 1:
        raise IllegalKernel("tail=1 needs mr above 1: tiles of one row leave no ragged rest")
    body = ku * mr * (kernel["nv"] + 2 * kernel["ev"])
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    if body > MAX_BODY:
        raise IllegalKernel(f"ku={ku} tail={kernel['tail']} unroll {body} operations, limit {MAX_BODY}")
