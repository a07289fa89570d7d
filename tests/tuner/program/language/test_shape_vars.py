"""Shape variables, the values they take, and instances."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.tuner.strategies import INSTANCES
from tuner.errors import InvalidInput
from tuner.program.language.dims import parse_dim
from tuner.program.language.shape_vars import MAX_POINTS, ShapeVar, WorkloadInstance, format_shape


@given(INSTANCES)
def test_an_instance_holds_its_values_sorted(instance: WorkloadInstance) -> None:
    data = instance.to_json()
    weight = data.pop("weight")
    assert WorkloadInstance.of(data, weight) == instance
    assert list(instance.shape) == sorted(instance.shape)
    assert WorkloadInstance.from_json(instance.to_json()) == instance


def test_a_shape_var_knows_its_range() -> None:
    span, listed = ShapeVar("T", range(1, 129)), ShapeVar("S", [24, 5, 5, 43])
    assert (span.min, span.max) == (1, 128)
    assert span.to_json() == {"min": 1, "max": 128}
    assert listed.values == (5, 24, 43)
    assert listed.to_json() == {"values": [5, 24, 43]}
    assert span.expr == parse_dim("T")


def test_a_range_keeps_its_step_and_costs_nothing() -> None:
    stepped = ShapeVar("S", range(8, 8_000_001, 8))
    assert stepped.values == range(8, 8_000_001, 8)
    assert (stepped.min, stepped.max, stepped.count) == (8, 8_000_000, 1_000_000)
    assert stepped.to_json() == {"min": 8, "max": 8_000_000, "step": 8}
    assert (stepped.takes(16), stepped.takes(12), stepped.takes(0)) == (True, False, False)
    assert ShapeVar("T", range(0, 10, 3)).to_json() == {"min": 0, "max": 9, "step": 3}
    assert ShapeVar("T", range(9, 0, -3)) == ShapeVar("T", range(3, 10, 3))
    assert ShapeVar("T", range(8, 12, 8)).to_json() == {"min": 8, "max": 8}


@pytest.mark.parametrize(
    ("name", "values", "field", "problem"),
    [
        ("", range(1, 2), "shape_vars", "is not a name"),
        ("1T", range(1, 2), "shape_vars", "is not a name"),
        ("a.b", range(1, 2), "shape_vars", "is not a name"),
        ("if", range(1, 2), "shape_vars", "is not a name"),
        ("None", range(1, 2), "shape_vars", "is not a name"),
        ("\uff34", range(1, 2), "shape_vars", "is not a name"),
        ("weight", range(1, 2), "shape_vars", "is not a name"),
        (None, range(1, 2), "shape_vars", "is not a name"),
        ("T", range(5, 5), "shape_vars.T", "the range is empty"),
        ("T", range(9, 5), "shape_vars.T", "the range is empty"),
        ("T", [], "shape_vars.T", "the range is empty"),
        ("T", range(-1, 5), "shape_vars.T", "the smallest value is -1"),
        ("T", [3, -7], "shape_vars.T", "the smallest value is -7"),
        ("T", range(MAX_POINTS + 1), "shape_vars.T", f"{MAX_POINTS + 1} values"),
        ("T", range(1, 2**80), "shape_vars.T", "values"),
        ("T", range(0, 2**80, 3), "shape_vars.T", "values"),
        ("T", range(0, 10, -1), "shape_vars.T", "the range is empty"),
        ("T", range(2, -7, -4), "shape_vars.T", "the smallest value is -6"),
    ],
)
def test_a_bad_shape_var_is_refused(name: Any, values: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ShapeVar(name, values)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_shapes_are_written_by_name() -> None:
    assert format_shape({"T": 37, "S": 4}) == "S=4,T=37"
    assert str(WorkloadInstance.of({"T": 37, "S": 4}, 2)) == "S=4,T=37"
