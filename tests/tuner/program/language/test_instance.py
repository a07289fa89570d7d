"""Static programs as instances of dynamic workloads."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.program.job.build import workload_from_json
from tuner.program.language.instance import instance_dims

CONV = {"b": "B", "c": 8, "h": "H", "w": "W", "o": 4, "r": 3, "s": 3, "pad": 1}


def dims(dynamic: dict[str, Any], static: dict[str, Any], **fields: Any) -> dict[str, int] | None:
    """By operator and args, the dynamic ones in canonical form as a database keeps them."""
    op = fields.pop("op", "dense")
    stored = workload_from_json(workload_from_json({"op": op, "args": dynamic, **fields}).canonical)
    return instance_dims(workload_from_json({"op": op, "args": static, **fields}), stored)


def test_a_program_of_numbers_is_an_instance_where_the_numbers_fit() -> None:
    dynamic = {"m": "16*T", "n": 8, "k": 4}
    assert dims(dynamic, {"m": 592, "n": 8, "k": 4}) == {"m": 592}
    # What the shape variables could be is a matter of the search, not of the workload.
    assert dims(dynamic, {"m": 7, "n": 8, "k": 4}) == {"m": 7}
    assert dims(dynamic, {"m": 592, "n": 9, "k": 4}) is None
    assert dims(dynamic, {"m": 592, "n": 8, "k": 5}) is None


def test_extents_that_are_one_symbol_are_one_number() -> None:
    dynamic = {"b": "B", "m": "T", "n": "T", "k": 16}
    assert dims(dynamic, {"b": 2, "m": 9, "n": 9, "k": 16}, op="batch_matmul_nt") == {"m": 2, "n": 9}
    assert dims(dynamic, {"b": 2, "m": 9, "n": 8, "k": 16}, op="batch_matmul_nt") is None


def test_several_symbols_may_have_one_value() -> None:
    assert dims({"m": "M", "n": "N", "k": 4}, {"m": 8, "n": 8, "k": 4}) == {"m": 8, "n": 8}


@pytest.mark.parametrize("pad", [0, 1])
def test_sizes_that_only_shapes_have_are_found_too(pad: int) -> None:
    dynamic = {**CONV, "pad": pad}
    result = dims(dynamic, {**dynamic, "b": 2, "h": 14, "w": 10}, op="conv2d")
    assert result is not None
    stored = workload_from_json(workload_from_json({"op": "conv2d", "args": dynamic}).canonical)
    shapes = [operand.shape(result) for operand in stored.operands]
    assert shapes == [(2, 8, 14, 10), (4, 8, 3, 3), (2, 4, 12 + 2 * pad, 8 + 2 * pad)]


def test_static_workloads_are_instances_of_themselves() -> None:
    assert dims({"m": 8, "n": 8, "k": 4}, {"m": 8, "n": 8, "k": 4}) == {}
    assert dims({"m": 8, "n": 8, "k": 4}, {"m": 9, "n": 8, "k": 4}) is None
