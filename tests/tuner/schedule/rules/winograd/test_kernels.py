"""Kernels of the rule compute what the reference does, and theory prefers them where multiplications count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiled import built_problems, computes_with_denormals, loaded, runnable, spills
from tests.shares import shares
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import extents_of
from tuner.schedule.packing import aligned
from tuner.schedule.rules.conv import Conv
from tuner.schedule.rules.winograd import Winograd
from tuner.schedule.rules.winograd.pattern import PAIRS

RULE = Winograd()
SERVER = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
STRIDES = pytest.mark.parametrize("stride", [1, 2])


def task(target: Target, threads: int = 1, epilogue: tuple[str, ...] = (), **sizes: int) -> SearchTask:
    args = {"b": "T", "r": 3, "s": 3, **sizes}
    workload = workload_from_json({"op": "conv2d", "args": args, "epilogue": list(epilogue)})
    return SearchTask(workload, shape_vars=(ShapeVar("T", range(1, 33)),), target=target, threads=threads)


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "native"])
@shares(2)
@settings(max_examples=2)
@given(data=st.data())
def test_kernels_are_right_at_any_size(share: int, mcpu: str, data: st.DataObject) -> None:
    target = native() if mcpu == "native" else runnable(mcpu)
    pad, size = data.draw(st.integers(0, 3)), st.integers(4, 40)
    own = task(
        target, data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([(), ("bias", "relu"), ("add",)])),
        c=data.draw(st.integers(16, 40)), h=data.draw(size), w=data.draw(size),
        o=data.draw(st.integers(16, 40)), pad=pad, stride=data.draw(st.sampled_from([1, 2])),
    )  # fmt: skip
    kernel = RULE.space(own).sample(np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))
    images = data.draw(st.sets(st.integers(1, 9), min_size=1, max_size=2))
    assert built_problems(own, kernel, [own.workload.dims({"T": number}) for number in images]) == []


@STRIDES
@pytest.mark.parametrize(("pairs", "mr", "kernels"), [(1, 6, 20), (2, 6, 20), (2, 14, 17), (1, 14, 28)])
def test_threads_share_channels_of_the_output(pairs: int, mr: int, kernels: int, stride: int) -> None:
    """Ragged tiles of channels, one tile and a ragged one, and as many tiles as threads."""
    own = task(native(), 2, ("bias",), c=17, h=7 * stride, w=9 * stride, o=kernels, pad=1, stride=stride)
    space = RULE.space(own)
    values = space.values_of(RULE.default_kernel(own)) | {"share": 2, "pairs": pairs, "mr": mr, "nv": 1}
    for tail in (0, 1):
        kernel = space.kernel(values | {"tail": tail})
        assert built_problems(own, kernel, [own.workload.dims({"T": number}) for number in (1, 3)]) == []


def test_theory_prefers_shares_of_channels_for_one_small_image() -> None:
    own = task(SERVER, 2, c=512, h=7, w=7, o=512, pad=1)
    extents, space = extents_of(own.workload, [{"T": 1}, {"T": 16}]), RULE.space(own)
    values = {"mr": 14, "nv": 1, "ku": 1, "tail": 0, "lines": 8, "pairs": 1}
    of_rows, of_channels = (space.kernel(values | {"share": share}) for share in (1, 2))
    rows_s, channels_s = RULE.estimate_s(own, [of_rows, of_channels], extents)
    assert channels_s[0] < 0.8 * rows_s[0]
    assert rows_s[1] < channels_s[1]


@STRIDES
@pytest.mark.parametrize("pairs", PAIRS)
def test_sums_over_many_channels_are_within_the_bounds(pairs: int, stride: int) -> None:
    own = task(native(), c=512, h=6 * stride, w=6 * stride, o=16, pad=1, stride=stride)
    space = RULE.space(own)
    kernel = space.kernel({**space.values_of(RULE.default_kernel(own)), "pairs": pairs})
    assert built_problems(own, kernel, [own.workload.dims({"T": 2})]) == []


@STRIDES
@pytest.mark.parametrize("pairs", PAIRS)
def test_errors_are_about_those_of_sums_in_order(pairs: int, stride: int) -> None:
    """Of activations behind a ReLU: the root mean square of the errors, beside that of sums in float32 in order."""
    size = 12 * stride + 3 - stride
    rng, own = np.random.default_rng(0), task(native(), c=64, h=size, w=size, o=16, stride=stride)
    space = RULE.space(own)
    kernel = space.kernel({**space.values_of(RULE.default_kernel(own)), "pairs": pairs})
    x = np.maximum(rng.standard_normal((4, 64, size, size)), 0).astype(np.float32)
    weight = (rng.standard_normal((16, 64, 3, 3)) / 24).astype(np.float32)
    found = np.empty((4, 16, 12, 12), np.float32)
    packed = RULE.layouts(own, kernel)[own.workload.constants[0]].pack(weight)
    loaded(compile_candidate(own, kernel).binary)([aligned(x), packed, found])

    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    exact = np.einsum("bcyxrs,ocrs->boyx", windows.astype(np.float64), weight.astype(np.float64))
    in_order = np.zeros_like(found)
    for c, r, s in np.ndindex(64, 3, 3):
        in_order += windows[:, c, None, :, :, r, s] * weight[None, :, c, r, s, None, None]
    assert rms(found - exact) < 3 * rms(in_order - exact)


def rms(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def test_lanes_past_the_last_tile_are_not_computed_from_what_memory_held() -> None:
    # 14 tiles in a row: in a block of 4 rows the last vector has tiles in half of its lanes.
    own = task(native(), c=16, h=28, w=28, o=16, pad=1)
    assert not computes_with_denormals(own, RULE.default_kernel(own), own.workload.dims({"T": 1}))


@STRIDES
@pytest.mark.parametrize(("mr", "nv", "ku"), [(6, 4, 1), (8, 2, 8)])
def test_accumulators_stay_in_registers(mr: int, nv: int, ku: int, stride: int) -> None:
    own = task(SERVER, c=64, h=28, w=28, o=64, pad=1, stride=stride)
    kernel = RULE.space(own).kernel({"mr": mr, "nv": nv, "ku": ku, "tail": 0, "lines": 8})
    assert spills(own, kernel) <= mr * nv


@pytest.mark.parametrize(("channels", "size", "stride"), [(64, 56, 1), (512, 7, 1), (128, 56, 2)])
def test_theory_expects_them_to_be_faster(channels: int, size: int, stride: int) -> None:
    own = task(SERVER, c=channels, h=size, w=size, o=channels, pad=1, stride=stride)
    extents, rng = extents_of(own.workload, [{"T": 1}, {"T": 16}]), np.random.default_rng(0)
    best = []
    for rule in (RULE, Conv()):
        space = rule.space(own)
        best.append(rule.estimate_s(own, [space.sample(rng) for _ in range(200)], extents).min(axis=0))
    assert np.all(best[0] < best[1])


def test_theory_sees_the_lanes_that_a_block_leaves_empty() -> None:
    # 4 tiles in a row: with one row to a block 12 of 16 lanes are empty.
    own = task(SERVER, c=64, h=7, w=7, o=64, pad=1)
    extents, space = extents_of(own.workload, [{"T": 16}]), RULE.space(own)
    few, many = (space.kernel({"mr": 8, "nv": 1, "ku": 1, "tail": 0, "lines": lines}) for lines in (1, 4))
    few_s, many_s = RULE.estimate_s(own, [few, many], extents)[:, 0]
    assert few_s > 2 * many_s
