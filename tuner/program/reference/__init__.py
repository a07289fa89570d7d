"""The NumPy reference: one interpreter for all programs, in float64, and how far a right kernel may lie from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.language.workload import Workload
from tuner.program.reference.arithmetic import Array, Bounded
from tuner.program.reference.stages import Interpreter

WHOLE_WORK = 2e10
"""Operations (see Workload.work) up to which whoever verifies computes all of an output, some seconds on one core. Of
more a share of the rows is computed that takes as long."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What an output must be: float64, or integers of its dtype. ``limit``: the most that each element may be off.

    A limit of inf takes anything, NaN too: a kernel's rounding may decide what comes out (``1 / (x - y)``).
    """

    value: Array
    limit: Array

    def wrong(self, result: Array) -> Array:
        """Which elements of ``found``, of any dtype, are not within the limit. Equal infinities match, and NaNs do."""
        value = self.value
        if result.dtype == bool:
            # A byte that is neither true nor false is wrong.
            result, value = result.view(np.uint8), value.astype(np.uint8)
        elif result.dtype.kind not in "iu":
            result = result.astype(np.float64)
        with np.errstate(all="ignore"):
            off = np.abs(np.subtract(result, value, dtype=np.float64))
        same = (result == value) | (_is_nan(result) & _is_nan(value))
        # Not "off > limit": a NaN is wrong, too.
        return np.asarray(~(same | ((off <= self.limit) & (self.limit > 0)) | (self.limit == np.inf)))


def _is_nan(array: Array) -> Array:
    return np.isnan(array) if array.dtype.kind not in "iub" else np.zeros(array.shape, bool)


def compute(workload: Workload, inputs: Sequence[Array], dims: Mapping[str, int]) -> tuple[Array, ...]:
    """The outputs of ``workload`` for ``inputs`` in call order, at these values of its symbols.

    Floats come in float64, integers and bools in the dtype of the tensor. Raises InvalidInput for dims that the program
    is not defined at, and for inputs of other shapes.
    """
    return tuple(output.value for output in Interpreter(workload, inputs, dims, bounds=False).run())


def expected(
    workload: Workload, inputs: Sequence[Array], dims: Mapping[str, int], share: float = 1.0
) -> tuple[Expected, ...]:
    """The outputs with the tolerance of every element, for inputs that a kernel gets exactly as they are here.

    It is the rounding of the output's dtype, and that of everything computed on the way: of 16-bit intermediates, of
    scalar functions, and of sums, by the magnitude of what is summed. Integers are exact unless floats decide them.

    ``share``: of the slices of the program's shared axes (rows of attention, of every head) that are computed; other
    elements have a limit of inf. A program without such axes is computed as a whole.
    """
    outputs = Interpreter(workload, inputs, dims, bounds=True).run(share)
    return tuple(Expected(one.value, _limit(one)) for one in outputs)


def _limit(output: Bounded) -> Array:
    if output.error is None:
        return np.zeros(output.value.shape)
    # Beside a number no bound is known; nothing but another NaN matches a NaN.
    return np.where(np.isnan(output.error), np.where(_is_nan(output.value), 0.0, np.inf), output.error)


__all__ = ["WHOLE_WORK", "Expected", "compute", "expected"]
