"""What libraries are compared with: the vendor libraries' routines for an operator, each called as its users call it.

A rival is prepared once for a workload and gives, for a shape's inputs, a call that does the work of one call of ours;
a constant is packed ahead where the rival has a way to. All run through PyTorch, which ships MKL and oneDNN. Routines
for matrix products take what the contraction rule takes; ``torch`` is PyTorch's own kernel for any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch
from tuner.schedule.product.match.plain import Matrices, match

Array = NDArray[Any]
Call = Callable[[], object]
Prepared = Callable[[Sequence[Array]], Call]
"""A function from all inputs of a call in order, constants among them, to the call."""


class DoesNotApply(Exception):
    """This rival has no routine for the workload; the message says why."""


@dataclass(frozen=True)
class Rival:
    """``prepare(workload)`` is done once. It raises DoesNotApply, and that before it needs PyTorch."""

    name: str
    doc: str
    prepare: Callable[[Workload], Prepared]


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

    def left(self, inputs: Sequence[Array]) -> Any:
        return self._tensor(self.contraction.left.tensor, inputs)

    def right_kn(self, inputs: Sequence[Array]) -> Any:
        """[..., k, n]: a view where the operand lies the other way."""
        right = self._tensor(self.contraction.right.tensor, inputs)
        return right if self.contraction.right.lies_along_n else right.transpose(-1, -2)

    def right_nk(self, inputs: Sequence[Array]) -> Any:
        return self.right_kn(inputs).transpose(-1, -2)

    def _tensor(self, name: str, inputs: Sequence[Array]) -> Any:
        names = [tensor.name for tensor in self.workload.inputs]
        return tensor_of(inputs[names.index(name)])


def _mm(workload: Workload) -> Prepared:
    matrices, torch = _Matrices.of(workload), torch_module()

    def call(inputs: Sequence[Array]) -> Call:
        a, b = matrices.left(inputs), matrices.right_kn(inputs)
        out = torch.empty(a.shape[0], b.shape[1])
        return lambda: torch.mm(a, b, out=out)

    return call


def _bmm(workload: Workload) -> Prepared:
    matrices, torch = _Matrices.of(workload, batched=True), torch_module()

    def call(inputs: Sequence[Array]) -> Call:
        a, b = matrices.left(inputs), matrices.right_kn(inputs)
        out = torch.empty(a.shape[0], a.shape[1], b.shape[2])
        return lambda: torch.bmm(a, b, out=out)

    return call


def _linear(workload: Workload) -> Prepared:
    matrices, torch = _Matrices.of(workload), torch_module()
    if matrices.contraction.right.lies_along_n:
        raise DoesNotApply("linear multiplies by a transposed operand; mm is the call for this one")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.left(inputs), matrices.right_nk(inputs)
        return lambda: torch.nn.functional.linear(x, weight)

    return call


def _mkl(workload: Workload) -> Prepared:
    """MKL with the weight packed for the very number of rows that it is called with."""
    matrices, torch = _Matrices.of(workload), torch_module()
    if not matrices.is_constant:
        raise DoesNotApply("nothing is constant, so nothing can be packed ahead: mm is MKL here")

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.left(inputs), matrices.right_nk(inputs)
        rows = x.shape[0]
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        return lambda: torch.ops.mkl._mkl_linear(x, packed, weight, None, rows)

    return call


def _onednn(workload: Workload) -> Prepared:
    """oneDNN: with the weight packed for the number of rows, or its linear on the operand as it is."""
    from benchmarks.torch_kernels import named  # noqa: PLC0415
    from benchmarks.torch_packed import PACKED, prepare  # noqa: PLC0415 - imports from here

    if named(workload)[0] in PACKED:
        return prepare(workload)
    matrices, torch = _Matrices.of(workload), torch_module()

    def call(inputs: Sequence[Array]) -> Call:
        x, weight = matrices.left(inputs), matrices.right_nk(inputs)
        if matrices.is_constant:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
        return lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return call


def _compile(workload: Workload) -> Prepared:
    from benchmarks.torch_compiled import prepare  # noqa: PLC0415 - imports from here

    return prepare(workload)


def _torch_kernel(workload: Workload) -> Prepared:
    from benchmarks.torch_kernels import prepare  # noqa: PLC0415 - imports from here

    return prepare(workload)


RIVALS: Mapping[str, Rival] = {
    rival.name: rival
    for rival in (
        Rival("mm", "torch.mm with out=", _mm),
        Rival("bmm", "torch.bmm with out=, a transposed operand as a view", _bmm),
        Rival("linear", "torch.nn.functional.linear", _linear),
        Rival("mkl", "MKL, weight packed ahead", _mkl),
        Rival("onednn", "oneDNN, weight packed ahead", _onednn),
        Rival("compile", "torch.compile, dynamic shapes, constants frozen", _compile),
        Rival("torch", "PyTorch's kernel for the operator", _torch_kernel),
    )
}


def tensor_of(array: Array) -> Any:
    """PyTorch's view of ``array``, which has no gaps."""
    torch = torch_module()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_module() -> Any:
    import torch  # noqa: PLC0415 - only where a rival is asked for

    return torch
