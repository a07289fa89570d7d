"""How axes group, operand by operand. No compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.schedule import NoMatch
from tuner.schedule.access import Dim
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import forms
from tuner.schedule.product.operands.columns import Columns, are_in_two, positions
from tuner.schedule.product.operands.gathered import AheadColumns, AheadRows, GatheredColumns, GatheredRows
from tuner.schedule.product.operands.matrix import ViewedColumns
from tuner.schedule.product.operands.turned import TurnedRows


def op(name: str, **args: Any) -> Workload:
    return workload_from_json({"op": name, "args": args})


def program(text: str, **fields: Any) -> Workload:
    return workload_from_json({"program": text, **fields})


def found(workload: Workload) -> tuple[Form, ...]:
    result = forms(workload)
    assert not isinstance(result, NoMatch), result
    return result


IMAGE = {"b": "T", "c": 4, "h": 9, "w": 9, "o": 6, "r": 3, "s": 3}


def test_channels_outside_make_the_weight_the_left_operand() -> None:
    direct, joined = found(op("conv2d", pad=1, **IMAGE))
    assert direct.groups == {"b": ("b",), "m": ("o",), "n": ("p", "q"), "k": ("r", "s", "c")}
    assert (type(direct.left), type(direct.right)) == (AheadRows, GatheredColumns)
    assert direct.out_roles == ("outer b", "m", "n")
    assert joined.groups == {"m": ("o",), "n": ("b", "p", "q"), "k": ("r", "s", "c")}
    assert joined.out_roles is None


def test_channels_inside_make_it_the_right_one() -> None:
    (form,) = found(op("conv2d", layout="nhwc", **IMAGE))
    assert form.groups == {"m": ("b", "p", "q"), "n": ("o",), "k": ("r", "s", "c")}
    assert (type(form.left), type(form.right)) == (GatheredRows, AheadColumns)


def test_rows_are_windows_of_an_image_with_channels_inside() -> None:
    (form,) = found(op("conv2d", layout="nhwc", stride=2, pad=1, **IMAGE))
    assert form.image is not None
    assert form.image.rows == (Dim("b", 1, None, 1, 0), Dim("p", 2, "r", 1, -1))
    assert (form.image.columns, form.image.run) == (Dim("q", 2, "s", 1, -1), ("s", "c"))
    (dilated,) = found(op("conv2d", layout="nhwc", dilation=2, **IMAGE))
    assert dilated.image is not None
    assert dilated.image.run == ("c",)


@pytest.mark.parametrize(
    "workload",
    [
        op("conv2d", **IMAGE),
        op("conv2d", layout="nhwc", groups=2, **IMAGE),
        op("conv2d", layout="nhwc", **{**IMAGE, "r": 1, "s": 1, "stride": 2}),
        program("out[p, o] = sum(r, c) x[p + r, c + 1] * w[o, r, c]", constant=["w"],
                extents={"p": "T", "o": 8, "r": 3, "c": 3}, shapes={"x": ["T + 2", 4]}),
    ],
    ids=["channels outside", "groups", "windows apart", "some of the channels"],
)  # fmt: skip
def test_other_rows_are_no_windows_of_an_image(workload: Workload) -> None:
    assert all(form.image is None for form in found(workload))


def copied(workload: Workload) -> tuple[Columns, ...]:
    return tuple(form.columns for form in found(workload) if form.columns is not None)


def test_columns_are_windows_of_an_image_with_channels_outside() -> None:
    direct, joined = copied(op("conv2d", pad=2, dilation=2, **IMAGE))
    assert (direct.dims, direct.sizes) == ((Dim("p", 1, "r", 2, -2), Dim("q", 1, "s", 2, -2)), (9,))
    assert (joined.at, joined.sizes) == ((0, 2, 3), (9, 9))
    # Two columns of padding serve the line before and the one behind.
    assert joined.pitches == (11, 11)
    assert joined.lines_below == 4 + 1
    assert copied(op("conv2d", **IMAGE))[-1].pitches == (9, 9)


def test_a_copy_has_the_phases_of_windows_that_are_apart() -> None:
    direct, joined = copied(op("conv2d", stride=2, pad=1, **IMAGE))
    assert (direct.phases, joined.phases) == (4, 4)
    # Of three elements in a line two are in one phase, and one in the other.
    assert (joined.sizes, joined.pitches, joined.reach) == ((5, 5), (6, 6), (0, 1, 1))


def test_a_copy_has_the_channels_of_a_group() -> None:
    (direct, *_) = copied(op("conv2d", pad=1, **{**IMAGE, "c": 12, "o": 9, "groups": 3}))
    assert (direct.channel, direct.channels) == ("c", 4)


def test_a_copy_has_the_lines_that_windows_touch() -> None:
    workload = op("conv3d", b="T", c=2, d=3, h=4, w=5, o=3, t=2, r=3, s=3, pad=1)
    columns = copied(workload)[-1]
    places = positions(columns, np.arange(1000))
    lines = places // columns.pitches[-1]
    for count in (1, 4, 5, 6, 17, 60, 100):
        touched = lines[count - 1 :] - lines[: len(lines) - count + 1] + 1 + columns.lines_below
        assert touched.max() <= columns.lines(count) <= touched.max() + 3 * columns.pitches[0] + 3


@pytest.mark.parametrize(("width", "is_one"), [(16, True), (14, True), (7, True), (1, False)])
def test_vectors_of_columns_are_in_two_of_the_copy(width: int, is_one: bool) -> None:
    columns = copied(op("conv2d", pad=1, **{**IMAGE, "h": 7, "w": width}))[-1]
    assert are_in_two(columns, 16) == is_one


@pytest.mark.parametrize(
    "workload",
    [
        op("conv2d", stride=2, **{**IMAGE, "r": 1, "s": 1}),
        op("conv2d", layout="nhwc", **IMAGE),
        op("conv2d", **{**IMAGE, "w": "U"}),
        op("conv2d", **{**IMAGE, "c": "U"}),
        program(
            "out[b, o, p, q] = sum(r, s, c) x[b, c + r, p + r, q + s] * w[o, r, s, c]",
            constant=["w"],
            extents={"b": "T", "o": 8, "p": 5, "q": 9, "r": 3, "s": 3, "c": 4},
        ),
        program(
            "out[b, o, p, q] = sum(r, s, c) x[b, c, q, p + r, q + s] * w[o, r, s, c]",
            constant=["w"],
            extents={"b": "T", "o": 8, "p": 5, "q": 9, "r": 3, "s": 3, "c": 4},
        ),
    ],
    ids=[
        "windows that leave elements out",
        "channels inside",
        "a width known at the call",
        "channels known at the call",
        "channels that windows move over",
        "columns that index twice",
    ],
)
def test_other_columns_are_no_windows_of_an_image(workload: Workload) -> None:
    assert copied(workload) == ()


def test_a_window_of_one_element_is_a_product_in_place() -> None:
    direct, _, turned = found(program("out[b, o, p, q] = sum(c) x[b, c, p, q] * w[o, c]", constant=["w"], extents={
        "b": "T", "o": 8, "p": 5, "q": 5, "c": 3}))  # fmt: skip
    assert (type(direct.right), direct.right.roles) == (ViewedColumns, ("outer b", "k", "n"))
    assert (type(turned.left), turned.left.roles) == (TurnedRows, ("outer b", "k", "m"))
    assert (type(turned.right), turned.m, turned.n) == (AheadColumns, ("p", "q"), ("o",))


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
    assert (type(form.left), type(form.right)) == (GatheredRows, AheadColumns)


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
            "sums are float64",
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
    assert isinstance(result, NoMatch)
    assert reason in result.reason
