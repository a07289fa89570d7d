"""How axes group, operand by operand. No compiler."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.program.build import workload_from_json
from tuner.program.workload import Workload
from tuner.rules import Refused
from tuner.rules.x86_gathered.pattern import Form, forms


def op(name: str, **args: Any) -> Workload:
    return workload_from_json({"op": name, "args": args})


def program(text: str, **fields: Any) -> Workload:
    return workload_from_json({"program": text, **fields})


def found(workload: Workload) -> tuple[Form, ...]:
    result = forms(workload)
    assert not isinstance(result, Refused), result
    return result


IMAGE = {"b": "T", "c": 4, "h": 9, "w": 9, "o": 6, "r": 3, "s": 3}


def test_channels_outside_make_the_weight_the_left_operand() -> None:
    direct, joined = found(op("conv2d", pad=1, **IMAGE))
    assert direct.groups == {"b": ("b",), "m": ("o",), "n": ("p", "q"), "k": ("r", "s", "c")}
    assert (direct.left.kind, direct.right.kind) == ("packed", "gathered")
    assert direct.out_roles == ("b", "m", "n")
    assert joined.groups == {"m": ("o",), "n": ("b", "p", "q"), "k": ("r", "s", "c")}
    assert joined.out_roles is None


def test_channels_inside_make_it_the_right_one() -> None:
    (form,) = found(op("conv2d", layout="nhwc", **IMAGE))
    assert form.groups == {"m": ("b", "p", "q"), "n": ("o",), "k": ("r", "s", "c")}
    assert (form.left.kind, form.right.kind) == ("gathered", "packed")


def test_a_window_of_one_element_is_a_product_in_place() -> None:
    direct, _ = found(program("out[b, o, p, q] = sum(c) x[b, c, p, q] * w[o, c]", constant=["w"], extents={
        "b": "T", "o": 8, "p": 5, "q": 5, "c": 3}))  # fmt: skip
    assert (direct.right.kind, direct.right.roles) == ("view", ("b", "k", "n"))


def test_groups_of_channels_are_a_batch() -> None:
    direct, _ = found(op("conv2d", groups=2, **IMAGE))
    assert direct.groups["b"] == ("b", "o//")
    assert direct.groups["m"] == ("o%",)
    assert direct.roles == {"b": "batch", "o": "batch and m", "p": "n", "q": "n", "c": "k", "r": "k", "s": "k"}


def test_axes_that_lie_apart_are_joined() -> None:
    (form,) = found(
        program(
            "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
            extents={"b": "T", "k": 8, "p": 2, "q": 2, "i": 4, "j": 4, "h": 2, "r": 3, "s": 3, "m": 4}, constant=["w"],
        )
    )  # fmt: skip
    assert form.joined
    assert (form.m, form.n) == (("b", "p", "q", "i"), ("k", "j"))


def test_factors_without_the_last_axis_are_one_operand() -> None:
    (form,) = found(op("bilinear", b="T", o=8, i=3, j=5))
    assert len(form.left.factors) == 2
    assert (form.left.kind, form.right.kind) == ("gathered", "packed")


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (op("dense", m="T", n=8, k=8), "x86_contraction takes it"),
        (op("depthwise_conv2d", b="T", c=4, h=9, w=9, r=3, s=3), "one operand alone"),
        (op("gemv", n="T", k=8), "one operand alone"),
        (program("out[m, n] = max(k) x[m, k] * y[k, n]", extents={"m": 2, "n": 3, "k": 4}), "no sum"),
        (program("out[] = sum(k) x[k] * y[k]", extents={"k": 4}), "no sum that leaves an axis"),
        (program("out[m, n] = sum(k) x[m, k]", extents={"m": 2, "n": 3, "k": 4}), "no factor depends on"),
        (
            program("out[a, b, c] = sum(k) x[a, b, k] * y[k, c]", extents=dict.fromkeys("abck", 4), dtype="float64"),
            "out is float64",
        ),
        (
            program(
                "z[a, b, c] = sum(k) x[a, b, k] * y[k, c]\nout[a, b] = sum(c) z[a, b, c]",
                extents=dict.fromkeys("abck", 4),
            ),
            "not elementwise",
        ),
    ],
)  # fmt: skip
def test_what_is_not_taken_has_a_reason(workload: Workload, reason: str) -> None:
    result = forms(workload)
    assert isinstance(result, Refused)
    assert reason in result.reason
