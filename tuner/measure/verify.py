"""Verification of a candidate: ragged shapes, poisoned surroundings, and a reference in float64. NumPy only."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.program.ops import Operand
from tuner.program.reference import compute, tolerance
from tuner.program.workload import Workload
from tuner.rules.layout import row_major

Floats = NDArray[np.float32]
ALIGNMENT = 64
GUARD = 1024
GUARD_ROWS = 16
"""Elements of poison before and after every operand: GUARD, or GUARD_ROWS rows where that is more, since what goes
wrong at a ragged end is mostly a tile's surplus rows."""
POISON = np.uint32(0x7FC0BEEF)
"""A quiet NaN with a pattern of its own: computed with, it spreads; overwritten, it shows."""

PRIMES = ((37, 41, 43, 47), (113, 127, 131, 137))
"""Extents that no tile divides, within one block and over several; a different one for each dynamic dim."""
BATCHES = (3, 5)
"""The same for dims that only count the contractions of a batch: nothing tiles those, and each repeats the work."""
SUMS = (0, 563, 1543)
"""The same for a dim that is summed over, besides: zeros to write, nothing to read; sums done in parts."""
MAX_FLOPS = 4e8
"""The work that one ragged shape may take: the reference runs on the device's own CPU, too."""


def ragged_dims(workload: Workload) -> list[dict[str, int]]:
    """Values of the dynamic dims to verify a candidate at: all 1, then primes, then larger ones, then SUMS.

    They need not lie in a job's range: a kernel is right for every shape. The first two are always there, so that full
    tiles and ragged ones are checked; larger ones that are too much work are left out. A workload without dynamic dims
    has one shape.
    """
    names = workload.dynamic_dims
    if not names:
        return [{}]
    small, large = (_prime_dims(workload, *sizes) for sizes in zip(PRIMES, BATCHES, strict=True))
    reduction = workload.op.contraction.reduction_axes
    summed = dict.fromkeys(dim for axis, dim in workload.dynamic_axes.items() if axis in reduction)
    others = [large, *(small | {dim: size} for dim in summed for size in SUMS)]
    least = dict.fromkeys(names, 1)
    return [least, small, *(dims for dims in others if workload.flops_of_dims(dims) <= MAX_FLOPS)]


def _prime_dims(workload: Workload, primes: Sequence[int], batch: int) -> dict[str, int]:
    """A prime for each dynamic dim; ``batch`` for those that no other axis than a batch's reads."""
    tiled = {dim for axis, dim in workload.dynamic_axes.items() if axis not in workload.op.contraction.batch_axes}
    each = itertools.cycle(primes)
    return {name: next(each) if name in tiled else batch for name in workload.dynamic_dims}


def operand_shape(operand: Operand, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extents[axis] for axis in operand.axes)


def random_array(name: str, shape: Sequence[int]) -> Floats:
    """Values in [-1, 1), the same ones for the same name and shape in every process."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), *shape])
    values = rng.random(tuple(shape), dtype=np.float32)
    values *= 2
    values -= 1
    return values


@dataclass(frozen=True, slots=True)
class Guarded:
    """An array in the middle of poisoned memory, ``skew`` elements past an address aligned to ALIGNMENT bytes."""

    array: Floats
    before: Floats
    after: Floats

    @staticmethod
    def empty(shape: Sequence[int], skew: int = 0) -> Guarded:
        """Poisoned throughout: an element that is never written stays NaN."""
        size = math.prod(shape)
        slack = ALIGNMENT // 4 + skew
        guard = max(GUARD, GUARD_ROWS * (shape[-1] if shape else 1))
        whole = np.full(size + 2 * guard + slack, POISON, np.uint32).view(np.float32)
        skip = (-whole.ctypes.data % ALIGNMENT) // 4 + skew
        # A multiple of the alignment, so that the array starts where it is meant to.
        guard -= guard % (ALIGNMENT // 4)
        start = skip + guard
        end = start + size
        return Guarded(row_major(whole[start:end].reshape(tuple(shape))), whole[skip:start], whole[end : end + guard])

    @staticmethod
    def copy_of(values: Floats, skew: int = 0) -> Guarded:
        guarded = Guarded.empty(values.shape, skew)
        guarded.array[...] = values
        return guarded

    def damage(self, of: str = "its output") -> str | None:
        """Where the memory around the array has been written to; None if it is whole."""
        for name, guard in (("before the start", self.before[::-1]), ("past the end", self.after)):
            hit = np.flatnonzero(guard.view(np.uint32) != POISON)
            if hit.size:
                return f"{hit.size} elements {name} of {of} were overwritten, the nearest {hit[0] + 1} away"
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """One shape to verify at: its inputs in call order, unpacked, and what the output must be."""

    dims: Mapping[str, int]
    inputs: tuple[Floats, ...]
    expected: NDArray[np.float64]
    rtol: float
    atol: float

    @staticmethod
    def of(workload: Workload, dims: Mapping[str, int]) -> Case:
        extents = workload.extents_of_dims(dims)
        inputs = tuple(random_array(op.name, operand_shape(op, extents)) for op in workload.operands[:-1])
        reduction = math.prod(extents[axis] for axis in workload.op.contraction.reduction_axes)
        return Case(dict(dims), inputs, compute(workload, inputs), *tolerance(workload, reduction))

    def check(self, inputs: Sequence[Floats], call: Callable[[Sequence[Floats]], object]) -> str | None:
        """Run ``call`` on ``inputs`` (packed where they must be) and an output; what is wrong with it, or None."""
        # Off every alignment but that of an element: users' arrays are.
        operands = [Guarded.copy_of(array, skew=1) for array in inputs]
        output = Guarded.empty(self.expected.shape, skew=1)
        call([*(operand.array for operand in operands), output.array])
        problem = self._damage(operands, inputs) or output.damage() or self._difference(output.array)
        return f"{problem}, at {self._place()}" if problem else None

    def _damage(self, operands: Sequence[Guarded], inputs: Sequence[Floats]) -> str | None:
        """What has been done to the inputs, which no kernel may write to."""
        for index, (operand, given) in enumerate(zip(operands, inputs, strict=True)):
            if not np.array_equal(operand.array.view(np.uint32), given.view(np.uint32)):
                return f"input {index} was written to"
            if damage := operand.damage(f"input {index}"):
                return damage
        return None

    def _difference(self, found: Floats) -> str | None:
        error = np.abs(found - self.expected)
        # Not "error > limit": a NaN is an error, too.
        wrong = ~(error <= self.atol + self.rtol * np.abs(self.expected))
        if not wrong.any():
            return None
        worst = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(error, nan=np.inf), -1.0))), error.shape)
        where = ", ".join(str(int(index)) for index in worst)
        return (
            f"{int(wrong.sum())} of {wrong.size} elements are wrong: max error {error[worst]:.3g} at [{where}], "
            f"{found[worst]:.6g} in place of {self.expected[worst]:.6g}"
        )

    def _place(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.dims.items()) or "its only shape"


def cases(workload: Workload) -> list[Case]:
    """Every case that a candidate of ``workload`` must pass before it is timed."""
    return [Case.of(workload, dims) for dims in ragged_dims(workload)]
