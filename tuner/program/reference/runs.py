"""Runs of an axis along which what is read stays the same, as at ``o // 8``: channels of one group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tuner.program.language.expr import Axis, Binary, Const, Expr, walk

MAX_RUNS = 64
"""Runs of an axis that are computed one by one, so that each is a matrix product."""


def runs_of(factors: Sequence[Expr], axes: Collection[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The constants by which some of ``axes`` are divided in the factors, where that makes a few runs."""
    divided = dict(pair for factor in factors for pair in _divided(factor))
    return {axis: by for axis, by in divided.items() if axis in axes and by > 1 and sizes[axis] <= MAX_RUNS * by}


def same_along(factor: Expr, runs: Mapping[str, int]) -> set[str]:
    """The axes of ``runs`` that a factor has in quotients alone: it is the same all along a run."""
    every = [node.name for node in walk(factor) if isinstance(node, Axis)]
    divided = [axis for axis, _ in _divided(factor)]
    return {axis for axis in runs if every.count(axis) == divided.count(axis) > 0}


def _divided(factor: Expr) -> list[tuple[str, int]]:
    """Every axis that is divided by a constant, and that constant."""
    return [
        (node.left.name, int(node.right.value))
        for node in walk(factor)
        if isinstance(node, Binary) and node.operator == "//"
        if isinstance(node.left, Axis) and isinstance(node.right, Const)
    ]
