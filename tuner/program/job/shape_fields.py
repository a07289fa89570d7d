"""The fields ``shape_vars`` and ``instances`` of a job file, and of a stored search task."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import MAX_SHOWN, InvalidInput, did_you_mean, shown
from tuner.program.language.shape_vars import ShapeVar, WorkloadInstance

MAX_VARIABLES = 64
"""Shape variables of a job file."""
MAX_WEIGHT = 1e12
"""Sums of weights times latencies must stay finite."""
FIELDS = ("min", "max", "step", "powers_of", "values")
FORMS = "{min: 1, max: 128}, {min: 8, max: 1024, step: 8}, {min: 1, max: 4096, powers_of: 2} or {values: [5, 24, 43]}"
WEIGHTS = f"a number from 0 to {MAX_WEIGHT:g}"


def parse_shape_vars(data: object) -> tuple[ShapeVar, ...]:
    """``{T: {min: 1, max: 128, step: 8}, S: {values: [1, 2]}}`` as shape variables.

    Fields of errors start at shape_vars.
    """
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        raise InvalidInput("shape_vars", f"{shown(data)} is not a mapping", "as in T: {min: 1, max: 128}")
    if len(data) > MAX_VARIABLES:
        raise InvalidInput("shape_vars", f"{len(data)} of them", f"at most {MAX_VARIABLES} in one job")
    return tuple(_shape_var(str(name), spec) for name, spec in data.items())


def _shape_var(name: str, spec: object) -> ShapeVar:
    field = f"shape_vars.{name}" if len(name) <= MAX_SHOWN else "shape_vars"
    if not isinstance(spec, Mapping):
        raise InvalidInput(field, f"{shown(spec)} is not a range", FORMS)
    unknown = min((str(each) for each in spec if each not in FIELDS), default=None)
    if unknown is not None:
        remedy = did_you_mean(unknown, FIELDS) + FORMS
        raise InvalidInput(field, f"{shown(unknown)} is not a field of a range", remedy)
    if "values" in spec:
        return ShapeVar(name, _listed(field, spec))
    if not {"min", "max"} <= set(spec):
        raise InvalidInput(field, f"{shown(dict(spec))} is not a range", FORMS)
    if "step" in spec and "powers_of" in spec:
        raise InvalidInput(field, "step and powers_of are both given", "give one of them")
    for given, value in spec.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(field, f"{given}: {shown(value)} is not an integer", FORMS)
    if spec["min"] > spec["max"]:
        raise InvalidInput(field, f"min {spec['min']} is above max {spec['max']}", "min must not be above max")
    if "powers_of" in spec:
        return ShapeVar(name, _powers(field, spec["powers_of"], spec["min"], spec["max"]))
    step = spec.get("step", 1)
    if step < 1:
        raise InvalidInput(field, f"step: {step} is not a step", "1 or more, as in {min: 8, max: 1024, step: 8}")
    return ShapeVar(name, range(spec["min"], spec["max"] + 1, step))


def _listed(field: str, spec: Mapping[str, object]) -> list[int] | tuple[int, ...]:
    values = spec["values"]
    others = sorted(set(spec) - {"values"})
    if others:
        problem = f"values and {' and '.join(others)} are both given"
        raise InvalidInput(field, problem, "values alone, or a range without them")
    if not isinstance(values, list | tuple):
        raise InvalidInput(field, f"values: {shown(values)} is not a list", FORMS)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(field, f"{shown(value)} is not an integer", FORMS)
    return values


def _powers(field: str, base: int, least: int, most: int) -> list[int]:
    """The powers of ``base`` from ``least`` to ``most``, 1 among them if it is in between."""
    form = "as in {min: 1, max: 4096, powers_of: 2}"
    if base < 2:
        raise InvalidInput(field, f"powers_of: {base} has no powers to go through", f"2 or more, {form}")
    if least < 1:
        raise InvalidInput(field, f"min: {least} is below every power of {base}", f"1 or more, {form}")
    powers, power = [], 1
    while power <= most:
        powers += [power] if power >= least else []
        power *= base
    if not powers:
        raise InvalidInput(field, f"no power of {base} is from {least} to {most}", "a wider range")
    return powers


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
