"""Dims: a normal form that agrees with Python's own arithmetic, and refusals that name the problem."""

from __future__ import annotations

import builtins
import os
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.program.language.dims import MAX_DIM, MAX_SOURCE_LENGTH, DimExpr, parse_dim
from tuner.program.language.workload import ShapeVar

NAMES = ("A", "B", "T")
VALUES = st.fixed_dictionaries({name: st.integers(0, 300) for name in NAMES})
LEAVES = st.sampled_from(NAMES) | st.integers(0, 40).map(str)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({''.join(parts)})")
    divided = st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 9).map(str))
    return binary | divided.map(lambda parts: f"({''.join(parts)})")


SOURCES = st.recursive(LEAVES, _combined, max_leaves=6)


def parsed(source: str) -> DimExpr:
    try:
        return parse_dim(source)
    except InvalidInput:
        assume(False)
        raise


@given(SOURCES, VALUES)
def test_evaluation_agrees_with_python(source: str, values: dict[str, int]) -> None:
    expected = eval(source, {"__builtins__": {}}, dict(values))
    assert parsed(source).evaluate(values) == expected


@given(SOURCES)
def test_an_expression_is_read_again_as_it_prints(source: str) -> None:
    expr = parsed(source)
    assume(len(str(expr)) <= MAX_SOURCE_LENGTH)
    assert parse_dim(str(expr)) == expr
    assert str(parse_dim(str(expr))) == str(expr)


@given(SOURCES, VALUES, VALUES)
def test_bounds_hold_every_value(source: str, low: dict[str, int], extra: dict[str, int]) -> None:
    expr = parsed(source)
    ranges = {name: (low[name], low[name] + extra[name]) for name in NAMES}
    least, most = expr.bounds(ranges)
    for share in (0, 1, 2, 3, 4):
        values = {name: low[name] + extra[name] * share // 4 for name in NAMES}
        assert least <= expr.evaluate(values) <= most


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 12), st.sampled_from(["//", "%"]))
def test_bounds_of_one_quotient_are_exact(low: int, extra: int, divisor: int, operator: str) -> None:
    expr = parse_dim(f"(3*T+1){operator}{divisor}")
    values = [expr.evaluate({"T": value}) for value in range(low, low + extra + 1)]
    least, most = expr.bounds({"T": (low, low + extra)})
    assert least <= min(values)
    assert max(values) <= most
    if operator == "//":
        assert (least, most) == (min(values), max(values))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("16*T", "T*8*2"),
        ("T+T", "2*T"),
        ("(A+B)*2", "2*B+A+A"),
        ("A*B", "B*A"),
        ("(4*T)//2", "T*2"),
        ("(4*T)%2", "0"),
        ("T-T+7//2", "3"),
        ("(T+1)*(T-1)", "T*T-1"),
        ("T//2*2", "2*(T//2)"),
    ],
)
def test_equal_expressions_are_one_value(one: str, other: str) -> None:
    assert parse_dim(one) == parse_dim(other)
    assert hash(parse_dim(one)) == hash(parse_dim(other))
    assert str(parse_dim(one)) == str(parse_dim(other))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("16 * T", "16*T"),
        ("128+T", "T+128"),
        ("128-T", "128-T"),
        ("T-2*T", "0-T"),
        ("16*(T//2)", "16*(T//2)"),
        ("A*(B//2)", "A*(B//2)"),
        ("(A*B)//2", "(A*B)//2"),
        ("T//2", "T//2"),
        ("(T+1)//2-3", "(T+1)//2-3"),
        ("0*T", "0"),
    ],
)
def test_expressions_print_as_they_are_written(source: str, text: str) -> None:
    assert str(parse_dim(source)) == text


def test_a_product_with_a_quotient_is_no_quotient_of_the_product() -> None:
    assert parse_dim("16*(T//2)") != parse_dim("16*T//2")
    assert parse_dim(str(parse_dim("3*(T//2)"))).evaluate({"T": 5}) == 6


@pytest.mark.parametrize(
    "source",
    [
        "16*T.__class__",
        "__import__('os')",
        "__import__('os').system('exit 3')",
        "(lambda: 16)()",
        "[T for T in (1,)]",
        "T if T else 1",
        "(T := 3)",
        "T[0]",
        "f'{T}'",
        "T/0",
        "T/2",
        "-T",
        "+T",
        "~T",
        "T**2",
        "T<<3",
        "T@T",
        "T<3",
        "T and 1",
        "1.5*T",
        "1e3",
        "True",
        "None",
        "'T'",
        "T,",
        "*T",
        "T//S",
        "8//T",
        "",
        " ",
        "T T",
        "16*",
        "\x00",
        "\ud800",
        str(MAX_DIM + 1),
        "(" * 90 + "T",
        "T\nimport os",
    ],
)
def test_anything_but_arithmetic_is_refused_and_named(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("code was executed")

    monkeypatch.setattr(os, "system", forbidden)
    for name in ("eval", "exec", "compile"):
        original = getattr(builtins, name)
        # ast.parse compiles to a tree alone, with its own flag; anything else would be code.
        guard = _tree_only(original) if name == "compile" else forbidden
        monkeypatch.setattr(builtins, name, guard)
    with pytest.raises(InvalidInput) as caught:
        parse_dim(source)
    monkeypatch.undo()
    assert repr(source) in caught.value.problem
    assert "16*T" in caught.value.remedy


def _tree_only(original: Any) -> Any:
    import ast  # noqa: PLC0415

    def compiled(source: Any, filename: str, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        assert flags & ast.PyCF_ONLY_AST
        return original(source, filename, mode, flags, *args, **kwargs)

    return compiled


@pytest.mark.parametrize("source", ["T//0", "T%0", "T//(1-1)", "T//(0-2)", "T%(1-5)"])
def test_division_by_nothing_positive_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match="divide by a positive constant"):
        parse_dim(source)


def test_huge_text_is_refused_by_its_length() -> None:
    with pytest.raises(InvalidInput, match=r"100001 characters is too long"):
        parse_dim("T" + "+" * 100_000)


def test_products_of_sums_cannot_explode() -> None:
    source = "*".join(f"({'+'.join(chr(65 + 4 * i + j) for j in range(4))})" for i in range(6))
    with pytest.raises(InvalidInput, match="more than 200 terms"):
        parse_dim(source)


@pytest.mark.parametrize("source", ["65536*65536*T", "2147483647+1", "T//(65536*65536)"])
def test_numbers_that_no_extent_reaches_are_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match=r"too large|divides by"):
        parse_dim(source)


@given(st.text(max_size=30))
def test_any_text_is_a_dim_or_refused(source: str) -> None:
    try:
        expr = parse_dim(source)
    except InvalidInput as error:
        assert error.problem
    else:
        assert isinstance(expr, DimExpr)


@pytest.mark.parametrize("value", [1.5, True, None, [], {"T": 1}, b"T", object()])
def test_values_of_other_types_are_no_dims(value: object) -> None:
    with pytest.raises(InvalidInput, match="is not a dim"):
        DimExpr.of(value)


@pytest.mark.parametrize("divisor", [0, -1, 2.0, True, "2"])
def test_python_operators_refuse_what_the_text_does(divisor: Any) -> None:
    with pytest.raises(InvalidInput, match="positive constant"):
        ShapeVar("T", range(1, 9)) // divisor
    with pytest.raises(InvalidInput, match="positive constant"):
        ShapeVar("T", range(1, 9)) % divisor


def test_python_operators_build_what_the_text_says() -> None:
    t, s = ShapeVar("T", range(1, 9)), ShapeVar("S", range(1, 9))
    assert 16 * t == t * 16 == parse_dim("16*T")
    assert t + 128 == 128 + t == parse_dim("T+128")
    assert t - 1 == parse_dim("T-1")
    assert 9 - t == 9 - t.expr == parse_dim("9-T")
    assert t * s + t // 2 + s % 3 == parse_dim("T*S+T//2+S%3")
    assert DimExpr.of(t) == DimExpr.of("T") == DimExpr.var("T")


def test_constants_and_variables_are_told() -> None:
    assert parse_dim("7-7").constant == 0
    assert parse_dim("3*4").constant == 12
    assert parse_dim("T").constant is None
    assert parse_dim("A*(B//3)+1").variables == {"A", "B"}
