"""Shapes to verify at."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.measure.verification.ragged import MAX_WORK, ragged_dims, work
from tuner.program.catalogue import OPS
from tuner.program.job.build import make_workload, workload_from_json


def test_they_are_divided_by_no_tile_and_differ_from_each_other() -> None:
    workload = make_workload("matmul", {"m": "T", "n": "S", "k": "S + 1"})
    ones, *larger = ragged_dims(workload)
    assert ones == {"m": 1, "n": 1, "k": 1}
    for dims in larger[:2]:
        assert len(set(dims.values())) == 3
        assert all(value % tile for value in dims.values() for tile in (2, 3, 4, 5, 6, 7, 8))


def test_those_that_are_too_much_work_are_left_out_but_for_the_smallest_that_fill_tiles() -> None:
    huge = make_workload("matmul", {"m": "T", "n": 30_000, "k": 30_000})
    assert ragged_dims(huge)[:2] == [{"m": 1}, {"m": 37}]
    assert all(work(huge, dims) <= MAX_WORK for dims in ragged_dims(huge)[2:])


def test_a_batch_is_verified_at_few_of_many_dims() -> None:
    workload = make_workload("batch_matmul_nn", {"b": "B", "m": "T", "n": "S", "k": "K"})
    # Symbols are named in the order of first use: b, m, n are m, n, k, and k is a3.
    ones, blocks, larger, *rest = ragged_dims(workload)
    assert set(ones.values()) == {1}
    assert [dims["m"] for dims in (blocks, larger)] == [3, 5]
    assert all(min(dims["n"], dims["k"], dims["a3"]) > size for dims, size in ((blocks, 32), (larger, 96)))
    assert rest == [
        *(blocks | {symbol: 0} for symbol in workload.symbols),
        blocks | {"a3": 563},
        blocks | {"a3": 1543},
    ]
    both = make_workload("batch_matmul_nn", {"b": "T", "m": "T", "n": 8, "k": 8})
    assert ragged_dims(both)[1] == {"m": 37}


@pytest.mark.parametrize(
    ("op", "args", "sizes"),
    [
        ("batch_matmul_nt", {"b": 192, "m": "T", "n": "T", "k": 64}, [1, 37, 113, 0]),
        ("batch_matmul_nn", {"b": 192, "m": "T", "n": 64, "k": "T"}, [1, 37, 113, 0]),
        ("matmul", {"m": 37, "n": 24, "k": "T"}, [1, 37, 113, 0, 563, 1543]),
        ("matmul", {"m": "T", "n": "T", "k": "T"}, [1, 37, 113, 0, 563]),
        ("softmax", {"m": 8, "n": "T"}, [1, 37, 113, 0, 563, 1543]),
        ("moe_dense", {"t": 8, "e": "T", "n": 8, "k": 8}, [1, 37, 113]),
    ],
)
def test_a_symbol_is_0_once_and_what_is_reduced_has_all_lengths(
    op: str, args: dict[str, Any], sizes: list[int]
) -> None:
    workload = make_workload(op, args)
    (name,) = workload.symbols
    assert ragged_dims(workload) == [{name: size} for size in sizes]


def test_a_workload_without_symbols_has_one_shape() -> None:
    assert ragged_dims(make_workload("matmul", {"m": 5, "n": 24, "k": 16})) == [{}]


def test_sizes_that_do_not_fit_together_are_raised() -> None:
    workload = make_workload("conv2d", {"b": 1, "c": 2, "h": "H", "w": "H + 3", "o": 2, "r": 3, "s": 5})
    text = {"program": "out[m] = x[m + 9]", "extents": {"m": "T"}, "shapes": {"x": ["S"]}}
    for each in (workload, workload_from_json(text)):
        result = ragged_dims(each)
        assert len(result) >= 3
        assert all(each.is_consistent(dims) for dims in result)


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operator_has_some_when_all_its_sizes_are_dynamic(op: str) -> None:
    windowed = "stride" in OPS[op].settings
    fixed = {"r": 2, "s": 3, "t": 2, "c": 4, "o": 4} if windowed else {"d": 8}
    workload = make_workload(op, {name: fixed.get(name, name.upper()) for name in OPS[op].args})
    result = ragged_dims(workload)
    assert all(workload.is_consistent(dims) for dims in result)
    assert sum(work(workload, dims) for dims in result) <= 8 * MAX_WORK
    assert any(min(dims.values()) >= 3 for dims in result)
    assert any(0 in dims.values() for dims in result)


def test_a_batch_of_large_images_is_small() -> None:
    """Its pixels fill tiles whatever the batch is."""
    image = {"b": "T", "c": 64, "o": 64, "r": 3, "s": 3, "pad": 1}
    assert ragged_dims(make_workload("conv2d", {**image, "h": 8, "w": 8}))[1] == {"m": 37}
    assert ragged_dims(make_workload("conv2d", {**image, "h": 112, "w": 112})) == [{"m": 1}, {"m": 3}, {"m": 0}]
