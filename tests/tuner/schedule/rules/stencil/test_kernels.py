"""Kernels of windows against the reference: random shapes, strides and paddings, special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, computes_with_denormals, loaded
from tests.shares import shares
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.verify import difference
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.reference import expected
from tuner.program.target import Target, native
from tuner.schedule import default_kernel, estimate_s, extents_of, rules_of, space_of
from tuner.schedule.rules.stencil import Stencil

AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def _task(data: dict[str, Any], threads: int, target: Target | None = None) -> SearchTask:
    workload = workload_from_json(data)
    variables = tuple(ShapeVar(name, range(1, 65)) for name in sorted(workload.variables))
    task = SearchTask(workload, shape_vars=variables, target=target or native(), threads=threads)
    assert rules_of(task)[0].name == "windows"
    return task


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """A window over up to two axes, channels before or behind them, with a weight or without."""
    rank = draw(st.integers(1, 2))
    axes, windows = ("p", "q")[:rank], ("r", "s")[:rank]
    extents: dict[str, int] = {"b": draw(st.integers(1, 3)), "c": draw(st.integers(4, 40))}
    indices, shape = [], []
    for axis, window in zip(axes, windows, strict=True):
        extents[axis], extents[window] = draw(st.integers(4, 40)), draw(st.integers(2, 4))
        stride, dilation, pad = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(0, 5))
        indices.append(f"{stride}*{axis} + {dilation}*{window} - {pad}")
        whole = stride * (extents[axis] - 1) + dilation * (extents[window] - 1) + 1
        shape.append(max(whole - pad - draw(st.integers(0, 3)), 1))
    is_last, reducer = draw(st.booleans()), draw(st.sampled_from(["sum", "max"]))
    read = ", ".join(["b", *indices, "c"] if is_last else ["b", "c", *indices])
    out = ", ".join(["b", *axes, "c"] if is_last else ["b", "c", *axes])
    # A weight that does not lie along the vectors is packed.
    weight = ", ".join([*windows, "c"] if is_last and draw(st.booleans()) else ["c", *windows])
    channels = [*shape, extents["c"]] if is_last else [extents["c"], *shape]
    body = f"x[{read}]" if reducer == "max" else f"x[{read}] * w[{weight}]"
    padding = draw(st.sampled_from([0.0, 1.5, float("-inf") if reducer == "max" else -2.0]))
    return {
        "program": f"t[{out}] = {reducer}({', '.join(windows)}) {body}\nout[{out}] = t[{out}] * 2 + y[c]",
        "extents": extents, "shapes": {"x": [extents["b"], *channels]}, "padded": {"x": padding},
        "constant": ["w"] if reducer == "sum" else [],
    }  # fmt: skip


@shares(4)
@settings(max_examples=5)
@given(data=programs(), seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 2), is_narrow=st.booleans())
def test_random_windows(share: int, data: dict[str, Any], seed: int, threads: int, is_narrow: bool) -> None:
    task = _task(data, threads, AVX2 if is_narrow else None)
    kernel = space_of(task).sample(np.random.default_rng(seed))
    assert built_problems(task, kernel, [{}]) == []


@st.composite
def images(draw: st.DrawFn) -> dict[str, Any]:
    """Windows over small images of many channels: paddings of any size on each side, strides, gaps, and a reduction."""
    extents: dict[str, int | str] = {"b": "B", "c": draw(st.integers(1, 9))}
    indices, shape = [], []
    for axis, window, most in (("p", "r", 9), ("q", "s", 8)):
        size, taps = draw(st.integers(1, most)), draw(st.integers(1, 5))
        stride, dilation, pad = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 4))
        extents[axis], extents[window] = size, taps
        indices.append(f"{stride}*{axis} + {dilation}*{window} - {pad}")
        shape.append(max(stride * (size - 1) + dilation * (taps - 1) + 1 - pad - draw(st.integers(-1, 3)), 1))
    reducer, out = draw(st.sampled_from(["sum", "max"])), "b, c, p, q"
    read = f"x[b, c, {', '.join(indices)}]"
    body = read if reducer == "max" else f"{read} * w[c, r, s]"
    dtypes = draw(st.sampled_from([{}, {"x": "bfloat16", "out": "bfloat16"}, {"x": "float64", "w": "float64"}]))
    return {
        "program": f"t[{out}] = {reducer}(r, s) {body}\nout[{out}] = t[{out}] * 2 + y[c]",
        "extents": extents, "shapes": {"x": ["B", extents["c"], *shape]},
        "padded": {"x": draw(st.sampled_from([0.0, 1.5, float("-inf") if reducer == "max" else -2.0]))},
        "dtype": {tensor: dtype for tensor, dtype in dtypes.items() if tensor != "w" or reducer == "sum"},
    }  # fmt: skip


@shares(4)
@settings(max_examples=8)
@given(data=images(), threads=st.integers(1, 2))
def test_rows_of_narrow_images_share_vectors(share: int, data: dict[str, Any], threads: int) -> None:
    workload = workload_from_json(data)
    task = SearchTask(workload, shape_vars=(ShapeVar("B", range(1, 9)),), target=native(), threads=threads)
    assume(rules_of(task)[0].name == "windows")
    kernel = default_kernel(task)
    assume(kernel.get("merged") > 1)
    assert built_problems(task, kernel, [workload.dims({"B": batch}) for batch in (0, 1, 3)]) == []


@pytest.mark.parametrize(
    ("sizes", "is_narrow"),
    [
        ({"h": 7, "w": 7}, True),
        # There are more vectors than registers.
        ({"h": 99, "w": 5}, False),
        ({"h": 7, "w": 9}, False),
        ({"h": "H", "w": 7}, False),
    ],
)
def test_which_images_are_narrow(sizes: dict[str, Any], is_narrow: bool) -> None:
    args = {"b": 2, "c": 8, "r": 3, "s": 3, "pad": 1, **sizes}
    target = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
    task = _task({"op": "depthwise_conv2d", "args": args}, 1, target)
    (merged,) = [axis for axis in space_of(task).spaces[0].axes if axis.name == "merged"]
    assert (2 in merged.choices) is is_narrow


@st.composite
def rows_of_channels(draw: st.DrawFn) -> dict[str, Any]:
    """Windows over one axis or two of images whose channels lie last, which may be outside the image on any side."""
    rank = draw(st.integers(1, 2))
    axes, windows = ("p", "q")[:rank], ("r", "s")[:rank]
    extents: dict[str, int | str] = {"b": "B", "c": draw(st.sampled_from([8, 16, 19, 32, 50]))}
    indices, shape = [], []
    for axis, window in zip(axes, windows, strict=True):
        size, taps, stride, dilation = (draw(st.integers(1, most)) for most in (20, 5, 3, 2))
        pad = draw(st.integers(0, 4))
        extents[axis], extents[window] = size, taps
        indices.append(f"{stride}*{axis} + {dilation}*{window} - {pad}")
        shape.append(max(stride * (size - 1) + dilation * (taps - 1) + 1 - pad - draw(st.integers(-1, 3)), 1))
    reducer, out = draw(st.sampled_from(["sum", "max"])), ", ".join(["b", *axes, "c"])
    read = f"x[b, {', '.join(indices)}, c]"
    body = read if reducer == "max" else f"{read} * w[c, {', '.join(windows)}]"
    dtypes = draw(st.sampled_from([{}, {"x": "bfloat16", "out": "bfloat16"}, {"x": "float64", "w": "float64"}]))
    return {
        "program": f"t[{out}] = {reducer}({', '.join(windows)}) {body}\nout[{out}] = t[{out}] * 2 + y[c]",
        "extents": extents, "shapes": {"x": ["B", *shape, extents["c"]]},
        "padded": {"x": 0.0 if reducer == "sum" else float("-inf")},
        "constant": ["w"] if reducer == "sum" else [],
        "dtype": {tensor: dtype for tensor, dtype in dtypes.items() if tensor != "w" or reducer == "sum"},
    }  # fmt: skip


@shares(4)
@settings(max_examples=8, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=rows_of_channels(), seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 2), is_narrow=st.booleans())
def test_windows_are_read_where_they_lie(
    share: int, data: dict[str, Any], seed: int, threads: int, is_narrow: bool
) -> None:
    workload = workload_from_json(data)
    target = AVX2 if is_narrow else native()
    task = SearchTask(workload, shape_vars=(ShapeVar("B", range(1, 9)),), target=target, threads=threads)
    assume(rules_of(task)[0].name == "windows")
    space, random = Stencil().space(task), np.random.default_rng(seed)
    drawn = (space.legal(space.values_of(space.sample(random)) | {"direct": 2, "merged": 1}) for _ in range(200))
    kernel = next(kernel for kernel in drawn if kernel is not None)
    assert built_problems(task, kernel, [workload.dims({"B": batch}) for batch in (0, 1, 3)]) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_lines_of_any_length_are_read_where_they_lie_without_padding(threads: int) -> None:
    text = "out[b, p, c] = sum(r) x[b, 2*p + r, c] * w[c, r]"
    data = {"program": text, "extents": {"b": "B", "p": "T", "c": 21, "r": 4}, "constant": ["w"]}
    task = _task(data, threads)
    kernel = Stencil().space(task).kernel({"chunk": 2, "block": 4, "rows": 3, "vectors": 1, "direct": 2, "merged": 1})
    shapes = [task.workload.dims({"B": batch, "T": size}) for batch, size in ((0, 3), (1, 0), (2, 1), (3, 13))]
    assert built_problems(task, kernel, shapes) == []


def test_theory_reads_rows_of_channels_where_they_lie() -> None:
    image = {"b": "T", "c": 96, "h": 28, "w": 28}
    args = {**image, "o": 96, "groups": 96, "r": 3, "s": 3, "pad": 1, "layout": "nhwc"}
    target = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
    task = _task({"op": "conv2d", "args": args}, 1, target)
    random = np.random.default_rng(0)
    kernels = [space_of(task).sample(random) for _ in range(64)]
    estimates = estimate_s(task, kernels, extents_of(task.workload, [{"T": 1}]))[:, 0]
    assert kernels[int(np.argmin(estimates))].get("direct") == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_dynamic_sizes_from_nothing_on(layout: str, threads: int) -> None:
    out, x = ("b, c, p, q", ["b", "c", "T", "S"]) if layout == "nchw" else ("b, p, q, c", ["b", "T", "S", "c"])
    read = out.replace("p", "p + r - 1").replace("q", "q + s - 1")
    data = {
        "program": f"out[{out}] = max(r, s) x[{read}]", "shapes": {"x": x}, "padded": {"x": float("-inf")},
        "extents": {"b": "B", "c": "C", "p": "T", "q": "S", "r": 3, "s": 3},
    }  # fmt: skip
    task = _task(data, threads)
    names = task.workload.symbols
    shapes = [dict(zip(names, sizes, strict=True)) for sizes in SIZES]
    assert built_problems(task, default_kernel(task), shapes) == []


def test_lanes_past_the_copy_are_not_computed_from_what_memory_held() -> None:
    # The last of two vectors of a row reads two elements past the 32 that its 30 are copied with.
    task = _task({"op": "depthwise_conv2d", "args": {"b": 1, "c": "T", "h": 6, "w": 30, "r": 3, "s": 3}}, 1)
    assert not computes_with_denormals(task, default_kernel(task), task.workload.dims({"T": 3}))


SIZES = [(0, 3, 4, 5), (2, 0, 4, 5), (1, 1, 1, 1), (1, 1, 0, 3), (1, 2, 3, 0), (2, 3, 17, 16), (1, 17, 2, 65)]


def test_nan_and_infinities_give_what_numpy_gives() -> None:
    args = {"b": 1, "c": "T", "h": 5, "w": 37, "r": 3, "s": 3, "pad": 1, "stride": 2}
    task = _task({"op": "max_pool2d", "args": args}, 1)
    x = np.random.default_rng(0).standard_normal((1, 3 * 37, 5, 37)).astype(np.float32)
    for column in range(37):
        x[0, 3 * column : 3 * column + 3, column % 5, column] = np.nan, np.inf, -np.inf
    dims = {task.workload.symbols[0]: x.shape[1]}
    out = np.zeros(task.workload.outputs[0].shape(dims), np.float32)
    loaded(compile_candidate(task, default_kernel(task)).binary)([x, out])
    (wanted,) = expected(task.workload, [x], dims)
    assert difference(out, wanted) is None
