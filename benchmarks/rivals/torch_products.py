"""Routines of MKL and oneDNN for matrix products, through PyTorch, which ships both: each called as its users call it,
a constant packed ahead where the routine has a way to. They take what our contraction rule takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness.calls import Array, Call, DoesNotApply
from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch
from tuner.schedule.product.match.plain import Matrices, match

Prepared = Callable[[Sequence[Array]], Call]
"""A function from all inputs of a call in order, constants among them, to the call. Made once for a workload."""


def tensor_of(array: Array) -> Any:
    """PyTorch's view of ``array``, which has no gaps."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def contraction_of(workload: Workload) -> Matrices:
    """The roles of a matrix product without an epilogue. Raises DoesNotApply for any other workload."""
    matched = match(workload)
    if isinstance(matched, NoMatch):
        raise DoesNotApply(f"it multiplies matrices: {matched.reason}")
    if matched.result.epilogue:
        raise DoesNotApply("it multiplies matrices and has no epilogue")
    return matched


@dataclass(frozen=True)
class _Matrices:
    """The operands of a product as PyTorch's tensors, from the inputs of a call."""

    workload: Workload
    contraction: Matrices

    @staticmethod
    def of(workload: Workload, batched: bool = False) -> _Matrices:
        """Raises DoesNotApply, also for a batch where one product is wanted, and the other way round."""
        contraction = contraction_of(workload)
        if any(tensor.dtype != "float32" for tensor in workload.operands):
            raise DoesNotApply("it multiplies float32 here")
        if batched and not contraction.has_batch:
            raise DoesNotApply("bmm multiplies batches of matrices; mm is the call for two matrices")
        if contraction.has_batch and not batched:
            raise DoesNotApply("it multiplies two matrices; bmm is the call for a batch of them")
        return _Matrices(workload, contraction)

    @property
    def is_constant(self) -> bool:
        return self.contraction.right.is_packed_ahead

    def both(self, inputs: Sequence[Array]) -> tuple[Any, Any]:
        """[..., m, k] and [..., k, n], a view where the operand lies the other way."""
        right = self._tensor(self.contraction.right.tensor, inputs)
        left = self._tensor(self.contraction.left.tensor, inputs)
        return left, right if self.contraction.right.lies_along_n else right.transpose(-1, -2)

    def _tensor(self, name: str, inputs: Sequence[Array]) -> Any:
        names = [tensor.name for tensor in self.workload.inputs]
        return tensor_of(inputs[names.index(name)])


def mm(workload: Workload) -> Prepared:
    return _with_out(_Matrices.of(workload), torch.mm)


def bmm(workload: Workload) -> Prepared:
    return _with_out(_Matrices.of(workload, batched=True), torch.bmm)


def _with_out(matrices: _Matrices, function: Any) -> Prepared:
    def call(inputs: Sequence[Array]) -> Call:
        a, b = matrices.both(inputs)
        out = torch.empty(*a.shape[:-1], b.shape[-1])
        return lambda: function(a, b, out=out)

    return call


def linear(workload: Workload) -> Prepared:
    matrices = _Matrices.of(workload)
    if matrices.contraction.right.lies_along_n:
        raise DoesNotApply("linear multiplies by a transposed operand; mm is the call for this one")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.both(inputs)
        weight = weight.T
        return lambda: torch.nn.functional.linear(x, weight)

    return call


def mkl(workload: Workload) -> Prepared:
    """MKL with the weight packed for the very number of rows that it is called with."""
    matrices = _Matrices.of(workload)
    if not matrices.is_constant:
        raise DoesNotApply("nothing is constant, so nothing can be packed ahead: mm is MKL here")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.both(inputs)
        rows, weight = x.shape[0], weight.T
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        return lambda: torch.ops.mkl._mkl_linear(x, packed, weight, None, rows)

    return call


def onednn(workload: Workload) -> Prepared:
    """oneDNN with the weight packed for the number of rows, or its linear on the operand as it is."""
    matrices = _Matrices.of(workload)

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.both(inputs)
        weight = weight.T
        if matrices.is_constant:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
        return lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return call
