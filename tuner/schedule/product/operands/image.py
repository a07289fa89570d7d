"""Left operands whose rows are windows of one tensor: where each starts does not depend on the step of k, and where a
step lies in it does not depend on the row. So a copy of the tensor, padded, takes the place of gathered rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.program.expr import Axis, Expr, Read
from tuner.program.program import index_dim
from tuner.program.workload import Workload
from tuner.schedule.product.match.parts import Part


@dataclass(frozen=True)
class Dim:
    """An index ``step * place + dilation * window + first``; ``window``: None if there is none."""

    place: str
    step: int
    window: str | None
    dilation: int
    first: int


@dataclass(frozen=True)
class Image:
    """``read`` at ``rows`` of ``columns`` of ``channel``: its dims, outermost first."""

    read: Read
    rows: tuple[Dim, ...]
    columns: Dim
    channel: str

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.rows, self.columns)

    @property
    def run(self) -> tuple[str, ...]:
        """The reduced axes along which a window is contiguous in memory, innermost last."""
        inner = self.columns.window
        return (inner, self.channel) if inner is not None and self.columns.dilation == 1 else (self.channel,)


def image_of(
    workload: Workload, factors: Sequence[Expr], parts: Mapping[str, Part], m: tuple[str, ...], k: tuple[str, ...]
) -> Image | None:  # fmt: skip
    """What the factors read, if it is one tensor of which a row has a window with channels innermost. Windows next to
    each other touch: a copy would have what lies between them, too."""
    factor = factors[0] if len(factors) == 1 else None
    if not isinstance(factor, Read) or len(factor.indices) < 2:
        return None
    *others, last = factor.indices
    if not isinstance(last, Axis) or workload.tensors[factor.tensor].dims[-1] != workload.sizes[last.name]:
        return None
    found = [dim_of(index, m, k) for index in others]
    dims = tuple(dim for dim in found if dim is not None)
    windows = tuple(dim.window for dim in dims if dim.window is not None)
    is_whole = len(dims) == len(found) and tuple(dim.place for dim in dims) == m and (*windows, last.name) == k
    is_dense = is_whole and windows and all(dim.step <= _reach(dim, parts) for dim in dims)
    return Image(factor, dims[:-1], dims[-1], last.name) if is_dense else None


def _reach(dim: Dim, parts: Mapping[str, Part]) -> int:
    """How many indices a window goes over from its first one to its last; 0 where that is not known ahead."""
    size = 1 if dim.window is None else parts[dim.window].extent.constant
    return 0 if size is None else dim.dilation * (size - 1) + 1


def dim_of(index: Expr, m: Sequence[str], k: Sequence[str]) -> Dim | None:
    """An index as a place among ``m`` and a step of a window among ``k``; None for another."""
    dim = index_dim(index)
    if dim is None:
        return None
    place, step, window, dilation, first = "", 0, None, 1, 0
    for monomial, coefficient in dim.terms:
        name = monomial[0] if len(monomial) == 1 else None
        if monomial == ():
            first = coefficient
        elif isinstance(name, str) and name in m and not place and coefficient > 0:
            place, step = name, coefficient
        elif isinstance(name, str) and name in k and window is None and coefficient > 0:
            window, dilation = name, coefficient
        else:
            return None
    return Dim(place, step, window, dilation, first) if place else None
