"""How fast a device issues each instruction that multiplies and adds, and how fast its clock is.

The machine code comes from tuner.measure.roof.kernels. Nothing here needs TVM's compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.measure.tensors import tensor_of
from tuner.measure.timing.protocol import Timer, sampling
from tuner.program.target import Target
from tuner.schedule.packing import aligned
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import ATOMS, FMA

CLOCK = "clock"
"""The name of the function that measures the clock."""
CLOCK_TURNS, CLOCK_CYCLES = 2**20, 2
"""Turns of its loop, of an addition and an exclusive or that wait for each other: each takes a cycle on any core."""
TURNS, ROWS = 1024, 16
"""Iterations of the two loops around an instruction; ROWS of operands stay in L1."""
PATTERN = 0x3F803F80
"""The value of every word of the operands: about one as a float32, one twice as bfloat16, small numbers as integers."""


@dataclass(frozen=True, slots=True)
class Issued:
    """An instruction, and the register tile it is issued for again and again: ``down`` by ``across`` totals."""

    atom: Atom
    down: int
    across: int

    @property
    def function(self) -> str:
        return f"issue_{self.atom.name}"

    @property
    def operands(self) -> tuple[int, int, int]:
        """Steps, operands of a step (those of ``down`` first), and vectors of an operand: a tile's rows."""
        return ROWS, self.down + self.across, max(self.atom.rows, self.atom.steps)

    @property
    def totals(self) -> tuple[int, int]:
        """The number of totals, and of the vectors of each."""
        return self.down * self.across, self.atom.rows

    @property
    def count(self) -> int:
        """Instructions (multiplications of tiles, in a matrix unit) of one call, on each thread."""
        return TURNS * ROWS * self.down * self.across


def issued(target: Target) -> Iterator[Issued]:
    """An instruction of each name that the target has, but the multiply-add of floats, which is the peak."""
    hardware = target.hardware
    named = {atom.name: atom for atom in ATOMS if atom is not FMA and atom.is_on(hardware)}
    for atom in named.values():
        registers = atom.unit.registers if atom.unit else hardware.vector_registers
        # Operands need some, and an instruction of two operations one between them.
        across = 2 if atom.unit else 3
        yield Issued(atom, (registers - across - 1 - atom.operations) // across, across)


def measure_issue(module: Any, target: Target, threads: int, timer: Timer) -> tuple[float | None, dict[str, float]]:
    """The clock in Hz, and by instruction how many of them a thread issues in a second while all threads do.

    ``module`` is the loaded binary for this very target and so many threads. What a binary of another release does not
    have is left out.
    """
    lanes = target.hardware.lanes()
    found = {}
    for each in issued(target):
        if module.implements_function(each.function):
            operands = tensor_of(aligned(np.full((*each.operands, lanes), PATTERN, np.int32)))
            out = tensor_of(aligned(np.zeros((threads, *each.totals, lanes), each.atom.total)))
            found[each.atom.name] = each.count / _seconds(module[each.function], operands, out, timer)
    if not module.implements_function(CLOCK):
        return None, found
    numbers, out = (tensor_of(aligned(each)) for each in (np.array([3, 5]), np.zeros(threads, np.int64)))
    return CLOCK_TURNS * CLOCK_CYCLES / _seconds(module[CLOCK], numbers, out, timer), found


def _seconds(function: Any, operands: Any, out: Any, timer: Timer) -> float:
    def call() -> object:
        return function(operands, out)

    return timer.best(call, sampling(call)).latency_s
