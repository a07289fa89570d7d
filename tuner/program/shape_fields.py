"""The fields ``shape_vars`` and ``instances`` of a job file, and of a stored search task."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import MAX_SHOWN, InvalidInput, shown
from tuner.program.shape_vars import ShapeVar, WorkloadInstance

MAX_VARIABLES = 64
"""Shape variables of a job file."""
MAX_WEIGHT = 1e12
"""Sums of weights times latencies must stay finite."""
WEIGHTS = f"a number from 0 to {MAX_WEIGHT:g}"


def parse_shape_vars(data: object) -> tuple[ShapeVar, ...]:
    """``{T: {min: 1, max: 128}, S: {values: [1, 2]}}`` as shape variables. Fields of errors start at shape_vars."""
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        raise InvalidInput("shape_vars", f"{shown(data)} is not a mapping", "as in T: {min: 1, max: 128}")
    if len(data) > MAX_VARIABLES:
        raise InvalidInput("shape_vars", f"{len(data)} of them", f"at most {MAX_VARIABLES} in one job")
    return tuple(_shape_var(str(name), spec) for name, spec in data.items())


def _shape_var(name: str, spec: object) -> ShapeVar:
    field = f"shape_vars.{name}" if len(name) <= MAX_SHOWN else "shape_vars"
    form = "{min: 1, max: 128} or {values: [5, 24, 43]}"
    if not isinstance(spec, Mapping) or set(spec) not in ({"min", "max"}, {"values"}):
        raise InvalidInput(field, f"{shown(spec)} is not a range", form)
    if "values" in spec and not isinstance(spec["values"], list | tuple):
        raise InvalidInput(field, f"values: {shown(spec['values'])} is not a list", form)
    for value in spec["values"] if "values" in spec else spec.values():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(field, f"{shown(value)} is not an integer", form)
    if "values" in spec:
        return ShapeVar(name, spec["values"])
    if spec["min"] > spec["max"]:
        raise InvalidInput(field, f"min {spec['min']} is above max {spec['max']}", "min must not be above max")
    return ShapeVar(name, range(spec["min"], spec["max"] + 1))


def parse_instances(data: object) -> list[WorkloadInstance] | None:
    """``[{T: 5, weight: 1.0}, ...]`` as instances; None where the job leaves them out."""
    if data is None:
        return None
    if not isinstance(data, list):
        raise InvalidInput("instances", f"{shown(data)} is not a list", "as in [{T: 5, weight: 1.0}]")
    result = []
    for index, item in enumerate(data):
        if not isinstance(item, Mapping):
            raise InvalidInput(f"instances[{index}]", f"{shown(item)} is not a mapping", "as in {T: 5, weight: 1.0}")
        if len(item) > MAX_VARIABLES + 1:
            raise InvalidInput(f"instances[{index}]", f"gives {len(item)} values", "one for each shape variable")
        values = {str(name): value for name, value in item.items() if name != "weight"}
        weight = item.get("weight", 1.0)
        if not is_weight(weight):
            raise InvalidInput(f"instances[{index}].weight", f"{shown(weight)} is not a weight", WEIGHTS)
        result.append(WorkloadInstance.of(values, weight))
    return result


def is_weight(value: object) -> bool:
    """Whether it is a weight of an instance."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_WEIGHT
