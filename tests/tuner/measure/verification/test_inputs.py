"""Random operands: the same everywhere, and where a program is defined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tuner.measure.verification.inputs import (
    DIVISORS,
    FEW,
    POSITIVE,
    REALS,
    SHIFTS,
    Domain,
    domain_of,
    random_array,
    random_inputs,
)
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.arrays import NUMPY
from tuner.program.reference import compute


def domain(text: str, name: str, **fields: Any) -> Domain:
    workload = workload_from_json({"program": text, "extents": {"m": 4, "k": 4}, **fields})
    return domain_of(workload, name, {})


def test_values_are_the_same_everywhere_and_in_range() -> None:
    first, second = random_array("a", (50, 40)), random_array("a", (50, 40))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, random_array("b", (50, 40)))
    assert -1 <= first.min() < -0.9 < 0.9 < first.max() < 1


@pytest.mark.parametrize("dtype", sorted(NUMPY))
def test_values_have_the_dtype_and_are_not_all_the_same(dtype: str) -> None:
    values = random_array("a", (50,), dtype, Domain(-3, 3) if dtype != "uint8" else Domain(0, 255))
    assert values.dtype == NUMPY[dtype]
    assert len(set(values.tolist())) > 1


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("out[m] = sum(k) x[m, k] * y[k]", "x", REALS),
        ("out[m] = sum(k) log(x[m, k]) * y[k]", "x", POSITIVE),
        ("out[m] = sum(k) log(x[m, k]) * y[k]", "y", REALS),
        ("out[m] = sum(k) y[k] / x[m, k]", "x", POSITIVE),
        ("out[m] = sum(k) sqrt(y[k] + exp(x[m, k]))", "x", REALS),
        ("out[m] = sum(k) y[k] / (x[m, k] * x[m, k] + 1.0)", "x", REALS),
        ("out[m] = sum(k) y[k] / max(x[m, k], 0.1)", "x", REALS),
        ("out[m] = sum(k) y[k] / max(x[m, k], 0.1)", "y", REALS),
        ("t[m] = sum(k) x[m, k]\nout[m, k] = x[m, k] / t[m] + y[k]", "x", POSITIVE),
    ],
)
def test_floats_are_drawn_where_functions_are_defined(text: str, name: str, wanted: Domain) -> None:
    assert domain(text, name) == wanted


def test_a_domain_that_is_given_stands() -> None:
    assert domain("out[m] = sum(k) log(x[m, k])", "x", domain={"x": [2, 3]}) == Domain(2, 3)


@pytest.mark.parametrize(
    ("text", "dtype", "wanted"),
    [
        ("out[m] = sum(k) x[m, k]", "int32", FEW),
        ("out[m] = sum(k) x[m, k]", "int8", Domain(-128, 127)),
        ("out[m] = sum(k) x[m, k]", "uint8", Domain(0, 255)),
        ("out[m] = sum(k) (x[m, k] >> 4) & 15", "int32", Domain(-(2**31), 2**31 - 1)),
        ("out[m] = sum(k) 1 << x[m, k]", "int32", SHIFTS),
        ("out[m] = sum(k) 7 / x[m, k]", "int32", DIVISORS),
        ("out[m] = sum(k) where((x[m, k] == 3) & (x[m, k] < k), 1, 0)", "int32", FEW),
    ],
)
def test_integers_are_drawn_by_what_is_done_with_them(text: str, dtype: str, wanted: Domain) -> None:
    assert domain(text, "x", dtype={"x": dtype}) == wanted


@pytest.mark.parametrize("e", [3, 0])
def test_indices_reach_one_past_both_ends_of_the_dim(e: int) -> None:
    workload = make_workload("moe_dense", {"t": 300, "e": "E", "n": 2, "k": 2})
    _, _, expert = random_inputs(workload, dict.fromkeys(workload.symbols, e))
    assert set(expert.tolist()) == set(range(-1, e + 1))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("softmax", {"m": 5, "n": 9}), ("layer_norm", {"m": 5, "n": 9}), ("rms_norm", {"m": 5, "n": 9}),
        ("attention", {"b": 1, "h": 2, "i": 3, "j": 5, "d": 4, "causal": True}),
    ],
)  # fmt: skip
def test_operators_are_defined_at_values_of_both_signs(op: str, args: Mapping[str, Any]) -> None:
    workload = make_workload(op, args)
    inputs = random_inputs(workload, {})
    assert all(array.min() < 0 < array.max() for array in inputs)
    assert all(np.isfinite(output).all() for output in compute(workload, inputs, {}))


MASKED = "s[m, k] = {score}; top[m] = max(k) s[m, k]; out[m] = where(top[m] == -inf, 0.0, top[m])"


@pytest.mark.parametrize("score", ["x[m, k] * y[k] + mask[m, k]", "where(mask[m, k], x[m, k] * y[k], -inf)"])
def test_masks_hide_lines_where_a_program_asks_for_that(score: str) -> None:
    """A line that is hidden whole is rare among random ones, and is what such a program is written for."""
    text = MASKED.format(score=score)
    fields = {"extents": {"m": 40, "k": 30}, "dtype": {"mask": "bool"} if "where(mask" in score else "float32"}
    workload = workload_from_json({"program": text, **fields})
    arrays = dict(zip((tensor.name for tensor in workload.inputs), random_inputs(workload, {}), strict=True))
    hidden = ~arrays["mask"] if arrays["mask"].dtype == bool else np.isneginf(arrays["mask"])
    assert 0 < hidden.all(axis=1).sum() < 20
    assert hidden[~hidden.all(axis=1)].any()
    assert not any(np.isneginf(arrays[name]).any() for name in "xy")
    plain = workload_from_json({"program": text.replace("== -inf", "== 0"), **fields})
    assert not any(np.isneginf(each).any() for each in random_inputs(plain, {}) if each.dtype != bool)


@pytest.mark.parametrize(
    ("text", "dtype", "wanted"),
    [
        ("out[m, k] = where(k < n[m], x[m, k], 0)", "int32", Domain(-1, 8)),
        ("out[m, k] = where(n[m] >= k, x[m, k], 0)", "int8", Domain(-1, 8)),
        ("out[m, k] = where(k > m - n[0], x[m, k], 0)", "uint8", Domain(0, 8)),
        ("e[m] = n[m] + 1\nout[m, k] = where(k < e[m], x[m, k], 0)", "int64", Domain(-1, 8)),
        ("e[m] = max(k) where(n[k] <= m, n[k], 0)\nout[m] = x[m] * e[m]", "int32", Domain(0, 4, is_ascending=True)),
    ],
)
def test_integers_that_axes_are_compared_with_reach_past_both_ends(text: str, dtype: str, wanted: Domain) -> None:
    shapes = {"n": [1]} if "n[0]" in text else {}
    assert domain(text, "n", extents={"m": 4, "k": 7}, dtype={"n": dtype}, shapes=shapes) == wanted


@pytest.mark.parametrize("sequences", [0, 1, 2, 9])
def test_offsets_of_a_ragged_batch_cover_its_rows(sequences: int) -> None:
    workload = make_workload("ragged_attention", {"b": sequences, "h": 1, "i": 20, "j": 30, "d": 4, "causal": True})
    *_, rows, keys = random_inputs(workload, {})
    for offsets, most in ((rows, 20), (keys, 30)):
        assert (np.diff(offsets) >= 0).all()
        assert offsets[0] == 0
        assert sequences == 0 or offsets[-1] == most
