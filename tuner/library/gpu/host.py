"""What a module has the host compute, as C: Python's arithmetic on integers, exact up to the ends of int64.

Beyond these a sum or a product stays at the end (``sw_add``, ``sw_multiply`` of integers.c): no grid and no memory is
as large, so such a call is refused.
"""

from __future__ import annotations

import ast
from functools import reduce

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "sw_add", ast.Sub: "sw_subtract", ast.Mult: "sw_multiply",
    ast.FloorDiv: "sw_floor_div", ast.Mod: "sw_floor_mod",
}  # fmt: skip
FUNCTIONS = {"max": "sw_max", "min": "sw_min", "cdiv": "sw_ceil_div"}
LARGEST = 2**63 - 1


def c_expression(text: str) -> str:
    """An expression of a module (``cdiv(max(s_m, 0), 64) * 3``) in C, over variables of the same names. Raises
    ValueError for what is none."""
    try:
        return _text(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{text!r} is no size that a host computes: {error}") from None


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and value <= LARGEST:
            return f"INT64_C({value})"
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"sw_subtract(INT64_C(0), {_text(operand)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            return f"{OPERATORS[type(operator)]}({_text(left)}, {_text(right)})"
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if name in FUNCTIONS:
            return reduce(lambda one, other: f"{FUNCTIONS[name]}({one}, {other})", map(_text, arguments))
    raise ValueError(f"{ast.unparse(node)} is of another form")
