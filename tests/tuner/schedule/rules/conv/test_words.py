"""Contractions of any form whose operands are bytes or bfloat16, by every instruction that this CPU has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, runnable, shortest
from tests.shares import chosen, diagonal, shares
from tests.tuner.schedule.rules.conv.random_contractions import contractions
from tests.tuner.schedule.rules.conv.test_kernels import task_of
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native
from tuner.schedule import NoMatch, rules_of
from tuner.schedule.product.match.groups import forms_of
from tuner.schedule.rules.conv import Conv

RULE = Conv()
PAIRS = [("uint8", "int8"), ("int8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("bfloat16", "bfloat16")]


def taken(task: SearchTask) -> bool:
    return RULE.name in [rule.name for rule in rules_of(task)]


DRAWN, EVERY = 1, 6
"""Random kernels of a workload, in `make test` and in `make soak`."""


def problems(task: SearchTask, sizes: tuple[int, ...], seed: int, drawn: int = DRAWN) -> list[str]:
    """What is wrong with the safe kernel, and with random ones, of which one for each instruction and grouping."""
    shapes = [task.workload.dims(dict.fromkeys(task.workload.variables, size)) for size in sizes]
    shapes = [dims for dims in shapes if min(dims.values(), default=0) >= 0 and task.workload.is_consistent(dims)]
    space = RULE.space(task)
    some = [space.sample(np.random.default_rng(number)) for number in range(seed, seed + EVERY)]
    some = [shortest(some)] if drawn == DRAWN else some
    distinct = {(kernel.get("group"), kernel["join"]): kernel for kernel in some}
    kernels = dict.fromkeys([RULE.default_kernel(task), *distinct.values()])
    return [f"{kernel}: {text}" for kernel in kernels for text in built_problems(task, kernel, shapes)]


@pytest.mark.parametrize("pair", chosen([PAIRS[0], PAIRS[-1]], PAIRS), ids="-".join)
@shares(2)
@settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 9), threads=st.sampled_from([1, 2]))
def test_random_contractions_are_right(
    share: int, pair: tuple[str, str], data: st.DataObject, seed: int, threads: int
) -> None:
    workload = data.draw(contractions(pair))
    task = task_of(workload, threads)
    if taken(task):
        assert problems(task, (0, 1, 6, 19), seed, EVERY if share else DRAWN) == [], workload.program


def conv(left: str, right: str, out: str = "float32", **args: Any) -> Workload:
    """With what follows a quantised convolution for a channel of the output behind it."""
    channels_last = args.get("layout") == "nhwc"
    axes = "b, p, q, o" if channels_last else "b, o, p, q"
    groups, window = args.get("groups", 1), args.get("window", 3)
    c, o, size, pad, stride = args["c"], args["o"], args["size"], args.get("pad", 0), args.get("stride", 1)
    own, each = c // groups, o // groups
    channel = f"{own}*(o // {each}) + c" if groups > 1 else "c"
    rows, columns = (f"{stride}*{a} + {b}" + (f" - {pad}" if pad else "") for a, b in ("pr", "qs"))
    at = f"b, {rows}, {columns}, {channel}" if channels_last else f"b, {channel}, {rows}, {columns}"
    behind = "cast(z[{0}], float32) * scale[o] + bias[o]" if left != "bfloat16" else "z[{0}] * scale[o] + bias[o]"
    if out == "int8":
        behind = f"cast(min(max(round({behind}), -128), 127), int8)"
    last = (size + 2 * pad - window) // stride + 1
    text = f"z[{axes}] = sum(c, r, s) x[{at}] * w[o, c, r, s]\nout[{axes}] = {behind.format(axes)}"
    dims = [size, size, c] if channels_last else [c, size, size]
    document: dict[str, Any] = {
        "program": text, "constant": ["w"], "dtype": {"x": left, "w": right, "out": out}, "shapes": {"x": ["b", *dims]},
        "extents": {"b": "T", "o": o, "p": last, "q": last, "c": own, "r": window, "s": window},
    }  # fmt: skip
    return workload_from_json(document | ({"padded": {"x": 3}} if pad else {}))


FORMS: Mapping[str, Mapping[str, Any]] = {
    "few channels": {"c": 3, "o": 21, "size": 9, "pad": 1},
    "words of channels": {"c": 16, "o": 6, "size": 7, "pad": 1},
    "vectors of channels": {"c": 128, "o": 18, "size": 4, "pad": 2},
    "every other pixel": {"c": 20, "o": 19, "size": 18, "pad": 1, "stride": 2},
    "a pixel at a time": {"c": 24, "o": 11, "size": 5, "window": 1},
    "a pixel at a time of odd channels": {"c": 19, "o": 35, "size": 5, "window": 1},
    "groups": {"c": 12, "o": 18, "size": 6, "groups": 2, "pad": 1},
    "groups of a channel": {"c": 3, "o": 27, "size": 6, "groups": 3},
}


@pytest.mark.parametrize(("name", "layout"), diagonal(FORMS, ["nchw", "nhwc"], every=8))
@shares(2)
def test_convolutions_are_right_in_every_way_of_gathering(share: int, name: str, layout: str) -> None:
    position = 2 * list(FORMS).index(name) + share
    pair = PAIRS[position % len(PAIRS)]
    out = ("float32", "int8")[position % 2] if pair[0] != "bfloat16" else ("float32", "bfloat16")[position % 2]
    task = task_of(conv(*pair, out, layout=layout, **FORMS[name]), 1 + position % 2)
    assert taken(task)
    assert problems(task, (1, 2, 7), position, EVERY if share else DRAWN) == []


@pytest.mark.parametrize(
    ("mcpu", "pair"), diagonal(["x86-64-v3", "x86-64-v4", "icelake-server", "znver4"], PAIRS, every=7)
)
def test_the_default_is_right_on_every_target(mcpu: str, pair: tuple[str, str]) -> None:
    layout = ("nchw", "nhwc")[PAIRS.index(pair) % 2]
    workload = conv(*pair, layout=layout, **FORMS["few channels"])
    task = SearchTask(workload, shape_vars=task_of(workload).shape_vars, target=runnable(mcpu), threads=1)
    kernel = RULE.default_kernel(task)
    groups = next((axis.choices for axis in RULE.space(task).axes if axis.name == "group"), (1,))
    assert kernel.get("group") == max(groups)
    assert built_problems(task, kernel, [task.workload.dims({"T": size}) for size in (1, 3)]) == []


BOTH_NEW = {
    "rows": "out[a, b, m, n] = sum(k) x[a, m, b, k] * y[b, k, n]",
    "columns": "out[a, b, m, n] = sum(k) x[a, m, b, k] * y[b, n, k]",
    "neither": "out[a, m, b, n] = sum(k) x[k, b, m, a] * y[n, k, b]",
}


@pytest.mark.parametrize(("pair", "k", "name"), diagonal(PAIRS[1:4:2] + PAIRS[-1:], [32, 37, "T"], BOTH_NEW, every=6))
@shares(2)
def test_operands_that_are_new_at_every_call_are_interleaved(
    share: int, pair: tuple[str, str], k: int | str, name: str
) -> None:
    extents = {"a": 2, "b": 3, "m": "T", "n": 19, "k": k}
    dtype = dict(zip("xy", pair, strict=True))
    task = task_of(workload_from_json({"program": BOTH_NEW[name], "extents": extents, "dtype": dtype}))
    assert taken(task)
    assert problems(task, (0, 1, 21), 3, EVERY if share else DRAWN) == []


def test_pixels_without_a_sign_need_no_offset_wherever_they_are() -> None:
    hardware = native().hardware
    if "avx512_vnni" not in hardware.features:
        pytest.skip("this CPU has no dot products of bytes")
    for layout, is_swapped in (("nchw", True), ("nhwc", False)):
        for left, offset in (("uint8", 0), ("int8", 128)):
            (form, *_) = forms_of(conv(left, "int8", layout=layout, **FORMS["words of channels"]))
            dot = form.dots(hardware)[4]
            assert (dot.is_swapped, dot.offset) == (is_swapped, offset)


def test_what_no_instruction_multiplies_has_a_reason() -> None:
    oldest = Target.from_json({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})
    answer = RULE.match(conv("uint8", "int8", **FORMS["groups"]), oldest)
    assert isinstance(answer, NoMatch)
    assert "no instruction" in answer.reason
    products = {"program": "out[m, n] = sum(k) x[m, k] * t[k] * y[k, n]", "extents": dict.fromkeys("mnk", 9)}
    answer = RULE.match(workload_from_json(products | {"dtype": dict.fromkeys("xty", "int8")}), native())
    assert isinstance(answer, NoMatch)
