"""Kernels of contractions of any form against the reference, between guard regions."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, runnable, shortest
from tests.shares import diagonal, shares
from tests.tuner.schedule.rules.conv.random_contractions import contractions
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target, native
from tuner.schedule import extents_of, rule_of, rules_of
from tuner.schedule.product.axes import FEW_ALONG_K, IN_COPY, IN_IMAGE
from tuner.schedule.product.match.groups import forms
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.conv import Conv
from tuner.schedule.space import MicroKernel

RULE = Conv()


def task_of(workload: Workload, threads: int = 1) -> SearchTask:
    variables = [ShapeVar(name, range(1, 17)) for name in sorted(workload.variables)]
    return SearchTask(workload, shape_vars=variables, target=native(), threads=threads)


SAFE, RANDOM = slice(0, 1), slice(1, 2)


def problems_at(
    workload: Workload, sizes: tuple[int, ...], seed: int, threads: int, which: slice = slice(None)
) -> list[str]:
    """What is wrong with the safe kernel and a random one where every shape variable has each of some sizes.

    ``which``: SAFE or RANDOM for one of the two.
    """
    task = task_of(workload, threads)
    shapes = [workload.dims(dict.fromkeys(workload.variables, size)) for size in sizes]
    shapes = [dims for dims in shapes if min(dims.values(), default=0) >= 0 and workload.is_consistent(dims)]
    rule = rules_of(task)[0]
    kernels = dict.fromkeys([rule.default_kernel(task), rule.space(task).sample(np.random.default_rng(seed))][which])
    distinct = [dict(items) for items in dict.fromkeys(tuple(dims.items()) for dims in shapes)]
    return [problem for kernel in kernels for problem in built_problems(task, kernel, distinct)]


@shares(6)
@settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
@given(workload=contractions(), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]))
def test_random_contractions_are_right(share: int, workload: Workload, seed: int, threads: int) -> None:
    assert problems_at(workload, (0, 1, 6, 19), seed, threads) == [], workload.program


def conv(**args: object) -> Workload:
    return workload_from_json({"op": "conv2d", "args": args})


@pytest.mark.parametrize(
    "text",
    [
        "z[m, n] = sum(k) x[k, m] * w[n, k]; out[m, n] = z[m, n] + w[m, n]",
        "out[m, n] = sum(k) w[m, k] * w[n, k]",
        "out[m, n] = sum(k) (x[m, k] + w[m, k]) * w[n, k]",
    ],
)
def test_a_constant_that_is_read_twice_is_not_packed(text: str) -> None:
    extents = dict.fromkeys("mnk", 24)
    workload = workload_from_json({"program": text, "extents": extents, "constant": ["w"]})
    assert problems_at(workload, (1,), 0, 1) == []


CONVOLUTIONS = {
    "rows of fewer columns than a vector": conv(b="T", c=3, h=9, w=5, o=6, r=3, s=3, pad=1),
    "rows of whole vectors": conv(b="T", c=3, h=6, w=16, o=6, r=3, s=3, pad=1),
    "rows of a few columns": conv(b="T", c=3, h=9, w=3, o=6, r=2, s=2),
    "a size that is known at the call": conv(b=2, c=3, h=7, w="T", o=6, r=3, s=3, pad=2),
    "every other column": conv(b=2, c=3, h=7, w=41, o=6, r=3, s=2, stride=2, pad=1),
    "every fourth column": conv(b=2, c=3, h=7, w=77, o=6, r=3, s=2, stride=4, pad=1),
    "every sixth column": conv(b=2, c=3, h=7, w=77, o=6, r=3, s=2, stride=6, pad=1),
    "windows of padding alone": conv(b=1, c=2, h=3, w=3, o=4, r=2, s=2, stride=3, pad=4),
    "channels along rows": conv(b="T", c=19, h=6, w=5, o=18, r=3, s=3, stride=2, pad=1, layout="nhwc"),
    "groups": conv(b="T", c=6, h=6, w=5, o=9, r=2, s=2, groups=3),
    "groups along rows": conv(b="T", c=6, h=6, w=5, o=9, r=2, s=2, groups=3, layout="nhwc"),
}


@pytest.mark.parametrize(("name", "seed"), diagonal(CONVOLUTIONS, [0, 1], every=11))
def test_convolutions_are_right_in_every_way_of_gathering(name: str, seed: int) -> None:
    task = task_of(CONVOLUTIONS[name])
    assert rule_of(RULE.default_kernel(task)).name == rules_of(task)[0].name == RULE.name
    assert problems_at(CONVOLUTIONS[name], (1, 2, 7, 23), seed, 1 + seed) == []


PROGRAMS = {
    "a last axis of one element": workload_from_json({
        "program": "z[b, m, n] = sum(k, l) x[k, m, b, l] * y[n, k, l, b]",
        "extents": {"b": 16, "m": 21, "n": 1, "k": 16, "l": 1},
    }),
    "outer axes that are called as roles are": workload_from_json({
        "program": "out[a, b, k, i, n] = sum(m) x[a, i, b, k, m] * y[b, k, m, n]",
        "extents": {"a": 2, "b": 3, "k": 2, "i": "T", "n": 19, "m": 16},
    }),
    "shares of columns through a buffer": workload_from_json({
        "program": "z[n, m, l] = sum(k) x[l, k, m] * y[k, n]; out[n, m, l] = max(z[n, m, l] + bias[m], 0)",
        "extents": {"m": 17, "l": "T", "n": 3, "k": 7},
    }),
}  # fmt: skip


@pytest.mark.parametrize(("name", "threads"), diagonal(PROGRAMS, [1, 2], every=2))
def test_programs_that_were_wrong_once_are_right(name: str, threads: int) -> None:
    assert problems_at(PROGRAMS[name], (1, 6, 19), 0, threads) == []


def strided(op: str, **args: object) -> Workload:
    return workload_from_json({"op": op, "args": {"layout": "nhwc", "o": 21, **args}})


IMAGES = {
    "few channels": strided("conv2d", b="T", c=3, h=17, w=23, r=7, s=7, stride=2, pad=3),
    "runs of channels alone": strided("conv2d", b="T", c=5, h=9, w=7, r=3, s=2, dilation=2, pad=1),
    "windows in a line": strided("conv1d", b=3, c=5, w="T", s=3, stride=2, pad=1),
    "lines in two dims": strided("conv3d", b="T", c=5, d=4, h=7, w=9, t=2, r=3, s=2, pad=1),
    "nothing but padding": strided("conv2d", b="T", c=2, h=3, w=3, r=2, s=2, stride=2, pad=4),
    "values other than zero outside": workload_from_json({
        "program": "z[m, n] = sum(r, c) x[2*m + r - 1, c] * w[n, r, c]", "padded": {"x": 0.5}, "constant": ["w"],
        "extents": {"m": "T", "n": 17, "r": 3, "c": 6}, "shapes": {"x": ["2*T", 6]},
    }),
}  # fmt: skip


@pytest.mark.parametrize(("name", "threads"), diagonal(IMAGES, [1, 2], every=6))
def test_rows_read_in_a_copy_of_the_image_are_right(name: str, threads: int) -> None:
    workload = IMAGES[name]
    task = task_of(workload, threads)
    space, rng = RULE.space(task), np.random.default_rng(threads)
    kernel = shortest(kernel for kernel in (space.sample(rng) for _ in range(200)) if kernel["rows"] == IN_IMAGE)
    shapes = [workload.dims({"T": size}) for size in (0, 1, 2, 7, 16)]
    shapes = [dims for dims in shapes if min(dims.values()) >= 0 and workload.is_consistent(dims)]
    assert built_problems(task, kernel, shapes) == []


PIXELS = {
    "lines that share their padding": conv(b="T", c=5, h=7, w=7, o=9, r=3, s=3, pad=1),
    "dilated": conv(b="T", c=3, h=14, w=14, o=5, r=3, s=3, pad=2, dilation=2),
    "lines of whole vectors": conv(b="T", c=3, h=6, w=32, o=6, r=3, s=3, pad=1),
    "no padding": conv(b="T", c=3, h=11, w=23, o=6, r=3, s=2),
    "windows two elements apart": conv(b="T", c=3, h=14, w=33, o=6, r=3, s=3, pad=1, stride=2),
    "windows three elements apart": conv(b="T", c=2, h=19, w=16, o=5, r=5, s=4, pad=2, stride=3),
    "dilated and apart": conv(b="T", c=2, h=17, w=15, o=4, r=3, s=3, pad=2, stride=2, dilation=2),
    "lines known at the call": conv(b=2, c=3, h="T", w=21, o=6, r=3, s=3, pad=1),
    "lines known at the call, apart": conv(b=2, c=3, h="T", w=21, o=6, r=3, s=3, pad=1, stride=2),
    "lines in two dims": workload_from_json({
        "op": "conv3d", "args": {"b": "T", "c": 3, "d": 4, "h": 8, "w": 9, "o": 5, "t": 3, "r": 3, "s": 3, "pad": 1},
    }),
    "one line an image": workload_from_json({
        "op": "conv1d", "args": {"b": "T", "c": 19, "w": 19, "o": 6, "s": 3, "pad": 1},
    }),
    "short floats": workload_from_json({
        "op": "conv2d", "dtype": "float16", "epilogue": ["bias", "relu"],
        "args": {"b": "T", "c": 4, "h": 9, "w": 14, "o": 6, "r": 3, "s": 3, "pad": 1},
    }),
    "values other than zero outside": workload_from_json({
        "program": "z[b, o, p, q] = sum(r, s, c) x[b, c, p + r - 2, q + s - 1] * w[o, r, s, c]",
        "padded": {"x": 0.5}, "constant": ["w"], "shapes": {"x": ["T", 3, 8, 18]},
        "extents": {"b": "T", "o": 5, "p": 9, "q": 19, "r": 3, "s": 2, "c": 3},
    }),
}  # fmt: skip


def in_copy(task: SearchTask, join: int, seed: int, of: int = 4) -> MicroKernel | None:
    """The shortest of some random kernels that read panels in a copy."""
    space, rng = RULE.space(task), np.random.default_rng(seed)
    some = (space.sample(rng) for _ in range(400))
    found = [*islice((kernel for kernel in some if (kernel["pack"], kernel["join"]) == (IN_COPY, join)), of)]
    return shortest(found) if found else None


@pytest.mark.parametrize(("name", "threads"), diagonal(PIXELS, [1, 2], every=9))
def test_panels_read_in_a_copy_of_the_image_are_right(name: str, threads: int) -> None:
    workload = PIXELS[name]
    task = task_of(workload, threads)
    kernels = [kernel for join in (0, 1) if (kernel := in_copy(task, join, threads)) is not None]
    shapes = [workload.dims({"T": size}) for size in (0, 1, 2, 7, 16)]
    shapes = [dims for dims in shapes if min(dims.values()) >= 0 and workload.is_consistent(dims)]
    assert kernels
    assert [problem for kernel in kernels for problem in built_problems(task, kernel, shapes)] == []


GROUPS = {
    "some channels each": conv(b="T", c=12, h=9, w=11, o=21, r=3, s=3, pad=1, groups=3),
    "one channel of the image each": conv(b="T", c=4, h=7, w=18, o=8, r=3, s=3, pad=1, groups=4),
    "channels of the output that lie apart": workload_from_json({
        "program": "z[b, o, p, q] = sum(r, s, c) x[b, 5*(o//3) + c, p + r - 1, q + s - 1] * w[o, r, s, c]",
        "padded": {"x": 0.0}, "constant": ["w"], "shapes": {"x": ["T", 17, 8, 18]},
        "extents": {"b": "T", "o": 9, "p": 8, "q": 18, "r": 3, "s": 3, "c": 5},
    }),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_panels_of_channels_of_a_group_are_read_in_a_copy(name: str, threads: int) -> None:
    task = task_of(GROUPS[name], threads)
    kernels = [kernel for join in (0, 1) if (kernel := in_copy(task, join, threads)) is not None]
    shapes = [GROUPS[name].dims({"T": size}) for size in (0, 1, 3)]
    assert len(kernels) == 2
    assert [problem for kernel in kernels for problem in built_problems(task, kernel, shapes)] == []


def test_channels_that_may_be_outside_the_image_are_not_read_in_a_copy() -> None:
    workload = workload_from_json({
        "program": "z[b, o, p, q] = sum(r, s, c) x[b, 5*(o//3) + c, p + r - 1, q + s - 1] * w[o, r, s, c]",
        "padded": {"x": 0.0}, "constant": ["w"], "shapes": {"x": ["T", 13, 8, 18]},
        "extents": {"b": "T", "o": 9, "p": 8, "q": 18, "r": 3, "s": 3, "c": 5},
    })  # fmt: skip
    assert in_copy(task_of(workload), 0, 0) is None


def test_the_output_of_one_image_is_prefetched_beside_a_copy() -> None:
    task = task_of(conv(b=1, c=5, h=14, w=14, o=9, r=3, s=3, pad=1))
    kernel = in_copy(task, 0, 0)
    assert kernel is not None
    kernel = RULE.space(task).kernel({**dict(kernel.values), "fetch": 1})
    assert built_problems(task, kernel, [task.workload.dims({})]) == []


SIZES = {"h": (5, 12), "w": (5, 40)}


@st.composite
def images(draw: st.DrawFn) -> Workload:
    """Convolutions with channels outside, of any stride, padding and dilation, of all channels or in groups."""
    sizes = {name: draw(st.integers(low, high)) for name, (low, high) in SIZES.items()}
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    args = {"b": "T", "c": groups * draw(st.integers(1, 20)), "o": groups * draw(st.integers(1, 9)), **sizes}
    args |= {"groups": groups} if groups > 1 else {}
    args |= {"stride": draw(st.integers(1, 3))}
    dilation, pad = draw(st.integers(1, 2)), draw(st.integers(0, 3))
    args |= {"r": draw(st.integers(1, 3)), "s": draw(st.integers(2, 3)), "pad": pad, "dilation": dilation}
    return workload_from_json({"op": "conv2d", "args": args, "epilogue": draw(st.sampled_from([[], ["bias", "gelu"]]))})


@pytest.mark.soak
@pytest.mark.parametrize("share", range(2))
@settings(max_examples=3, suppress_health_check=list(HealthCheck), deadline=None)
@given(workload=images(), seed=st.integers(0, 2**32 - 1), threads=st.sampled_from([1, 2]), join=st.sampled_from([0, 1]))
def test_panels_of_random_images_are_right(share: int, workload: Workload, seed: int, threads: int, join: int) -> None:
    assume(not isinstance(forms(workload), NoMatch))
    task = task_of(workload, threads)
    kernel = in_copy(task, join, seed, of=1)
    shapes = [workload.dims({"T": size}) for size in (1, 3, 16)]
    assert kernel is None or built_problems(task, kernel, shapes) == [], (workload.program, kernel)


@pytest.mark.parametrize("join", [0, 1])
def test_steps_that_remain_of_one_channel_are_right(join: int) -> None:
    """One step a point of the kernel, four steps at once: what remains of a turn is all of it."""
    workload = conv(b="T", c=1, h=5, w=5, o=1, r=1, s=2)
    task = task_of(workload)
    kernel = in_copy(task, join, 0)
    assert kernel is not None
    shapes = [workload.dims({"T": size}) for size in (1, 3, 16)]
    kernel = RULE.space(task).kernel(dict(kernel.values) | {"ku": 4})
    assert built_problems(task, kernel, shapes) == []


@pytest.mark.parametrize(("join", "channels"), [(0, 128), (1, 128), (0, 256), (1, 256)])
def test_chunks_that_are_runs_of_one_element_of_a_window_are_compiled(join: int, channels: int) -> None:
    """TVM proves then that a chunk is one run."""
    own = task_of(conv(b="T", c=channels, h=5, w=6, o=16, r=3, s=3, pad=1))
    space = RULE.space(own)
    values = space.values_of(RULE.default_kernel(own)) | {"pack": IN_COPY, "join": join, "kc": 128, "mr": 2, "nv": 1}
    kernel = space.kernel(values | {"edge": 0, "tail": 0, "near": 0, "ahead": 0, "ku": 1})
    assert built_problems(own, kernel, [own.workload.dims({"T": 2})]) == []


def test_panels_of_many_groups_are_right() -> None:
    """More lines than a copy has room for, of which two groups of panels share some."""
    workload = conv(b="T", c=96, h=60, w=61, o=3, r=3, s=3, pad=1)
    task = task_of(workload)
    found = [in_copy(task, join, 3) for join in (0, 1)]
    kernels = [kernel for kernel in found if kernel is not None]
    assert len(kernels) == 2
    shapes = [workload.dims({"T": size}) for size in (1, 2)]
    assert [problem for kernel in kernels for problem in built_problems(task, kernel, shapes)] == []


def test_panels_are_read_in_a_copy_by_vectors_of_half_the_size() -> None:
    workload = PIXELS["dilated"]
    target = runnable("x86-64-v3")
    task = SearchTask(workload, shape_vars=[ShapeVar("T", range(1, 17))], target=target, threads=1)
    kernel = in_copy(task, 0, 0)
    assert kernel is not None
    assert built_problems(task, kernel, [workload.dims({"T": size}) for size in (1, 3)]) == []


def test_vectors_are_not_picked_where_there_is_no_instruction() -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})
    for name, choices in (("dilated", (1,)), ("lines of whole vectors", (1, IN_COPY))):
        task = SearchTask(PIXELS[name], shape_vars=[ShapeVar("T", range(1, 17))], target=target, threads=1)
        assert next(axis.choices for axis in RULE.space(task).axes if axis.name == "pack") == choices


FEW = {
    "a pixel is left": conv(b="T", c=20, h=7, w=7, o=19, r=1, s=1),
    "some pixels of windows": conv(b="T", c=33, h=14, w=14, o=9, r=3, s=3, pad=1),
    "a pixel of strides": conv(b=2, c=5, h=14, w="T", o=30, r=3, s=3, stride=2, pad=1),
}


def few_along_k(task: SearchTask, seed: int, **values: int) -> MicroKernel:
    """A random kernel that computes the last columns along k."""
    space, rng = RULE.space(task), np.random.default_rng(seed)
    drawn = (space.legal({**dict(space.sample(rng).values), **values, "edge": FEW_ALONG_K}) for _ in range(5000))
    return next(kernel for kernel in drawn if kernel is not None)


@pytest.mark.parametrize(
    ("name", "pack", "threads"),
    [("a pixel is left", 1, 2), ("some pixels of windows", 1, 1), ("some pixels of windows", IN_COPY, 1)],
)
def test_few_last_columns_are_right_along_k(name: str, pack: int, threads: int) -> None:
    task = task_of(FEW[name], threads)
    kernel = few_along_k(task, threads, pack=pack, join=0)
    shapes = [task.workload.dims({"T": size}) for size in (1, 3)]
    assert built_problems(task, kernel, shapes) == []


def test_few_last_columns_take_their_own_time() -> None:
    def seconds(workload: Workload, **values: int) -> float:
        task = task_of(workload)
        few = few_along_k(task, 0, pack=1, join=0, kc=0, mr=8, nv=3)
        kernel = RULE.space(task).legal({**dict(few.values), **values})
        assert kernel is not None
        return float(RULE.estimate_s(task, [kernel], extents_of(workload, [{"T": 1}]))[0, 0])

    pixel, pixels = (conv(b="T", c=512, h=size, w=size, o=512, r=1, s=1) for size in (7, 14))
    assert seconds(pixel, edge=0) > 1.2 * seconds(pixel)
    assert 1.1 * seconds(pixels) > seconds(pixels, edge=0) > seconds(pixels)


def test_columns_whose_number_is_not_known_are_never_few() -> None:
    task = task_of(FEW["a pixel of strides"])
    edges = next(axis for axis in RULE.space(task).axes if axis.name == "edge")
    assert FEW_ALONG_K not in edges.choices
