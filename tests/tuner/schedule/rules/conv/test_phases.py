"""Transposed convolutions with a stride, phase by phase: which they are, and their kernels against the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, shortest
from tests.shares import chosen, every, shares
from tests.tuner.schedule.rules.conv.test_kernels import RANDOM, SAFE, problems_at, task_of
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.schedule.layout import CutLayout
from tuner.schedule.product.axes import IN_IMAGE
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import forms_of
from tuner.schedule.product.operands.gathered import AheadRows, GatheredColumns
from tuner.schedule.rules.conv import Conv

RULE = Conv()
IMAGE: Mapping[str, Any] = {"b": "T", "c": 4, "h": 5, "w": 6, "o": 6, "r": 3, "s": 3}
AXES = {1: (("w", "s"),), 2: (("h", "r"), ("w", "s")), 3: (("d", "t"), ("h", "r"), ("w", "s"))}


def transposed(rank: int = 2, dtype: Any = "float32", epilogue: tuple[str, ...] = (), **args: Any) -> Workload:
    return workload_from_json({
        "op": f"conv{rank}d_transpose", "args": args, "dtype": dtype, "epilogue": list(epilogue),
    })  # fmt: skip


def form_of(workload: Workload) -> Form:
    (form,) = forms_of(workload)
    return form


def test_each_phase_has_its_places_and_its_taps() -> None:
    form = form_of(transposed(stride=2, pad=1, **IMAGE))
    taps = [[each.count for each in own.phase.taps] for own in form.phases if own.phase is not None]
    # Places 0, 2, ... meet the tap in the middle, all others the first and the last.
    assert taps == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert [own.part_size("p", {"p": np.array([9])}).tolist() for own in form.phases] == [[5], [5], [4], [4]]
    assert form.joined
    assert (type(form.left), type(form.right)) == (AheadRows, GatheredColumns)


def test_a_phase_reads_without_a_stride() -> None:
    last = form_of(transposed(stride=2, pad=1, **IMAGE)).phases[-1]
    assert last.phase is not None
    assert (
        str(last.phase.workload.program) == "out[b, o, p, q] = sum(c, r, s) x[b, c, p + r, q + s] * weight[c, o, r, s]"
    )
    assert [dim.constant for dim in last.phase.workload.tensors["weight"].dims] == [4, 6, 2, 2]


def test_rows_of_phases_are_windows_of_an_image_with_channels_inside() -> None:
    workload = transposed(stride=2, layout="nhwc", **IMAGE)
    assert all(own.image is not None for own in form_of(workload).phases)
    task = task_of(workload)
    rng = np.random.default_rng(0)
    kernel = shortest(k for k in (RULE.space(task).sample(rng) for _ in range(200)) if k["rows"] == IN_IMAGE)
    assert built_problems(task, kernel, [workload.dims({"T": size}) for size in (1, 3)]) == []


OTHERS: Mapping[str, Workload] = {
    "steps of one": transposed(**IMAGE),
    "taps apart": transposed(stride=2, dilation=2, **IMAGE),
    "more phases than there is code for": transposed(stride=4, **IMAGE),
    "a place that counts as a number": workload_from_json({
        "program": "out[n, q] = sum(s, c) where((q - s) % 2 == 0, x[(q - s)//2, c], 0) * w[n, s, c] * q",
        "extents": {"n": 6, "q": 9, "s": 3, "c": 4}, "padded": {"x": 0}, "shapes": {"x": [4, 4]}, "constant": ["w"],
    }),
    "zeros that are no zeros": workload_from_json({
        "program": "out[n, q] = sum(s, c) where((q - s) % 2 == 0, x[(q - s)//2, c], 1) * w[n, s, c]",
        "extents": {"n": 6, "q": 9, "s": 3, "c": 4}, "padded": {"x": 0}, "shapes": {"x": [4, 4]}, "constant": ["w"],
    }),
    "more columns than a panel of any target has, and one more": workload_from_json({
        "program": "out[n, q] = sum(s, c) where((q - s) % 2 == 0, x[(q - s)//2, c], 1) * w[n, s, c]",
        "extents": {"n": 6, "q": 97, "s": 3, "c": 4}, "padded": {"x": 0}, "shapes": {"x": [48, 4]}, "constant": ["w"],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", every(6, OTHERS, first=3))
@shares(2)
def test_what_is_no_transposed_convolution_of_a_few_phases_is_done_as_it_stands(share: int, name: str) -> None:
    assert not any(form.phases for form in forms_of(OTHERS[name]))
    assert problems_at(OTHERS[name], (1, 3), 0, 1, (SAFE, RANDOM)[share]) == []


KERNELS: Mapping[str, Workload] = {
    "phases without taps": transposed(epilogue=("bias", "add"), stride=3, **{**IMAGE, "r": 2, "s": 1}),
    "phases without places": transposed(stride=3, pad=0, **{**IMAGE, "h": 1, "w": 1, "r": 2, "s": 1}),
    "sizes that are known at the call": transposed(stride=2, pad=1, **{**IMAGE, "b": 2, "h": "T", "w": "T"}),
    "groups": transposed(stride=2, groups=2, epilogue=("bias",), **IMAGE),
    "groups inside": transposed(stride=2, groups=2, layout="nhwc", **IMAGE),
    "more than a vector apart": transposed(1, b="T", c=3, w=21, o=5, s=5, stride=5, pad=1),
    "vectors of results": transposed(1, b="T", c=3, w=37, o=5, s=3, stride=3, epilogue=("bias", "relu")),
    "three dims": transposed(3, b=1, c=2, d="T", h=3, w=4, o=5, t=2, r=3, s=3, stride=2, pad=1),
    "bfloat16": transposed(dtype="bfloat16", stride=2, pad=1, epilogue=("bias", "add"), **IMAGE),
    "bfloat16 inside": transposed(dtype="bfloat16", stride=2, layout="nhwc", **IMAGE),
    "bytes": transposed(dtype={"x": "int8", "weight": "int8", "out": "int32"}, stride=2, pad=1, **IMAGE),
    "bytes inside": transposed(
        dtype={"x": "uint8", "weight": "int8", "out": "int32"}, stride=2, layout="nhwc", **IMAGE
    ),
    "a weight that is no constant": workload_from_json({
        "program": "out[n, q] = sum(s, c) where((q + 1 - s) % 2 == 0, x[(q + 1 - s)//2, c], 0) * w[n, s, c]",
        "extents": {"n": 6, "q": "T", "s": 3, "c": 4}, "padded": {"x": 0.5}, "shapes": {"x": [4, 4]},
    }),
    "a step for each dim": workload_from_json({
        "program": "out[p, q, n] = sum(r, s, c) w[n, c, r, s]"
        " * where(((p - r) % 2 == 0) & ((q + 2 - s) % 3 == 0), x[(p - r)//2, (q + 2 - s)//3, c], 0)",
        "extents": {"n": 17, "p": 9, "q": "T", "r": 3, "s": 4, "c": 5}, "padded": {"x": 0},
        "shapes": {"x": [4, "T", 5]}, "constant": ["w"],
    }),
}  # fmt: skip


SHORT = ("phases without places", "a weight that is no constant")
"""Kernels of the least code."""


@pytest.mark.parametrize("name", chosen(SHORT, KERNELS))
@shares(2)
def test_kernels_of_phases_are_right(share: int, name: str) -> None:
    assert form_of(KERNELS[name]).phases
    which = (RANDOM, SAFE)[(list(KERNELS).index(name) + share) % 2]
    # One thread or two.
    assert problems_at(KERNELS[name], (1, 2, 7), 0, 1 + len(name) % 2, which) == []


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    rank = draw(st.sampled_from([1, 1, 2, 2, 3]))
    stride = draw(st.integers(2, {1: 5, 2: 3, 3: 2}[rank]))
    args: dict[str, Any] = {"b": draw(st.sampled_from([1, 2, "T"])), "stride": stride}
    groups = draw(st.sampled_from([1, 1, 2]))
    args |= {"c": groups * draw(st.integers(1, 5)), "o": groups * draw(st.sampled_from([1, 3, 17])), "groups": groups}
    for size, window in AXES[rank]:
        args[size] = draw(st.sampled_from([2, 5, 18] if args["b"] == "T" else [2, 5, "T"]))
        args[window] = draw(st.integers(1, 4))
    # As much as leaves an output where the image has one element.
    args["pad"] = draw(st.integers(0, (min(args[window] for _, window in AXES[rank]) - 1) // 2))
    args["layout"] = draw(st.sampled_from(["nchw", "nhwc"]))
    epilogue = draw(st.sampled_from([(), ("bias",), ("bias", "add")]))
    return transposed(rank, draw(st.sampled_from(["float32", "float32", "bfloat16"])), epilogue, **args)


@pytest.mark.soak
@pytest.mark.parametrize("share", range(3))
@settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
@given(workload=workloads(), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]))
def test_drawn_transposed_convolutions_are_right(share: int, workload: Workload, seed: int, threads: int) -> None:
    assert problems_at(workload, (1, 2, 6), seed, threads) == [], workload.to_json()


def test_a_packed_weight_has_the_taps_of_each_phase() -> None:
    workload = transposed(1, b=1, c=2, w=5, o=3, s=3, stride=2)
    task = task_of(workload)
    layout = RULE.layouts(task, RULE.default_kernel(task))["weight"]
    assert isinstance(layout, CutLayout)
    weight = np.arange(18, dtype=np.float32).reshape(2, 3, 3) + 1
    packed = layout.pack(weight)
    assert packed.shape == layout.packed_shape(weight.shape)
    assert np.count_nonzero(packed) == weight.size
    # Of each channel of the output, in lines of its own, the last tap first.
    even = packed[: math.prod(layout.shape(0))].reshape(layout.shape(0))
    odd = packed[layout.first(1) :][: 3 * layout.shape(1)[1]].reshape(layout.shape(1))
    assert (even[:, :4] == weight[:, :, ::-2].transpose(1, 2, 0).reshape(3, 4)).all()
    assert (odd[:, :2] == weight[:, :, 1].T).all()
