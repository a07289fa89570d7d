"""Routines of MKL and oneDNN for matrix products, through PyTorch, which ships both: each called as its users call it,
a constant packed ahead where the routine has a way to. They take what our contraction rule takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.harness.calls import Array, Call, DoesNotApply
from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch
from tuner.schedule.product.match.plain import Matrices, match

Prepared = Callable[[Sequence[Array]], Call]
"""A function from all inputs of a call in order, constants among them, to the call. Made once for a workload."""
Operands = Callable[[Sequence[Array]], tuple[Any, Any]]


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


def _matrices(workload: Workload, *, batched: bool = False) -> tuple[Matrices, Operands]:
    """The roles of the operands, and what gives them as [..., m, k] and [..., k, n], a view where one lies the other
    way. Raises DoesNotApply, also for a batch where one product is wanted, and the other way round."""
    roles, names = contraction_of(workload), [tensor.name for tensor in workload.inputs]
    if any(tensor.dtype != "float32" for tensor in workload.operands):
        raise DoesNotApply("it multiplies float32 here")
    if batched and not roles.has_batch:
        raise DoesNotApply("bmm multiplies batches of matrices; mm is the call for two matrices")
    if roles.has_batch and not batched:
        raise DoesNotApply("it multiplies two matrices; bmm is the call for a batch of them")

    def operands(inputs: Sequence[Array]) -> tuple[Any, Any]:
        left, right = (tensor_of(inputs[names.index(each.tensor)]) for each in (roles.left, roles.right))
        return left, right if roles.right.lies_along_n else right.transpose(-1, -2)

    return roles, operands


def mm(workload: Workload) -> Prepared:
    return _with_out(_matrices(workload)[1], torch.mm)


def bmm(workload: Workload) -> Prepared:
    return _with_out(_matrices(workload, batched=True)[1], torch.bmm)


def _with_out(operands: Operands, function: Any) -> Prepared:
    def call(inputs: Sequence[Array]) -> Call:
        a, b = operands(inputs)
        out = torch.empty(*a.shape[:-1], b.shape[-1])
        return lambda: function(a, b, out=out)

    return call


def linear(workload: Workload) -> Prepared:
    roles, operands = _matrices(workload)
    if roles.right.lies_along_n:
        raise DoesNotApply("linear multiplies by a transposed operand; mm is the call for this one")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = operands(inputs)
        weight = weight.T
        return lambda: torch.nn.functional.linear(x, weight)

    return call


def mkl(workload: Workload) -> Prepared:
    """MKL with the weight packed for the very number of rows that it is called with."""
    roles, operands = _matrices(workload)
    if not roles.right.is_packed_ahead:
        raise DoesNotApply("nothing is constant, so nothing can be packed ahead: mm is MKL here")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = operands(inputs)
        rows, weight = x.shape[0], weight.T
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        return lambda: torch.ops.mkl._mkl_linear(x, packed, weight, None, rows)

    return call


def onednn(workload: Workload) -> Prepared:
    """oneDNN with the weight packed for the number of rows, or its linear on the operand as it is."""
    roles, operands = _matrices(workload)

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = operands(inputs)
        weight = weight.T
        if roles.right.is_packed_ahead:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
        return lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return call
