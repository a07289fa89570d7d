"""Verification of a candidate: ragged shapes, poisoned surroundings, and a reference in float64. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure.verification.guarded import POISON, Array, Guarded, bits
from tuner.measure.verification.inputs import Made, random_inputs
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.language.arrays import NUMPY
from tuner.program.language.workload import Tensor, Workload
from tuner.program.reference import WHOLE_WORK, Expected, expected


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One shape to verify at: its inputs in call order, unpacked, and what each output must be."""

    dims: Mapping[str, int]
    inputs: tuple[Array, ...]
    outputs: tuple[Tensor, ...]
    expected: tuple[Expected, ...]

    @staticmethod
    def of(workload: Workload, dims: Mapping[str, int], made: Made | None = None) -> Case:
        """Random inputs for these values of the symbols; ``made``: see ``random_inputs``. Of outputs that are more than
        WHOLE_WORK some rows are compared, the rest must have been written. Raises InvalidInput if the program is not
        defined there."""
        inputs, share = random_inputs(workload, dims, made), min(1.0, WHOLE_WORK / max(workload.work(dims), 1))
        return Case(dict(dims), inputs, workload.outputs, expected(workload, inputs, dims, share))

    def check(self, inputs: Sequence[Array], call: Callable[[Sequence[Array]], object]) -> str | None:
        """Run ``call`` on ``inputs`` (packed where they must be) and the outputs; what is wrong with it, or None."""
        return self.check_guarded(inputs, lambda operands: call([each.array for each in operands]))

    def check_guarded(
        self, inputs: Sequence[Array], call: Callable[[Sequence[Guarded]], object], alignment: int = 1
    ) -> str | None:
        """``check``, where ``call`` is handed what surrounds its operands, too. These begin at multiples of
        ``alignment`` bytes, or of an element if that is more."""

        def skew(itemsize: int) -> int:
            # Off every greater alignment: users' arrays are.
            return max(1, alignment // itemsize)

        operands = [Guarded.copy_of(array, skew(array.itemsize)) for array in inputs]
        results = [
            Guarded.empty(wanted.value.shape, NUMPY[tensor.dtype], skew(NUMPY[tensor.dtype].itemsize))
            for tensor, wanted in zip(self.outputs, self.expected, strict=True)
        ]
        call([*operands, *results])
        problem = _damaged_inputs(operands, inputs) or self._wrong_results(results)
        return f"{problem}, at {self._shape()}" if problem else None

    def _wrong_results(self, results: Sequence[Guarded]) -> str | None:
        names = [f"output {tensor.name}" if len(results) > 1 else "its output" for tensor in self.outputs]
        for name, result in zip(names, results, strict=True):
            if damage := result.damage(name):
                return damage
        for name, result, wanted in zip(names, results, self.expected, strict=True):
            if problem := difference(result.array, wanted):
                return f"{problem} of {name}" if len(results) > 1 else problem
        return None

    def _shape(self) -> str:
        shape = ", ".join(f"{name}={value}" for name, value in self.dims.items()) or "its only shape"
        whole = sum(each.value.size for each in self.expected)
        compared = sum(int(np.count_nonzero(each.limit < np.inf)) for each in self.expected)
        return shape if compared == whole else f"{shape}, where {compared} of {whole} elements were compared"


def _damaged_inputs(operands: Sequence[Guarded], inputs: Sequence[Array]) -> str | None:
    """A message on damage to the inputs, which no kernel may write to; None without."""
    for index, (operand, given) in enumerate(zip(operands, inputs, strict=True)):
        if not np.array_equal(bits(operand.array), bits(given)):
            return f"input {index} was written to"
        if damage := operand.damage(f"input {index}"):
            return damage
    return None


def difference(result: Array, wanted: Expected) -> str | None:
    """How many elements of a result are beyond their limits, and the worst of them; None if none is."""
    wrong = wanted.wrong(result) | _unwritten(result)
    if not wrong.any():
        return None
    values = bits(result) if result.dtype == bool else result
    with np.errstate(all="ignore"):
        error = np.abs(np.subtract(values, wanted.value, dtype=np.float64))
    worst = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(error, nan=np.inf), -1.0))), error.shape)
    where = ", ".join(str(int(index)) for index in worst)
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong: max error {error[worst]:.3g} at [{where}], "
        f"{float(values[worst]):.6g} in place of {float(wanted.value[worst]):.6g}"
    )


def _unwritten(result: Array) -> Array:
    """Which elements of a guarded result are the poison that they were before: floats alone, as no kernel computes such
    a NaN."""
    if result.dtype.kind in "iub":
        return np.zeros(result.shape, bool)
    return np.asarray(bits(result) == POISON[result.itemsize])


def cases(workload: Workload, made: Made | None = None) -> list[Case]:
    """Every case that a candidate of ``workload`` must pass before it is timed."""
    made = {} if made is None else made
    return [Case.of(workload, dims, made) for dims in ragged_dims(workload)]
