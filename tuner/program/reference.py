"""The operators of the catalogue in NumPy, in float64: what every kernel is verified against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.catalogue import Contraction, Operand

if TYPE_CHECKING:
    from tuner.program.workload import Workload

Array = NDArray[Any]


def compute(workload: Workload, inputs: Sequence[Array]) -> Array:
    """The output of ``workload`` for ``inputs`` (in call order, without the output), in float64."""
    left, right, *extra = (np.asarray(array, dtype=np.float64) for array in inputs)
    out = np.matmul(*matrices(workload.op.contraction, left, right))
    operands = iter(extra)
    for name in workload.epilogue:
        if name in ("bias", "add"):
            out = out + next(operands)
        elif name == "relu":
            out = np.maximum(out, 0.0)
        elif name == "gelu":
            out = 0.5 * out * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(out / math.sqrt(2.0)))
        elif name == "gelu_tanh":
            out = 0.5 * out * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (out + 0.044715 * out**3)))
        else:
            raise NotImplementedError(f"epilogue {name} has no reference")
    return np.asarray(out)


def matrices(contraction: Contraction, left: Array, right: Array) -> tuple[Array, Array]:
    """Views [*batch, rows, sum] of ``left`` and [*batch, sum, columns] of ``right``: their product is the contraction.

    A matmul of transposed views runs on BLAS; einsum would not, over a batch.
    """
    *batch, rows, columns = contraction.output.axes
    (shared,) = contraction.reduction_axes

    def view(array: Array, operand: Operand, *axes: str) -> Array:
        return array.transpose([operand.axes.index(axis) for axis in axes])

    return (
        view(left, contraction.left, *batch, rows, shared),
        view(right, contraction.right, *batch, shared, columns),
    )


def tolerance(workload: Workload, reduction: int) -> tuple[float, float]:
    """(rtol, atol) for float32 results of operands drawn from [-1, 1) with ``reduction`` products in each sum.

    The rounding error of a float32 dot product grows like sqrt(k) in the mean and k at worst; sums of k products of
    magnitude 1/3 have a spread of about sqrt(k)/3, so 1e-6 * k bounds the error. It is held below a fiftieth of the
    largest product, so that a product too few shows.
    """
    return 1e-4, min(1e-6 * max(reduction, 16), 0.02)
