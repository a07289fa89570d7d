"""Frozen for revision 0007: the interval that an extent of release 0.1, such as ``16*T``, runs over."""

from __future__ import annotations

import ast
from collections.abc import Mapping

Interval = tuple[int, int]


def bounds(extent: str, ranges: Mapping[str, Interval]) -> Interval:
    """An interval that holds every value over ``ranges`` (inclusive): exact if each variable occurs once.

    Nothing is executed. Raises ValueError for what is no extent, KeyError if a variable is missing.
    """
    return _bounds(ast.parse(extent, mode="eval").body, ranges)


def _bounds(node: ast.expr, ranges: Mapping[str, Interval]) -> Interval:
    match node:
        case ast.Constant(value=int(value)):
            return value, value
        case ast.Name(id=name):
            return ranges[name]
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(operator, _bounds(left, ranges), _bounds(right, ranges))
    raise ValueError(f"{ast.dump(node)} is not an extent that release 0.1 has stored")


def _combined(operator: ast.operator, left: Interval, right: Interval) -> Interval:
    match operator:
        case ast.Add():
            return left[0] + right[0], left[1] + right[1]
        case ast.Sub():
            return left[0] - right[1], left[1] - right[0]
        case ast.Mult():
            products = [one * other for one in left for other in right]
            return min(products), max(products)
    divisor = right[0]
    if divisor <= 0 or right[1] != divisor:
        raise ValueError("an extent divides by positive constants alone")
    match operator:
        case ast.FloorDiv():
            return left[0] // divisor, left[1] // divisor
        case ast.Mod():
            whole = left[1] - left[0] >= divisor or left[0] % divisor > left[1] % divisor
            return (0, divisor - 1) if whole else (left[0] % divisor, left[1] % divisor)
    raise ValueError(f"{ast.dump(operator)} is not in an extent that release 0.1 has stored")
