"""Sums, differences and products of integers that wrap around, as NumPy's and PyTorch's do.

TVM takes signed integers for whole numbers: its simplifier makes ``x * 2 // 2`` plain ``x``, and it tells LLVM that
nothing overflows. What may leave the range of its type is computed by functions of which neither knows more than what
the instruction does. What cannot, as most of what is made of short integers, axes and extents, stays in TVM's hands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tuner.program.language.dims import MAX_DIM
from tuner.program.language.dtypes import DTYPES, INTEGERS
from tuner.program.language.expr import Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read
from tuner.program.language.shapes import ElementTypes
from tuner.schedule.tir import TirExpr, tirx, tvm
from tuner.schedule.vector.dtypes import element_type, lanes_of, vector_type

Interval = tuple[int, int]
INSTRUCTIONS: Mapping[str, str] = {"+": "add", "-": "sub", "*": "mul"}
WRAPPING: Mapping[str, int] = {"int32": 32, "int64": 64}
"""The types that integers are computed in, and their bits."""


@dataclass(frozen=True)
class _Function:
    """An instruction that wraps around, as a function of LLVM."""

    sign: str
    bits: int
    lanes: int

    @property
    def name(self) -> str:
        return f"shapewright_{INSTRUCTIONS[self.sign]}_{self.bits}x{self.lanes}"

    @property
    def code(self) -> str:
        kind = f"<{self.lanes} x i{self.bits}>" if self.lanes > 1 else f"i{self.bits}"
        return (
            f"define linkonce_odr {kind} @{self.name}({kind} %a, {kind} %b) alwaysinline {{\n"
            f"  %result = {INSTRUCTIONS[self.sign]} {kind} %a, %b\n  ret {kind} %result\n}}"
        )


_called_ones: ContextVar[set[_Function]] = ContextVar("called")


def wrapped(sign: str, a: TirExpr, b: TirExpr) -> TirExpr:
    """``a`` and ``b`` of one dtype, int32 or int64, added, subtracted or multiplied. Inside ``wrapping`` alone."""
    dtype, lanes = element_type(a), lanes_of(a)
    function = _Function(sign, WRAPPING[dtype], lanes)
    _called_ones.get().add(function)
    return tirx.call_pure_extern(vector_type(dtype, lanes), function.name, a, b)


@contextmanager
def wrapping() -> Iterator[set[_Function]]:
    """What is written inside may call ``wrapped``; the functions that it calls, for ``with_functions``."""
    called: set[_Function] = set()
    token = _called_ones.set(called)
    try:
        yield called
    finally:
        _called_ones.reset(token)


def with_functions(function: Any, called: Collection[_Function]) -> Any:
    """A PrimFunc with the code of the functions that it calls."""
    if not called:
        return function
    code = "\n".join(sorted(each.code for each in called))
    zero, text = tirx.IntImm("int32", 0), tvm.ir.StringImm(code)
    return function.with_body(tirx.AttrStmt(zero, "pragma_import_llvm", text, function.body))


def leaves_its_type(expr: Expr, types: ElementTypes) -> bool:
    """Whether a sum, a difference, a product or a magnitude may be a number that its type has no room for."""
    match expr:
        case Neg() | Call(function="abs") | Binary(operator="+" | "-" | "*"):
            pass
        case _:
            return False
    dtype = types.type_of(expr)
    if dtype not in WRAPPING:
        return False
    low, high = _exact(expr, types)
    least, most = _range(dtype)
    return low < least or high > most


def _bounds(expr: Expr, types: ElementTypes) -> Interval:
    """The least and the largest value of an integer, as it is computed."""
    dtype = types.type_of(expr)
    low, high = _exact(expr, types)
    least, most = _range(dtype)
    return (low, high) if least <= low and high <= most else (least, most)


def _exact(expr: Expr, types: ElementTypes) -> Interval:
    """The least and the largest whole number that an expression of integers stands for."""
    match expr:
        case Const(value=int() as value):
            return value, value
        case Axis() | Extent():
            return 0, MAX_DIM
        case Read(tensor=tensor):
            return _range(types.of[tensor])
        case Cast(operand=operand, dtype=dtype) if dtype in INTEGERS and types.type_of(operand) in (*INTEGERS, "bool"):
            inner, own = _bounds(operand, types), _range(dtype)
            return inner if own[0] <= inner[0] and inner[1] <= own[1] else own
        case Cast(dtype=dtype):
            return _range(dtype)
        case Neg(operand=operand):
            low, high = _bounds(operand, types)
            return -high, -low
        case Binary(operator=operator, left=left, right=right) if operator in (*INSTRUCTIONS, "//", "%", "&", ">>"):
            return _combined(operator, _bounds(left, types), _bounds(right, types)) or _range(types.type_of(expr))
        case Call(function=function, args=args) if function in ("min", "max", "abs", "where"):
            bounds = [_bounds(arg, types) for arg in args[function == "where" :]]
            return _called(function, bounds)
        case _:
            return _range(types.type_of(expr))


def _combined(operator: str, a: Interval, b: Interval) -> Interval | None:
    """The interval of an operator's results; None where it says nothing."""
    match operator:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        case "%":
            return 0, max(b[1] - 1, 0)
        case "&" if min(a[0], b[0]) >= 0:
            return 0, min(a[1], b[1])
        case "&" if max(a[0], b[0]) >= 0:
            return 0, a[1] if a[0] >= 0 else b[1]
        case "//" | ">>":
            return min(a[0], 0), max(a[1], 0)
        case _:
            return None


def _called(function: str, bounds: list[Interval]) -> Interval:
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    if function == "abs":
        ((low, high),) = bounds
        return 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))
    choose = {"min": min, "max": max}.get(function)
    return (choose(lows), choose(highs)) if choose else (min(lows), max(highs))


def _range(dtype: str) -> Interval:
    """All values of an integer dtype; of a float nothing is known, which no integer's type has room for."""
    known = DTYPES[dtype]
    if known.kind == "b":
        return 0, 1
    bits = known.bits - (known.kind == "i")
    return (-(2**bits) if known.kind == "i" else 0), 2**bits - 1
