"""The instances of a search task: those that are usual, those that are given, and shapes as text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tuner.errors import MAX_SHOWN, InvalidInput, shown
from tuner.program.job.shape_fields import MAX_WEIGHT, WEIGHTS, is_weight
from tuner.program.language.effort import spend
from tuner.program.language.ranges import scattered, thinned
from tuner.program.language.workload import ShapeVar, Workload, WorkloadInstance

MAX_INSTANCES = 256
DEFAULT_INSTANCES = 8
SCATTERED_INSTANCES = 12


def default_instances(variables: Sequence[ShapeVar]) -> list[dict[str, int]]:
    """Spread over the range, evenly in each variable, the extremes included.

    A grid of up to two variables. A grid of more has nothing but corners, and ever more of them: see ``scattered``.
    """
    if len(variables) > 2:
        return scattered(variables, SCATTERED_INSTANCES)
    per_var = max(2, round(DEFAULT_INSTANCES ** (1 / max(1, len(variables)))))
    grids = [thinned(var.values, per_var) for var in variables]
    names = [var.name for var in variables]
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*grids)]


def checked_instances(
    variables: tuple[ShapeVar, ...],
    given: Sequence[int | Mapping[str, int] | WorkloadInstance],
    weights: Sequence[float] | None,
) -> tuple[WorkloadInstance, ...]:
    """The instances that somebody gave, with their weights. Raises InvalidInput naming the field."""
    if not 0 < len(given) <= MAX_INSTANCES:
        raise InvalidInput("instances", f"{len(given)} instances", f"give 1 to {MAX_INSTANCES}")
    if weights is not None and len(weights) != len(given):
        raise InvalidInput("weights", f"{len(weights)} weights for {len(given)} instances", "one for each")
    spend(len(given) * (2 + len(variables)))
    result: dict[tuple[tuple[str, int], ...], WorkloadInstance] = {}
    for index, item in enumerate(given):
        instance = _instance(variables, item, index, None if weights is None else weights[index])
        if instance.values in result:
            raise InvalidInput(f"instances[{index}]", f"{instance} is given twice", "each shape once")
        result[instance.values] = instance
    if not any(instance.weight for instance in result.values()):
        raise InvalidInput("instances", "every weight is 0", "at least one above 0")
    return tuple(result.values())


def merged_instances(workload: Workload, instances: Sequence[WorkloadInstance]) -> tuple[WorkloadInstance, ...]:
    """Instances of the same sizes (T=4 and T=5 of ``T//2``) as one: the first of them, with all their weights."""
    spend(len(instances) * (1 + 4 * len(workload.symbols)))
    merged: dict[tuple[int, ...], WorkloadInstance] = {}
    for instance in instances:
        dims = tuple(workload.dims(instance.shape).values())
        first = merged.setdefault(dims, instance)
        if first is not instance:
            weight = min(first.weight + instance.weight, MAX_WEIGHT)
            merged[dims] = WorkloadInstance(first.values, weight)
    return tuple(merged.values())


def _instance(
    variables: tuple[ShapeVar, ...], item: int | Mapping[str, int] | WorkloadInstance, index: int, weight: float | None
) -> WorkloadInstance:
    field = f"instances[{index}]"
    if isinstance(item, WorkloadInstance):
        values, weight = item.shape, item.weight if weight is None else weight
    elif isinstance(item, Mapping):
        values = dict(item)
    elif len(variables) == 1:
        values = {variables[0].name: item}
    else:
        problem = f"{shown(item)} does not say which variable it is for"
        raise InvalidInput(field, problem, "give a mapping of all variables")
    weight = 1.0 if weight is None else weight
    if not is_weight(weight):
        raise InvalidInput(f"{field}.weight", f"{shown(weight)} is not a weight", WEIGHTS)
    names = {var.name for var in variables}
    if set(values) != names:
        given = ", ".join(sorted(map(str, values))) or "nothing"
        given = given if len(given) <= 2 * MAX_SHOWN else f"{given[: 2 * MAX_SHOWN]}..."
        raise InvalidInput(field, f"gives {given}", f"give a value for each of: {', '.join(sorted(names)) or '(none)'}")
    for var in variables:
        value = values[var.name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(f"{field}.{var.name}", f"{shown(value)} is not an integer", "a value of the range")
        if not var.takes(value):
            raise InvalidInput(f"{field}.{var.name}", f"{value} is outside the range", _range_text(var))
    return WorkloadInstance.of(values, weight)


def _range_text(var: ShapeVar) -> str:
    if isinstance(var.values, range):
        steps = f" in steps of {var.values.step}" if var.values.step > 1 else ""
        return f"{var.name} runs from {var.min} to {var.max}{steps}"
    return f"{var.name} is one of {', '.join(map(str, var.values[:20]))}"


def parse_shape(text: str) -> dict[str, int]:
    """``T=37,S=4`` as a mapping. Raises InvalidInput on field ``shape``."""
    result: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not value.isdecimal() or len(value) > 18 or name in result:
            raise InvalidInput("shape", f"{part!r} does not give one variable a size", "as in T=37,S=4")
        result[name] = int(value)
    return result
