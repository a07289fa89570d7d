"""Expressions: equality, walking, rebuilding, and how they print."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.tuner.program_strategies import PROGRAMS
from tuner.program.language.expr import Axis, Const, Expr, Read, axes_of, children, reads, rebuild, text_of, walk
from tuner.program.language.notation import parse_stages


def body(text: str) -> Expr:
    return parse_stages(f"out[m, n, k] = {text}")[0].body


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("a[m]+b[n]*c[k]", "a[m] + b[n] * c[k]"),
        ("(a[m]+b[n])*c[k]", "(a[m] + b[n]) * c[k]"),
        ("a[m]-(b[n]-c[k])", "a[m] - (b[n] - c[k])"),
        ("(a[m]-b[n])-c[k]", "a[m] - b[n] - c[k]"),
        ("a[m]/(b[n]*c[k])", "a[m] / (b[n] * c[k])"),
        ("m<n & n<k", "(m < n) & (n < k)"),
        ("m<n | n<k & k<3", "(m < n) | ((n < k) & (k < 3))"),
        ("m&n&k", "m & n & k"),
        ("m&(n&k)", "m & (n & k)"),
        ("m>>4&15", "(m >> 4) & 15"),
        ("m+1<<2", "(m + 1) << 2"),
        ("(m&1)==0", "(m & 1) == 0"),
        ("m&1==0", "m & (1 == 0)"),
        ("(m<n)==(n<k)", "(m < n) == (n < k)"),
        ("-a[m]*b[n]", "(-a[m]) * b[n]"),
        ("-(a[m]*b[n])", "-(a[m] * b[n])"),
        ("a[m]- -1", "a[m] - (-1)"),
        ("-1-a[m]", "-1 - a[m]"),
        ("-(-1)", "-(-1)"),
        ("-(1)", "-(1)"),
        ("--a[m]", "-(-a[m])"),
        ("a[m]*-inf", "a[m] * (-inf)"),
        ("1e-5+.5+2.", "1e-05 + 0.5 + 2.0"),
        ("where(m<=n,x[m,n],-inf)", "where(m <= n, x[m, n], -inf)"),
        ("max(a[m],0)-1", "max(a[m], 0) - 1"),
        ("cast(w[n,k//2]>>4*(k%2)&15,float32)", "cast((w[n, k // 2] >> (4 * (k % 2))) & 15, float32)"),
        ("a[]+extent(n)", "a[] + extent(n)"),
    ],
)
def test_an_expression_prints_as_it_is_read(source: str, printed: str) -> None:
    assert text_of(body(source)) == printed
    assert body(printed) == body(source)


@given(PROGRAMS)
def test_stages_are_read_again_as_they_print(data: dict[str, Any]) -> None:
    stages = parse_stages(data["program"])
    assert parse_stages("\n".join(map(str, stages))) == stages
    assert parse_stages("; ".join(map(str, stages))) == stages
    for stage in stages:
        again = rebuild(stage.body, lambda node: node)
        assert again == stage.body
        assert hash(again) == hash(stage.body)
        assert sum(1 for _ in walk(again)) == _count(stage.body)


def _count(expr: Expr) -> int:
    return 1 + sum(map(_count, children(expr)))


def test_numbers_are_equal_if_they_print_alike() -> None:
    assert Const(1) != Const(1.0)
    assert Const(0.0) != Const(-0.0)
    assert Const(2, at=3) == Const(2, at=4)
    assert len({Const(1), Const(1.0), Const(1, at=9)}) == 2


def test_what_an_expression_reads_is_told_in_the_order_of_the_text() -> None:
    expr = body("a[m] * w[rows[n], k] + a[m]")
    assert [read.tensor for read in reads(expr)] == ["a", "w", "rows", "a"]
    assert axes_of(expr) == {"m", "n", "k"}
    renamed = rebuild(expr, lambda node: Axis("z") if isinstance(node, Axis) else node)
    assert text_of(renamed) == "a[z] * w[rows[z], z] + a[z]"
    assert isinstance(children(expr)[1], Read)
