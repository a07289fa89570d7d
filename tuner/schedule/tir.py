"""TVM's TensorIR, imported when code is first generated: all else of a rule works without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class _Later:
    """A module that is imported when one of its attributes is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value


tirx: Any = _Later("tvm.tirx")
tvm: Any = _Later("tvm")
I: Any = _Later("tvm.tirx.script.builder.ir")  # noqa: E741 - as in TVM's own code
"""The builder: loops, buffers and stores are written where it is called."""

TirExpr = Any
"""An expression of TensorIR; TVM's classes have no type stubs."""


def function(name: str) -> Callable[..., TirExpr]:
    """A function of ``tirx``, for tables that are made when a module is imported."""

    def call(*operands: TirExpr) -> TirExpr:
        return getattr(tirx, name)(*operands)

    return call


def i64(value: int) -> TirExpr:
    """Every extent is int64: index arithmetic that mixes widths does not simplify."""
    return tirx.IntImm("int64", value)
