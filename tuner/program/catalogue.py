"""What the catalogue is made of: operands, contractions, epilogues, and the operators themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of an operator: its name, and the axis that each of its dimensions runs over, row-major.

    A ``constant`` operand (a weight) never changes between calls, so a library may pack it once, ahead of time.
    """

    name: str
    axes: tuple[str, ...]
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Contraction:
    """``output[...] = sum over the axes it lacks of left[...] * right[...]``: what a schedule rule looks at.

    It holds what a pattern match on the TensorIR of the operator would find, without needing a compiler, so that a
    job can be checked and its space described where no TVM is installed.
    """

    left: Operand
    right: Operand
    output: Operand

    @property
    def spatial_axes(self) -> tuple[str, ...]:
        return self.output.axes

    @property
    def reduction_axes(self) -> tuple[str, ...]:
        seen = dict.fromkeys(self.left.axes + self.right.axes)
        return tuple(axis for axis in seen if axis not in self.output.axes)

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes that both operands and the output run over: each index is a contraction of its own."""
        return tuple(axis for axis in self.output.axes if axis in self.left.axes and axis in self.right.axes)

    @property
    def rows_by_rows(self) -> bool:
        """Whether both operands lie along the axis that is summed over, and the right one is new at every call."""
        return self.right.axes[-1] in self.reduction_axes and not self.right.constant


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An elementwise function fused behind the contraction; ``operand`` is a further input tensor, if it takes one.

    With ``whole`` the operand runs over every axis of the output, whichever those are; ``operand`` has the axes of a
    plain ``out[m, n]``.
    """

    name: str
    doc: str
    operand: Operand | None = None
    whole: bool = False

    def operand_for(self, output: Operand) -> Operand | None:
        """The further input of an operator with this output."""
        if self.operand is None or not self.whole:
            return self.operand
        return replace(self.operand, axes=output.axes)


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of the catalogue. ``args`` are its axes' extents, each a dim over the shape variables."""

    name: str
    doc: str
    args: tuple[str, ...]
    contraction: Contraction
    dtypes: tuple[str, ...] = ("float32",)

    def __str__(self) -> str:
        return self.name


MATMUL = Op(
    name="matmul",
    doc=(
        "out[m, n] = a[m, k] . b[k, n], both operands new at every call; whatever packing costs, a call pays. "
        "Call: library(a, b, *epilogue_operands, out)."
    ),
    args=("m", "n", "k"),
    contraction=Contraction(Operand("a", ("m", "k")), Operand("b", ("k", "n")), Operand("out", ("m", "n"))),
)

DENSE = Op(
    name="dense",
    doc=(
        "out[m, n] = x[m, k] . w[n, k]^T. The weight w is constant: library.pack(w) packs it once. "
        "Call: library(x, w_packed, *epilogue_operands, out)."
    ),
    args=("m", "n", "k"),
    contraction=Contraction(
        Operand("x", ("m", "k")), Operand("w", ("n", "k"), constant=True), Operand("out", ("m", "n"))
    ),
)

BATCH_MATMUL_NN = Op(
    name="batch_matmul_nn",
    doc=(
        "out[b, m, n] = a[b, m, k] . b[b, k, n] for each b, both operands new at every call. "
        "Call: library(a, b, *epilogue_operands, out)."
    ),
    args=("b", "m", "n", "k"),
    contraction=Contraction(
        Operand("a", ("b", "m", "k")), Operand("b", ("b", "k", "n")), Operand("out", ("b", "m", "n"))
    ),
)

BATCH_MATMUL_NT = Op(
    name="batch_matmul_nt",
    doc=(
        "out[b, m, n] = a[b, m, k] . b[b, n, k]^T for each b, both operands new at every call. "
        "Call: library(a, b, *epilogue_operands, out)."
    ),
    args=("b", "m", "n", "k"),
    contraction=Contraction(
        Operand("a", ("b", "m", "k")), Operand("b", ("b", "n", "k")), Operand("out", ("b", "m", "n"))
    ),
)

OPS: Mapping[str, Op] = {op.name: op for op in (BATCH_MATMUL_NN, BATCH_MATMUL_NT, DENSE, MATMUL)}

EPILOGUES: Mapping[str, Epilogue] = {
    epilogue.name: epilogue
    for epilogue in (
        Epilogue("bias", "adds bias[n] to every row", Operand("bias", ("n",))),
        Epilogue("add", "adds residual, of the output's shape", Operand("residual", ("m", "n")), whole=True),
        Epilogue("relu", "max(x, 0)"),
        Epilogue("gelu", "x * (1 + erf(x / sqrt 2)) / 2"),
        Epilogue("gelu_tanh", "the tanh approximation of gelu"),
    )
}


def op_named(name: object) -> Op:
    """The operator of that name. Raises InvalidInput on field ``op``."""
    if isinstance(name, Op):
        return name
    if isinstance(name, str) and name in OPS:
        return OPS[name]
    raise InvalidInput("op", f"{name!r} is not in the catalogue", f"one of: {', '.join(sorted(OPS))}")
