"""Scores that are hidden: ``where(condition, score, -inf)``, and what of the condition bounds j. No compiler needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.program.dims import DimExpr
from tuner.program.expr import COMPARISONS, Binary, Call, Const, Expr, Neg
from tuner.program.indices import index_dim

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Bound:
    """j is visible up to ``limit``, or from there on; itself included. It does not fall as i grows."""

    is_upper: bool
    limit: DimExpr


@dataclass(frozen=True)
class Mask:
    """``score``: the whole expression; ``inside``: what it is for every j that ``bounds`` leave visible."""

    score: Expr
    inside: Expr
    bounds: tuple[Bound, ...]


def mask_of(score: Expr) -> Mask:
    """The conditions around a score that are bounds of j; those of other kinds stay in ``inside``."""
    bounds: list[Bound] = []
    others: list[Expr] = []
    inside = score
    while isinstance(inside, Call) and inside.function == "where" and is_hidden(inside.args[2]):
        for condition in _conjuncts(inside.args[0]):
            bound = _bound(condition)
            if bound is None:
                others.append(condition)
            else:
                bounds.append(bound)
        inside = inside.args[1]
    for condition in reversed(others):
        inside = Call("where", (condition, inside, Const(-math.inf)))
    return Mask(score, inside, tuple(bounds))


def is_hidden(expr: Expr) -> bool:
    """Whether it is -inf, the score of what is hidden."""
    if isinstance(expr, Neg):
        return isinstance(expr.operand, Const) and expr.operand.value == math.inf
    return isinstance(expr, Const) and expr.value == -math.inf


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Binary) and condition.operator == "&" and _is_condition(condition):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    else:
        yield condition


def _is_condition(expr: Expr) -> bool:
    """Whether it is made of comparisons, joined by ``&``."""
    if not isinstance(expr, Binary):
        return False
    joined = expr.operator == "&" and _is_condition(expr.left) and _is_condition(expr.right)
    return joined or expr.operator in COMPARISONS


def _bound(condition: Expr) -> Bound | None:
    """A comparison as a bound of j, if it is one whose limit does not fall as i grows."""
    if not isinstance(condition, Binary) or condition.operator not in _FLIPPED:
        return None
    left, right = index_dim(condition.left), index_dim(condition.right)
    if left is None or right is None:
        return None
    # The condition is: slack is 0 or more.
    is_less = condition.operator in ("<", "<=")
    slack = right - left if is_less else left - right
    slack = slack - 1 if condition.operator in ("<", ">") else slack
    step = _step(slack, "j")
    if step not in (1, -1):
        return None
    limit = slack + DimExpr.var("j") if step == -1 else DimExpr.var("j") - slack
    rise = _step(limit, "i")
    return Bound(step == -1, limit) if rise is not None and rise >= 0 else None


def _step(dim: DimExpr, axis: str) -> int | None:
    """The constant factor of an axis; None where it occurs in any other way."""
    terms = dict(dim.terms)
    step = terms.get((axis,), 0)
    rest = dim - DimExpr.var(axis) * step
    return None if axis in rest.variables else step
