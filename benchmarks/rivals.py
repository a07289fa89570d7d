"""What libraries are compared with: the vendor libraries' routines for an operator, each called as its users call it.

Every rival takes the operands once (so it can pack a constant weight ahead, where it has a way to) and gives, for a
shape's input, a call that does the work of one call of ours. All run through PyTorch, which ships MKL and oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.workload import Workload

Array = NDArray[np.float32]
Call = Callable[[], object]
Prepared = Callable[[Array, Array], Call]
"""From the two inputs of a call (the constant one as it was prepared with) to the call."""


class DoesNotApply(Exception):
    """This rival has no routine for the workload; the message says why."""


@dataclass(frozen=True)
class Rival:
    """``prepare(workload, weight)`` is done once; ``weight`` is None where both operands are new at every call."""

    name: str
    doc: str
    prepare: Callable[[Workload, Array | None], Prepared]


def _mm(workload: Workload, weight: Array | None) -> Prepared:
    torch = _torch()
    _refuse_batches(workload)
    transposed = _tensor(weight).t() if weight is not None else None

    def call(left: Array, right: Array) -> Call:
        a, b = _tensor(left), transposed if transposed is not None else _tensor(right)
        out = torch.empty(a.shape[0], b.shape[1])
        return lambda: torch.mm(a, b, out=out)

    return call


def _bmm(workload: Workload, _: Array | None) -> Prepared:
    torch = _torch()
    if not workload.op.contraction.batch_axes:
        raise DoesNotApply("bmm multiplies batches of matrices; mm is the call for two matrices")
    of_batch = _batch_operands(workload)

    def call(left: Array, right: Array) -> Call:
        a, b = of_batch(left, right)
        out = torch.empty(a.shape[0], a.shape[1], b.shape[2])
        return lambda: torch.bmm(a, b, out=out)

    return call


def _linear(workload: Workload, weight: Array | None) -> Prepared:
    torch = _torch()
    _refuse_batches(workload)
    if weight is None:
        raise DoesNotApply("linear multiplies by a transposed operand; mm is the call for this one")
    constant = _tensor(weight)
    return lambda left, _: _with(_tensor(left), lambda x: torch.nn.functional.linear(x, constant))


def _mkl(workload: Workload, weight: Array | None) -> Prepared:
    """MKL with the weight packed for the very number of rows that it is called with."""
    torch = _torch()
    _refuse_batches(workload)
    if weight is None:
        raise DoesNotApply("nothing is constant, so nothing can be packed ahead: mm is MKL here")
    constant = _tensor(weight)

    def call(left: Array, _: Array) -> Call:
        x, rows = _tensor(left), len(left)
        packed = torch.ops.mkl._mkl_reorder_linear_weight(constant, rows)
        return lambda: torch.ops.mkl._mkl_linear(x, packed, constant, None, rows)

    return call


def _onednn(workload: Workload, weight: Array | None) -> Prepared:
    """oneDNN: with the weight packed for the number of rows, or its linear on the operand as it is."""
    torch = _torch()
    _refuse_batches(workload)

    def call(left: Array, right: Array) -> Call:
        x = _tensor(left)
        if weight is None:
            given = _tensor(right).t()
        else:
            given = torch.ops.mkldnn._reorder_linear_weight(_tensor(weight), len(left))
        return lambda: torch.ops.mkldnn._linear_pointwise(x, given, None, "none", [], "")

    return call


def _compile(workload: Workload, weight: Array | None) -> Prepared:
    """torch.compile with dynamic shapes and the weight frozen."""
    torch = _torch()
    if workload.op.contraction.batch_axes:
        product, of_batch = torch.compile(torch.bmm, dynamic=True), _batch_operands(workload)
        return lambda left, right: _with(of_batch(left, right), lambda ab: product(*ab))
    if weight is None:
        function = torch.compile(lambda a, b: a @ b, dynamic=True)
        return lambda left, right: _with((_tensor(left), _tensor(right)), lambda ab: function(*ab))
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight = torch.nn.Parameter(_tensor(weight), requires_grad=False)
    compiled = torch.compile(module.eval(), dynamic=True, options={"freezing": True})

    def run(x: Any) -> Any:
        with torch.no_grad():
            return compiled(x)

    return lambda left, _: _with(_tensor(left), run)


RIVALS: Mapping[str, Rival] = {
    rival.name: rival
    for rival in (
        Rival("mm", "torch.mm with out=", _mm),
        Rival("bmm", "torch.bmm with out=, a transposed operand as a view", _bmm),
        Rival("linear", "torch.nn.functional.linear", _linear),
        Rival("mkl", "MKL, weight packed ahead", _mkl),
        Rival("onednn", "oneDNN, weight packed ahead", _onednn),
        Rival("compile", "torch.compile, dynamic shapes, weight frozen", _compile),
    )
}


def _refuse_batches(workload: Workload) -> None:
    if workload.op.contraction.batch_axes:
        raise DoesNotApply("it multiplies two matrices; bmm is the call for a batch of them")


def _batch_operands(workload: Workload) -> Callable[[Array, Array], tuple[Any, Any]]:
    """From the inputs of a call to the tensors [b, m, k] and [b, k, n]: views, of transposed operands, too."""
    contraction = workload.op.contraction
    transposed = contraction.right.axes[-1] in contraction.reduction_axes

    def operands(left: Array, right: Array) -> tuple[Any, Any]:
        tensor = _tensor(right)
        return _tensor(left), tensor.transpose(1, 2) if transposed else tensor

    return operands


def _with(value: Any, function: Callable[[Any], object]) -> Call:
    return lambda: function(value)


def _tensor(array: Array) -> Any:
    return _torch().from_numpy(array)


def _torch() -> Any:
    import torch  # noqa: PLC0415 - only where a rival is asked for

    return torch
