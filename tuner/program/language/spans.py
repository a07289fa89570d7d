"""Sets of sizes: what a shape variable or a symbol takes, and whether one set covers another.

A search for ``S`` in steps of 8 says nothing of what is fast at the sizes in between, so a library that was made for
some sizes does not cover all from the least to the largest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tuner.program.language.dims import DimExpr

Span = tuple[int, int] | range | frozenset[int]
"""A set of sizes: a range with its step; a few listed ones; or the two ends alone, where nobody said which sizes in
between are meant."""
MAX_LISTED = 64
"""The most sizes that are listed one by one. More that are not evenly spaced count as evenly spaced ones that hold
them."""
MAX_EVALUATED = 1024
"""Shapes at which an extent is evaluated to find its sizes."""


def span_of(sizes: Collection[int]) -> range | frozenset[int]:
    """``sizes``, at least one, as a range if they are evenly spaced."""
    if isinstance(sizes, range):
        return sizes
    ordered = sorted(set(sizes))
    step = math.gcd(*(size - ordered[0] for size in ordered)) or 1
    spaced = range(ordered[0], ordered[-1] + 1, step)
    return frozenset(ordered) if len(spaced) > len(ordered) <= MAX_LISTED else spaced


def ends(span: Span) -> tuple[int, int]:
    """The least and the largest size."""
    return (span[0], span[-1]) if not isinstance(span, frozenset) else (min(span), max(span))


def contains(span: Span, size: int) -> bool:
    """Whether it is one of the sizes; of two ends alone, whether it is in between."""
    return span[0] <= size <= span[1] if isinstance(span, tuple) else size in span


def count(span: Span) -> int:
    return span[1] - span[0] + 1 if isinstance(span, tuple) else len(span)


def covers(span: Span, asked: Span) -> bool:
    """Whether ``asked`` is a part of ``span``: of its ends, where either is known by its ends alone."""
    low, high = ends(asked)
    if isinstance(span, tuple) or isinstance(asked, tuple):
        least, most = ends(span)
        return least <= low and high <= most
    if isinstance(span, range) and isinstance(asked, range):
        return low in span and high in span and (len(asked) == 1 or asked.step % span.step == 0)
    return len(asked) <= len(span) and all(size in span for size in asked)


def span_of_extent(extent: DimExpr, variables: Mapping[str, Span]) -> Span:
    """The sizes of an extent over the values of its variables.

    Exact where there are at most MAX_EVALUATED shapes; else evenly spaced sizes that hold them all.
    """
    used = {name: variables[name] for name in sorted(extent.variables)}
    low, high = extent.bounds({name: ends(span) for name, span in used.items()})
    spans = [span for span in used.values() if not isinstance(span, tuple)]
    if len(spans) < len(used):
        return low, high
    if math.prod(map(len, spans)) <= MAX_EVALUATED:
        return span_of({extent.evaluate(shape) for shape in _shapes(used, spans)})
    first, step = _lattice(extent, used)
    return range(low + (first - low) % step, high + 1, step)


def _shapes(names: Iterable[str], values: Iterable[Iterable[int]]) -> Iterable[dict[str, int]]:
    return (dict(zip(names, point, strict=True)) for point in itertools.product(*values))


def _lattice(extent: DimExpr, variables: Mapping[str, Span]) -> tuple[int, int]:
    """A size, and the largest step in which that extent's sizes lie.

    A polynomial of degree d over evenly spaced values is fixed by d + 1 of them: so is what divides its differences.
    """
    degree = max(len(monomial) for monomial, _ in extent.terms)
    is_polynomial = all(isinstance(atom, str) for monomial, _ in extent.terms for atom in monomial)
    starts = [_evenly(span, degree + 1) for span in variables.values()]
    shapes = itertools.islice(_shapes(variables, starts), MAX_EVALUATED)
    sizes = [extent.evaluate(shape) for shape in shapes]
    is_complete = is_polynomial and math.prod(map(len, starts)) <= MAX_EVALUATED
    return sizes[0], (math.gcd(*(size - sizes[0] for size in sizes)) if is_complete else 0) or 1


def _evenly(span: Span, most: int) -> range:
    """The first of the evenly spaced values that hold ``span``."""
    low, high = ends(span)
    step = span.step if isinstance(span, range) else math.gcd(*(size - low for size in span)) or 1
    return range(low, high + 1, step)[:most]


def span_to_json(span: Span) -> Any:
    """``[16, 512]`` for two ends alone, ``[16, 512, 16]`` with a step, ``{"values": [1, 2, 4]}``."""
    if isinstance(span, frozenset):
        return {"values": sorted(span)}
    return list(span) if isinstance(span, tuple) else [span[0], span[-1], span.step]


def span_from_json(data: Any) -> Span:
    """Read what ``span_to_json`` wrote. Raises ValueError for what is no set of sizes."""
    is_listed = isinstance(data, Mapping)
    sizes = data.get("values") if is_listed else data
    if not isinstance(sizes, list | tuple) or not sizes or not all(type(size) is int for size in sizes):
        raise ValueError(f"{data!r:.100} is no set of sizes")
    if is_listed:
        return span_of(sizes)
    low, high, *step = sizes
    if low > high or step < [1] * len(step):
        raise ValueError(f"{data!r:.100} is no range")
    return range(low, high + 1, *step) if step else (low, high)
