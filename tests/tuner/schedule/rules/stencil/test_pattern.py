"""What the rule for windows takes, and what it leaves to others."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.job.task import SearchTask
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.stencil.direct import is_read_in_place
from tuner.schedule.rules.stencil.pattern import Slide, WindowProgram, match

IMAGE = {"b": "T", "c": 8, "h": 9, "w": 9, "r": 3, "s": 3}


def _windows(name: str, **settings: Any) -> WindowProgram:
    answer = match(make_workload(name, {**IMAGE, **settings}))
    assert isinstance(answer, WindowProgram)
    return answer


def test_dims_that_windows_move_over() -> None:
    program = _windows("max_pool2d", stride=2, pad=1, dilation=2)
    assert program.slides == (Slide(2, "p", "r", 3, 2, 2, -1), Slide(3, "q", "s", 3, 2, 2, -1))
    assert (program.outer, program.phases, len(program.taps)) == (("b", "c"), (0,), 9)


def test_all_residues_that_taps_fall_on() -> None:
    assert _windows("max_pool2d", stride=2).phases == (0, 1)
    assert _windows("max_pool2d", w=33, stride=4).phases == (0, 1, 2)


def test_a_convolution_with_one_channel_in_each_group_is_taken() -> None:
    program = _windows("conv2d", o=16, groups=8)
    assert [slide.axis for slide in program.slides] == ["p", "q"]
    assert program.outer == ("b", "o")


def test_vectors_along_channels_that_lie_last() -> None:
    text = "out[p, q, c] = sum(r, s) x[p + r, q + s, c] * w[r, s, c]"
    answer = match(workload_from_json({"program": text, "extents": {"p": 4, "q": 4, "c": 32, "r": 3, "s": 3}}))
    assert isinstance(answer, WindowProgram)
    assert [slide.window for slide in answer.slides] == ["r", "s", None]


def test_a_weight_that_lies_across_the_vectors_is_packed() -> None:
    """A convolution of single channels that lie last, its weight as PyTorch has it."""
    args = {**IMAGE, "b": 1, "c": 40, "o": 40, "groups": 40, "layout": "nhwc"}
    program = _windows("conv2d", **args)
    assert (program.vector.axis, [read.tensor for read in program.packed]) == ("o", ["weight"])
    task = SearchTask("conv2d", args, target={"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    assert program.layout(task, program.packed[0]).packed_shape((40, 1, 3, 3)) == (5, 9, 8)


@pytest.mark.parametrize(
    ("changes", "is_in_place"),
    [
        ({}, True),
        ({"body": "x[p + r, q + s, c] * w[r, s, c]", "shapes": {}, "padded": {}, "extents": {"q": "T"}}, True),
        # Where the image ends is not known, or what lies there would count.
        ({"extents": {"q": "T"}}, False),
        ({"padded": {"x": 1.0}}, False),
        ({"body": "max(x[p + r - 1, q + s - 1, c], 0) * w[r, s, c]"}, False),
        ({"body": "-x[p + r - 1, q + s - 1, c] * w[r, s, c] * 2"}, True),
        # A factor that is new at every call may be infinite.
        ({"constant": []}, False),
        ({"body": "x[p + r - 1, q + s - 1, c] + w[r, s, c]"}, False),
        ({"reducer": "max", "body": "x[p + r - 1, q + s - 1, c]"}, False),
        ({"reducer": "max", "body": "x[p + r - 1, q + s - 1, c]", "padded": {"x": float("-inf")}}, True),
        # Windows that move along the vectors.
        ({"body": "x[p + r - 1, q, c + s] * w[r, s, c]"}, False),
    ],
)  # fmt: skip
def test_which_images_are_read_where_they_lie(changes: dict[str, Any], is_in_place: bool) -> None:
    body = changes.get("body", "x[p + r - 1, q + s - 1, c] * w[r, s, c]")
    extents = {"p": 9, "q": 9, "c": 32, "r": 3, "s": 3} | changes.get("extents", {})
    text = f"out[p, q, c] = {changes.get('reducer', 'sum')}(r, s) {body}"
    shapes = {"x": [9, extents["q"], 32 + 2 * ("c + s" in body)]}
    constant = changes.get("constant", ["w"] if "w[" in body else [])
    rest = {"constant": constant, "shapes": shapes, "padded": {"x": 0.0}} | {
        name: changes[name] for name in ("shapes", "padded") if name in changes
    }
    workload = workload_from_json({"program": text, "extents": extents, **rest})
    program = match(workload)
    assert isinstance(program, WindowProgram)
    assert is_read_in_place(workload, program) is is_in_place


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"op": "conv2d", "args": {**IMAGE, "o": 8}}, "0 tensors are read through windows"),
        ({"op": "max_pool2d", "args": {**IMAGE, "r": 9, "s": 9}}, "too short for vectors"),
        ({"op": "max_pool2d", "args": {**IMAGE, "h": 99, "w": 99, "r": 12, "s": 12}}, "too large to be unrolled"),
        ({"op": "max_pool2d", "args": {**IMAGE, "w": 99, "stride": 5}}, "more than 4 elements apart"),
        ({"op": "softmax", "args": {"m": "T", "n": 9}}, "2 reductions"),
        ({"program": "o[i] = sum(k) x[i + k]", "extents": {"i": 9, "k": "T"}}, "not constant"),
        ({"program": "o[i] = sum(k) x[i + k] * y[i + 2*k]", "extents": {"i": 9, "k": 3}}, "2 tensors"),
        ({"program": "o[i, j] = sum(k) x[j + k, i]", "extents": {"i": 9, "j": 9, "k": 3}}, "does not lie along j"),
        (
            {"program": "o[p, c] = sum(s) x[p + s, c] * w[c, s]", "extents": {"p": 9, "c": 9, "s": 3}},
            "w does not lie along c",
        ),
        (
            {"program": "o[p, c] = sum(s) x[p + s, c] * w[c, s]", "constant": ["w"], "padded": {"w": 0.0},
             "shapes": {"w": [9, 2]}, "extents": {"p": 9, "c": 9, "s": 3}},
            "w is padded",
        ),
        (
            {"program": "o[p, c] = sum(s) x[p + s, c] * w[c, s] * w[c, 0]", "constant": ["w"],
             "extents": {"p": 9, "c": 9, "s": 3}},
            "w does not lie along c",
        ),
        (
            {"program": "o[i] = sum(k) x[i + k] // 2", "extents": {"i": 9, "k": 3}, "dtype": "int32"},
            "divides integers",
        ),
        (
            {"program": "y[j] = x[j] * 2\no[i] = sum(k) y[i + k]", "extents": {"i": 9, "j": 11, "k": 3}},
            "a stage comes before the reduction",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_reason(data: dict[str, Any], reason: str) -> None:
    answer = match(workload_from_json(data))
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason
