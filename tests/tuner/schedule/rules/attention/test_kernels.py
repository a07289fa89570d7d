"""The code of attention kernels on this machine, at every kind of shape, beside the float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import Call, loaded, problems
from tests.shares import chosen, every
from tests.tuner.schedule.rules.attention.programs import (
    GUARDED,
    GUARDED_FIRST,
    NARROW,
    attention,
    chain,
    kernel_of,
    one_product,
    ragged,
    task_of,
)
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.verify import Case
from tuner.program.job.task import SearchTask
from tuner.program.reference import expected
from tuner.program.target import Target, native
from tuner.schedule.space import MicroKernel

SSE = Target.from_json({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2})
TARGETS = {"native": native(), "avx2": NARROW, "sse": SSE}
Built = tuple[SearchTask, MicroKernel, Call]

ONE_PANEL = {"mr": 3, "nv": 1, "ev": 1, "rows": 1, "cols": 1}
"""As many blocks as there can be."""
KERNELS: Mapping[str, Mapping[str, int]] = {
    "safe": {},
    "online": ONE_PANEL,
    "online-padded": {**ONE_PANEL, "tail": 0, "ku": 2, "rows": 2},
    "whole": {"cols": 0, "mr": 4, "nv": 2, "ev": 1, "rows": 2},
    "whole-padded": {"cols": 0, "mr": 5, "nv": 2, "tail": 0, "ku": 4, "rows": 1},
    "in-place": {"pack": 0, "mr": 2, "cols": 2},
    "in-place-whole": {"pack": 0, "mr": 1, "cols": 0, "rows": 4},
}
PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    "d5": attention(d=5),
    "d40-causal": attention(d=40, causal=True),
    "d80": attention(b=1, d=80, scale=0.5),
    "window": chain("where((j <= i + 2) & (j > i - 9), a[b, i, j], -inf)", extents={"j": "T", "e": 19}),
    "window-ahead": chain("where((2*i - 5 <= j) & (i + extent(j) > 3 + j), a[b, i, j], -inf)"),
    "segments": chain(
        "where(seg[i] == seg[j], a[b, i, j] * 0.3, -inf)", extents={"i": "T", "j": "T"}, dtype={"seg": "int32"},
        domain={"seg": [0, 3]},
    ),
    "masked": chain("a[b, i, j] * 0.5 + mask[i, j]", GUARDED),
    "masked-causal": chain(
        "where(j <= i + (extent(j) - extent(i)), where(mask[b, j], a[b, i, j], -inf), -inf)", GUARDED,
        dtype={"mask": "bool"},
    ),
    "masked-first": chain("where(mask[b, i, j], a[b, i, j], -inf)", GUARDED_FIRST, dtype={"mask": "bool"}),
    "ragged": ragged(d=19, kv_heads=1),
    "ragged-window": ragged(causal=True, window=9, softcap=2.0),
    "window-of-data": chain("where((j <= i) & (j > i - w[0]), a[b, i, j], -inf)", GUARDED, dtype={"w": "int32"}),
    "ranges": chain(
        "where((j >= lo[b, i]) & (j < hi[i]) & (j != 3), a[b, i, j], -inf)", dtype={"lo": "int64", "hi": "int8"}
    ),
    "sizes": chain("a[b, i, j] * 0.25 + bias[j]", extents={"b": 1, "d": "D", "e": "E"}),
    "one-product": one_product(),
    "one-product-bf16": one_product(dtype="bfloat16"),
}  # fmt: skip


CASES = (
    ("d5", "in-place", "native", 2),
    ("d5", "online-padded", "avx2", 1),
    ("d40-causal", "online", "native", 1),
    ("d40-causal", "whole", "avx2", 1),
    ("d40-causal", "in-place-whole", "native", 2),
    ("d40-causal", "online", "sse", 1),
    ("d80", "safe", "native", 1),
    ("d80", "whole-padded", "native", 2),
    ("window", "whole-padded", "native", 1),
    ("window-ahead", "in-place", "native", 1),
    ("segments", "online-padded", "native", 1),
    ("segments", "safe", "avx2", 1),
    ("masked", "online", "native", 1),
    ("masked", "whole-padded", "avx2", 2),
    ("masked-causal", "online-padded", "avx2", 1),
    ("masked-causal", "whole", "native", 1),
    ("masked-first", "safe", "native", 2),
    ("masked-first", "in-place-whole", "sse", 1),
    ("ragged", "online", "native", 1),
    ("ragged", "safe", "native", 2),
    ("ragged", "whole-padded", "avx2", 1),
    ("ragged", "in-place-whole", "native", 1),
    ("ragged-window", "online-padded", "native", 2),
    ("ragged-window", "whole", "native", 1),
    ("window-of-data", "in-place", "avx2", 1),
    ("window-of-data", "online", "native", 1),
    ("ranges", "online", "avx2", 2),
    ("ranges", "whole", "native", 1),
    ("sizes", "online", "native", 2),
    ("sizes", "in-place-whole", "avx2", 1),
    ("one-product", "online-padded", "native", 2),
    ("one-product", "whole", "avx2", 1),
    ("one-product", "in-place", "sse", 1),
    ("one-product-bf16", "in-place-whole", "native", 1),
    ("one-product-bf16", "online", "native", 2),
)
"""(program, kernel, target, threads)"""
QUICK = (
    ("d5", "online-padded", "avx2", 1),
    ("d40-causal", "online", "native", 1),
    ("masked", "online", "native", 1),
    ("ragged", "online", "native", 1),
    ("window-of-data", "in-place", "avx2", 1),
    ("sizes", "online", "native", 2),
    ("one-product", "in-place", "sse", 1),
)
SLOW_CASES = (("window", "online", "avx2", 2), ("window-ahead", "whole", "native", 2))
"""Of much code, for `make soak`."""


@pytest.mark.parametrize(
    ("args", "values", "threads"),
    [
        ({"i": 13, "j": 32, "d": 16}, {"mr": 2, "nv": 1, "rows": 8, "pack": 0}, 1),
        ({"i": 13, "j": 32, "d": 16}, {"mr": 14, "nv": 1, "pack": 0}, 1),
        ({"i": 5, "j": 100, "d": 24}, {"mr": 2, "nv": 1, "ev": 2, "rows": 4}, 2),
    ],
)
def test_blocks_of_fixed_sizes_are_built(args: dict[str, int], values: dict[str, int], threads: int) -> None:
    """Sizes of which TVM's simplifier knows that a block, or a tile, is the only one, or that there is none."""
    task = task_of(attention(causal=True, **args), native(), threads)
    kernel = kernel_of(task, **{"ev": 1, "rows": 2, "cols": 1, "ku": 1, "tail": 0, "pack": 1, **values})
    assert problems(task, kernel, loaded(compile_candidate(task, kernel).binary), [{}]) == []


@cache
def built(program: str, kernel: str, target: str, threads: int) -> Built:
    task = task_of(dict(PROGRAMS[program]), TARGETS[target], threads)
    chosen = kernel_of(task, **KERNELS[kernel])
    return task, chosen, loaded(compile_candidate(task, chosen).binary)


@pytest.mark.parametrize("case", chosen(QUICK, CASES + SLOW_CASES), ids=lambda case: "-".join(map(str, case)))
@settings(max_examples=8)
@given(data=st.data())
def test_every_shape_is_right(case: tuple[str, str, str, int], data: st.DataObject) -> None:
    task, chosen, call = built(*case)
    sizes = st.one_of(st.integers(0, 3), st.integers(0, 80))
    dims = {symbol: data.draw(sizes) for symbol in task.workload.symbols}
    assert problems(task, chosen, call, [dims]) == []


# -- ragged batches ---------------------------------------------------------------------------------------------------
RAGGED = (("ragged", "online", "native", 1), ("ragged-window", "whole", "native", 1))


@pytest.mark.parametrize("case", every(2, RAGGED), ids=lambda case: "-".join(map(str, case)))
@settings(max_examples=25)
@given(rows=st.integers(0, 60), keys=st.integers(0, 60), data=st.data())
def test_offsets_of_any_values_are_right_and_read_nothing_outside(
    case: tuple[str, str, str, int], rows: int, keys: int, data: st.DataObject
) -> None:
    """Those that fall, repeat, are negative or past the end too."""
    of = built(*case)
    count = data.draw(st.integers(1, 6))
    offsets = st.lists(st.integers(-3, 70) | st.sampled_from([-(2**31), 2**31 - 1]), min_size=count, max_size=count)
    drawn = [np.array(data.draw(offsets), np.int32) for _ in range(2)]
    workload = of[0].workload
    dims = workload.dims({"T": rows, "S": keys, "B": count - 1})

    def change(inputs: list[Any]) -> None:
        inputs[3][...], inputs[4][...] = drawn

    assert _with_inputs(of, dims, change) is None


@pytest.mark.parametrize("case", every(2, [RAGGED[0], ("ragged", "whole-padded", "avx2", 1)]))
def test_a_sequence_takes_no_part_in_another(case: tuple[str, str, str, int]) -> None:
    """Whatever stands there, but for rows that share a tile with it."""
    task, kernel, call = built(*case)
    dims = task.workload.dims({"T": 96, "S": 96, "B": 3})
    q, k, v, rows, keys = (array.copy() for array in random_inputs(task.workload, dims))
    rows[...] = keys[...] = [0, 32, 64, 96]
    clean, spoilt = (np.zeros((96, 2, 19), np.float32) for _ in range(2))
    call([q, k, v, rows, keys, clean])
    k[32:64], v[32:64] = np.nan, np.nan
    call([q, k, v, rows, keys, spoilt])
    near = dict(kernel.values)["mr"]
    for part in (slice(0, 32 - near), slice(64 + near, 96)):
        np.testing.assert_array_equal(spoilt[part], clean[part])
    assert np.isnan(spoilt[32:64]).all()


def test_rows_of_no_sequence_are_zero() -> None:
    task, _, call = built(*RAGGED[0])
    dims = task.workload.dims({"T": 50, "S": 40, "B": 2})
    q, k, v, rows, keys = (array.copy() for array in random_inputs(task.workload, dims))
    rows[...], keys[...] = [5, 20, 30], [0, 0, 40]
    q[30:], q[:5] = np.nan, np.nan
    out = np.full((50, 2, 19), 9, np.float32)
    call([q, k, v, rows, keys, out])
    assert (out[:20] == 0).all()
    assert (out[30:] == 0).all()
    assert (out[20:30] != 0).all()


ONLINE, WHOLE = ("d40-causal", "online", "native", 1), ("d40-causal", "whole", "avx2", 1)


def _with_inputs(of: Built, dims: Mapping[str, int], change: Callable[[list[Any]], None]) -> str | None:
    """What is wrong with inputs that a test has changed."""
    task, _, call = of
    inputs = [array.copy() for array in random_inputs(task.workload, dims)]
    change(inputs)
    wanted = expected(task.workload, tuple(inputs), dims)
    return Case(dims, tuple(inputs), task.workload.outputs, wanted).check(inputs, call)


@pytest.mark.parametrize("kind", [ONLINE, WHOLE])
@pytest.mark.parametrize("factor", [30.0, 3e3, 1e18])
def test_large_scores_neither_overflow_nor_vanish(kind: tuple[str, str, str, int], factor: float) -> None:
    of = built(*kind)
    dims = dict(zip(of[0].workload.symbols, (19, 61), strict=True))

    def enlarge(inputs: list[Any]) -> None:
        inputs[0] *= factor

    assert _with_inputs(of, dims, enlarge) is None


@pytest.mark.parametrize("kind", [ONLINE, WHOLE])
def test_falling_scores_keep_the_maximum_of_the_first_block(kind: tuple[str, str, str, int]) -> None:
    """And rising ones scale what was summed before at every block."""
    of = built(*kind)
    dims = dict(zip(of[0].workload.symbols, (40, 90), strict=True))

    def ramp(sign: float) -> Callable[[list[Any]], None]:
        def change(inputs: list[Any]) -> None:
            inputs[0][...] = 1.0
            inputs[1][...] = sign * np.arange(90, dtype=np.float32)[:, None]

        return change

    assert _with_inputs(of, dims, ramp(1.0)) is None
    assert _with_inputs(of, dims, ramp(-1.0)) is None


@pytest.mark.parametrize("kind", [ONLINE, WHOLE])
def test_rows_that_see_nothing_are_nan(kind: tuple[str, str, str, int]) -> None:
    """Causal with more rows than columns: the first ones have a softmax over nothing."""
    task, _, call = built(*kind)
    dims = dict(zip(task.workload.symbols, (23, 9), strict=True))
    inputs = random_inputs(task.workload, dims)
    out = np.zeros((2, 1, 23, 40), np.float32)
    call([*inputs, out])
    assert np.isnan(out[:, :, :14]).all()
    assert np.isfinite(out[:, :, 14:]).all()
    assert _with_inputs(built(*kind), dims, lambda inputs: None) is None


@pytest.mark.parametrize("kind", [ONLINE, WHOLE])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_rows(kind: tuple[str, str, str, int], bad: float) -> None:
    of = built(*kind)
    dims = dict(zip(of[0].workload.symbols, (21, 50), strict=True))

    def spoil(inputs: list[Any]) -> None:
        inputs[0][0, 0, 3, 5] = bad
        inputs[1][1, 0, 30, 7] = bad

    assert _with_inputs(of, dims, spoil) is None


def test_hidden_columns_are_not_read() -> None:
    """What lies behind the diagonal of a causal mask takes no part, whatever stands there."""
    task, _, call = built(*ONLINE)
    dims = dict(zip(task.workload.symbols, (64, 64), strict=True))
    q, k, v = (array.copy() for array in random_inputs(task.workload, dims))
    clean, spoilt = (np.zeros((2, 1, 64, 40), np.float32) for _ in range(2))
    call([q, k, v, clean])
    v[:, :, 48:] = np.nan
    k[:, :, 48:] = np.nan
    call([q, k, v, spoilt])
    np.testing.assert_array_equal(spoilt[:, :, :45], clean[:, :, :45])
    assert np.isnan(spoilt[:, :, 48:]).all()


@pytest.mark.parametrize("kernel", ["online", "whole-padded"])
def test_rows_that_a_mask_hides_whole_are_zero(kernel: str) -> None:
    """And nothing else is: neither rows of NaN, nor those of which the mask leaves a single column."""
    of = built("masked", kernel, "native", 1)
    dims = dict(zip(of[0].workload.symbols, (9, 40), strict=True))

    def hide(inputs: list[Any]) -> None:
        names = [tensor.name for tensor in of[0].workload.inputs]
        mask, q = inputs[names.index("mask")], inputs[names.index("q")]
        mask[...] = -np.inf
        mask[3, 7], mask[4, 39], mask[5, 2] = 0.0, -3.0, np.nan
        q[:, 6] = np.nan

    task, _, call = of
    inputs = [array.copy() for array in random_inputs(task.workload, dims)]
    hide(inputs)
    out = np.zeros((2, 9, 8), np.float32)
    call([*inputs, out])
    assert (out[:, [0, 1, 2, 7, 8]] == 0).all()
    assert np.isfinite(out[:, [3, 4]]).all()
    assert (out[:, [3, 4]] != 0).all()
    assert np.isnan(out[:, [5, 6]]).all()
    assert _with_inputs(of, dims, hide) is None
