"""Index expressions: their normal form and their range, against plain arithmetic."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Expr, Read, text_of
from tuner.program.language.indices import index_dim, index_range, normal_index
from tuner.program.language.notation import parse_stages

EXTENTS = st.fixed_dictionaries({"i": st.integers(1, 5), "j": st.integers(1, 4)})
LEAVES = st.sampled_from(["i", "j", "i", "j", "extent(i)", "extent(j)", "0", "1", "3", "7"])


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-"]), inner).map(lambda parts: f"({' '.join(parts)})")
    factors = st.sampled_from(["2", "3", "extent(j)", "(extent(i) // 2)"])
    scaled = st.builds("({}) * {}".format, inner, factors)
    divided = st.builds("({}) {} {}".format, inner, st.sampled_from(["//", "%"]), st.integers(1, 5))
    return binary | scaled | divided | inner.map("-({})".format)


INDICES = st.recursive(LEAVES, _joined, max_leaves=5)


def index(text: str) -> Expr:
    (stage,) = parse_stages(f"out[i, j] = x[{text}]")
    assert isinstance(stage.body, Read)
    return stage.body.indices[0]


def value(text: str, extents: dict[str, int], point: dict[str, int]) -> int:
    plain = re.sub(r"extent\((\w)\)", lambda match: str(extents[match[1]]), text)
    return int(eval(plain, {"__builtins__": {}}, dict(point)))


def points(extents: dict[str, int]) -> list[dict[str, int]]:
    return [dict(zip(extents, p, strict=True)) for p in itertools.product(*map(range, extents.values()))]


@given(INDICES, EXTENTS)
def test_an_index_has_the_value_that_python_gives_it(text: str, extents: dict[str, int]) -> None:
    dim = index_dim(index(text))
    assume(dim is not None)
    assert dim is not None
    sizes = {f"extent({name})": extent for name, extent in extents.items()}
    for point in points(extents):
        assert dim.evaluate({**point, **sizes}) == value(text, extents, point)


@given(INDICES, EXTENTS)
def test_the_normal_form_is_a_fixed_point_of_the_same_value(text: str, extents: dict[str, int]) -> None:
    given_index = index(text)
    assume(index_dim(given_index) is not None)
    normal = normal_index(given_index)
    assert index_dim(normal) == index_dim(given_index)
    assert normal_index(normal) == normal
    assert index(text_of(normal)) == normal


@given(INDICES, EXTENTS)
def test_the_range_of_an_index_holds_every_value(text: str, extents: dict[str, int]) -> None:
    bounds = index_range(index(text), {name: DimExpr.of(extent) for name, extent in extents.items()})
    assume(bounds is not None)
    assert bounds is not None
    low, high = (bound.constant for bound in bounds)
    assert low is not None
    assert high is not None
    for point in points(extents):
        assert low <= value(text, extents, point) <= high


@given(INDICES, EXTENTS)
def test_a_range_over_symbols_is_as_wide_as_one_over_their_values(text: str, extents: dict[str, int]) -> None:
    symbolic = index_range(index(text), {"i": DimExpr.var("n"), "j": DimExpr.var("k")})
    assume(symbolic is not None)
    assert symbolic is not None
    symbols = {"n": extents["i"], "k": extents["j"]}
    low, high = (bound.evaluate(symbols) for bound in symbolic)
    for point in points(extents):
        assert low <= value(text, extents, point) <= high


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("1*i + 1*j - 0", "i + j"),
        ("j + i", "i + j"),
        ("2*(i + j) - j", "2 * i + j"),
        ("i*extent(j) + j", "extent(j) * i + j"),
        ("(i + j)//1", "i + j"),
        ("4*i//2", "2 * i"),
        ("extent(i) - 1 - i", "extent(i) - i - 1"),
        ("rows[i]", "rows[i]"),
    ],
)
def test_indices_are_written_in_one_way(text: str, normal: str) -> None:
    assert text_of(normal_index(index(text))) == normal


@pytest.mark.parametrize(
    "text", ["i*j", "i//j", "i % extent(j)", "exp(i)", "i & 1", "1.5", "rows[i]", "i*(extent(j)-3)//2*i"]
)
def test_others_are_no_affine_indices(text: str) -> None:
    assert index_dim(index(text)) is None
    assert index_range(index(text), {"i": DimExpr.of(3), "j": DimExpr.of(3)}) is None


def test_a_size_that_may_be_negative_is_no_factor() -> None:
    assert index_dim(index("((extent(i) - 5)//2)*j")) is None
    assert index_dim(index("((extent(i) + 5)//2)*j")) is not None
