"""What lifting gives: workloads, the nodes that each stands for, and how tensors are viewed on the way in and out.

A *view* says for each dim of a library's operand which axes of the framework's tensor it is the product of, in
order: ``((0, 1), (2,))`` takes ``x[b, s, k]`` as ``[b*s, k]``, ``((1,), (0,))`` is a transpose, and an axis that no
group names has size 1. ``viewed`` and ``unviewed`` apply one to arrays of NumPy and tensors of PyTorch alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Workload

View = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """A constant that is computed once of others: in another dtype, as autocast has it, what bytes stand for, or what
    batch normalisation of inference makes of the layer before.

    ``cast``: the only one of ``nodes`` in ``dtype``. ``dequantised``: (w - zero) * scale, along ``axis`` of w where
    these are several, in ``dtype``; ``nodes`` of w, scale, and zero or None. ``sums``: of w along all axes but
    ``axis``, in ``dtype``. ``scale``: gamma / sqrt(var + eps); ``weight``: w * scale along axis ``axis`` of w;
    ``bias``: (bias - mean) * scale + beta. ``nodes`` of these: w or bias, gamma, beta, mean, var; None where there is
    none.
    """

    kind: str
    nodes: tuple[str | None, ...]
    eps: float = 0.0
    axis: int = 0
    dtype: str = ""

    def value(self, tensors: Mapping[str, Any]) -> Any:
        """The folded constant of the constants by node."""
        given: list[Any] = [None if name is None else tensors[name] for name in self.nodes]
        if self.kind == "cast":
            return _cast(given[0], self.dtype)
        if self.kind == "sums":
            others = tuple(axis for axis in range(len(given[0].shape)) if axis != self.axis)
            return _cast(_cast(given[0], self.dtype).sum(others), self.dtype)
        if self.kind == "dequantised":
            return self._dequantised(*given)
        base, gamma, beta, mean, var = given
        scale = (1.0 if gamma is None else gamma) * (var + self.eps) ** -0.5
        if self.kind == "scale":
            return scale
        if self.kind == "bias":
            return ((0.0 if base is None else base) - mean) * scale + (0.0 if beta is None else beta)
        return base * self._along(scale, base)

    def _dequantised(self, numbers: Any, scale: Any, zero: Any) -> Any:
        value = _cast(numbers, self.dtype)
        value = value if zero is None else value - self._along(_cast(zero, self.dtype), value)
        return value * self._along(scale, value)

    def _along(self, numbers: Any, whole: Any) -> Any:
        """Numbers along the axis, or one number, in a shape that is broadcast to the whole."""
        is_one = math.prod(numbers.shape) == 1
        return numbers.reshape([-1 if axis == self.axis and not is_one else 1 for axis in range(len(whole.shape))])


def _cast(tensor: Any, dtype: str) -> Any:
    if hasattr(tensor, "astype"):
        import ml_dtypes  # noqa: PLC0415 - NumPy's arrays of such come with it

        return tensor.astype(getattr(ml_dtypes, dtype, dtype))
    import torch  # noqa: PLC0415 - for those who have a tensor of it

    return tensor.to(getattr(torch, dtype))


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of the library's call: the value of ``node``, through ``view``.

    ``constant``: its value stays between calls; the library packs those that ``workload.constants`` names. ``fold``:
    the value is computed of several constants first. ``split``: the last dim of the view is looked at as rows of so
    many elements, which are one more dim; the view keeps the order of the axes then, and leaves none out.
    """

    tensor: str
    node: str
    view: View
    constant: bool = False
    fold: Fold | None = None
    split: int = 0

    def value(self, tensors: Mapping[str, Any]) -> Any:
        """The operand's array, of the framework's by node."""
        value = viewed(self.fold.value(tensors) if self.fold else tensors[self.node], self.view)
        return value.reshape([*value.shape[:-1], -1, self.split]) if self.split else value


@dataclass(frozen=True, slots=True)
class LiftedOp:
    """A workload over the model's shape variables, and its place in the model.

    ``nodes``: what it stands for, in order; the last one has the value, of ``output_shape``, whose axes the library's
    output has through ``output_view``. ``operands`` come in the order of the library's call. Equal layers have equal
    ``workload.key``, whatever their shape variables are called.
    """

    workload: Workload
    nodes: tuple[str, ...]
    operands: tuple[Operand, ...]
    output_shape: tuple[DimExpr, ...]
    output_view: View
    dtype: str

    @property
    def output(self) -> str:
        """The node whose value it computes."""
        return self.nodes[-1]


@dataclass(frozen=True, slots=True)
class Left:
    """A node that was not lifted: its name, what it does, and the reason."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lifting:
    """The outcome for a whole graph. Views, which compute nothing, are in neither list."""

    ops: tuple[LiftedOp, ...]
    left: tuple[Left, ...]


def viewed(tensor: Any, view: View) -> Any:
    """``tensor`` as the library takes it. Contiguous only if it was, and ``view`` keeps the order."""
    order = [axis for group in view for axis in group]
    order += [axis for axis in range(len(tensor.shape)) if axis not in order]
    sizes = [math.prod(tensor.shape[axis] for axis in group) for group in view]
    return _permuted(tensor, order).reshape(sizes)


def unviewed(result: Any, view: View, shape: Sequence[int]) -> Any:
    """What the library wrote as the framework's tensor of ``shape``."""
    order = [axis for group in view for axis in group]
    order += [axis for axis in range(len(shape)) if axis not in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return _permuted(result.reshape([shape[axis] for axis in order]), back)


def _permuted(tensor: Any, order: Sequence[int]) -> Any:
    if list(order) == list(range(len(order))):
        return tensor
    return tensor.permute(*order) if hasattr(tensor, "permute") else tensor.transpose(*order)
