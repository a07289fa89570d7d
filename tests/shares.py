"""Long tests in two parts: what `make test` runs of them, and what it leaves to `make soak`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def shares(count: int) -> pytest.MarkDecorator:
    """Runs a test once for each ``share`` of 0 ... count - 1: the first in `make test`, the others in `make soak`."""
    return pytest.mark.parametrize("share", [0, *(pytest.param(at, marks=pytest.mark.soak) for at in range(1, count))])


def every(count: int, names: Iterable[Any], first: int = 0) -> list[Any]:
    """``names`` as parameters: each ``count``-th from ``first`` on is for `make test`, the others for `make soak`."""
    return [pytest.param(name, marks=[] if at % count == first else pytest.mark.soak) for at, name in enumerate(names)]


def chosen(quick: Iterable[Any], names: Iterable[Any]) -> list[Any]:
    """``names`` as parameters: those that are in ``quick`` are for `make test`, the others for `make soak`."""
    first, every = list(quick), list(names)
    if missing := [name for name in first if name not in every]:
        raise ValueError(f"there is no {missing}")
    return [pytest.param(name, marks=[] if name in first else pytest.mark.soak) for name in every]


def spread(parameters: Iterable[Any]) -> list[Any]:
    """Parameters that are tuples, each value of which is one of several names of ``parametrize``."""
    return [pytest.param(*each.values[0], marks=each.marks) for each in parameters]


def diagonal(*axes: Iterable[Any], every: int) -> list[Any]:
    """The product of ``axes`` as parameter sets: those whose positions add up to a multiple of ``every`` are for `make
    test`, the others for `make soak`.

    Of two axes at least ``every`` long, each value of either is in `make test`; of three, also each pair of values
    where all are as long as ``every``: a Latin square.
    """
    sets: list[tuple[int, tuple[Any, ...]]] = [(0, ())]
    for axis in axes:
        sets = [(sum_ + at, (*values, value)) for sum_, values in sets for at, value in enumerate(axis)]
    marks = [pytest.mark.soak]
    return [pytest.param(*values, id=_id(values), marks=marks if sum_ % every else []) for sum_, values in sets]


def _id(values: tuple[Any, ...]) -> str:
    return "-".join("-".join(value) if isinstance(value, tuple) else str(value) for value in values)
