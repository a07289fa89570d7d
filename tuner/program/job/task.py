"""Search tasks: a workload, the instances that matter, a target. The unit that a search policy works on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tuner.errors import MAX_SHOWN, InvalidInput, shown
from tuner.program.catalogue import Op
from tuner.program.job.build import ProgramOp, make_workload, workload_from_stored
from tuner.program.job.cache import Cache, parse_cache
from tuner.program.job.shape_fields import (
    MAX_WEIGHT,
    WEIGHTS,
    is_weight,
    parse_instances,
    parse_shape_vars,
)
from tuner.program.language.dims import DimLike
from tuner.program.language.effort import spend
from tuner.program.language.ranges import (
    check_bounds,
    check_sizes,
    check_variables,
    largest_dims,
    scattered,
    shapes_of,
    thinned,
)
from tuner.program.language.workload import JsonObject, ShapeVar, Workload, WorkloadInstance, format_shape
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL, Rates

__all__ = [
    "MAX_INSTANCES",
    "MAX_WEIGHT",
    "SearchTask",
    "check_shape",
    "default_instances",
    "parse_instances",
    "parse_shape",
    "parse_shape_vars",
    "parse_target",
]

MAX_INSTANCES = 256
MAX_KERNELS = 64
MAX_THREADS = 1024
DEFAULT_INSTANCES = 8
SCATTERED_INSTANCES = 12
FAR = 2.0
"""How many times as large as the least shape every instance must be for that one to be searched for, too."""
MIN_SHAPE_WEIGHT = 0.25
"""The weight of the least shape, relative to the least weight of the instances."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class SearchTask:
    """What one search optimises: ``workload`` over the ranges of ``shape_vars``, weighted by ``instances``.

    ``target`` is None while it is ``native`` and no device is known; ``on(target)`` fills it in. ``cache`` says how
    calls find their operands when they are timed. ``rates`` is what theory takes for the target's, and no part of what
    is optimised.
    """

    workload: Workload
    shape_vars: tuple[ShapeVar, ...]
    instances: tuple[WorkloadInstance, ...]
    target: Target | None
    threads: int
    max_kernels: int
    cache: Cache
    rates: Rates = field(compare=False)

    def __init__(
        self,
        op: Op | str | ProgramOp | Workload,
        args: Mapping[str, DimLike] | None = None,
        shape_vars: Sequence[ShapeVar] = (),
        instances: Sequence[int | Mapping[str, int] | WorkloadInstance] | None = None,
        weights: Sequence[float] | None = None,
        target: Target | str | Mapping[str, Any] | None = "native",
        *,
        dtype: str | Mapping[str, str] = "float32",
        epilogue: Sequence[str] = (),
        threads: int = 1,
        max_kernels: int = 8,
        cache: str = "warm",
    ) -> None:
        """Check everything that can be checked without a device. Raises InvalidInput naming the field."""
        workload = op if isinstance(op, Workload) else make_workload(op, {} if args is None else args, dtype, epilogue)
        variables = tuple(sorted(shape_vars, key=lambda var: var.name))
        check_variables(workload, variables)
        check_sizes(workload, variables)
        check_bounds(workload, variables)
        given = default_instances(variables) if instances is None else instances
        checked = _checked_instances(variables, given, weights)
        self._set(workload, variables, checked, target, threads, max_kernels, cache)

    def _set(
        self,
        workload: Workload,
        shape_vars: tuple[ShapeVar, ...],
        instances: tuple[WorkloadInstance, ...],
        target: Target | str | Mapping[str, Any] | None,
        threads: int,
        max_kernels: int,
        cache: object,
    ) -> None:
        _check_count("threads", threads, 1, MAX_THREADS)
        _check_count("max_kernels", max_kernels, 1, MAX_KERNELS)
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "shape_vars", shape_vars)
        object.__setattr__(self, "instances", _merged(workload, instances))
        object.__setattr__(self, "target", _with_threads(parse_target(target), threads))
        object.__setattr__(self, "threads", threads)
        object.__setattr__(self, "max_kernels", max_kernels)
        object.__setattr__(self, "cache", parse_cache(cache))
        object.__setattr__(self, "rates", TYPICAL)

    def on(self, target: Target) -> Self:
        """A copy of the task for ``target``. Raises InvalidInput for threads of a GPU's kernels."""
        return self._copy(target=_with_threads(target, self.threads))

    def part(self, workload: Workload) -> Self:
        """A copy of the task for a workload that is a part of this one's, over the same symbols."""
        return self._copy(workload=workload)

    def for_threads(self, threads: int) -> Self:
        """A copy of the task for so many threads."""
        return self._copy(threads=threads)

    def at_rates(self, rates: Rates) -> Self:
        """A copy of the task with the rates that were measured of the target's cores."""
        return self._copy(rates=rates)

    def _copy(self, **changed: Any) -> Self:
        task = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(task, each.name, changed.get(each.name, getattr(self, each.name)))
        return task

    @property
    def known_target(self) -> Target:
        """The target. Raises ValueError while it is ``native`` and no device is known."""
        if self.target is None:
            raise ValueError(f"the target of {self.workload} is not known yet: resolve it with task.on(target)")
        return self.target

    @property
    def largest_dims(self) -> dict[str, int]:
        """Bounds of the symbols over the range."""
        return largest_dims(self.workload, self.shape_vars)

    def _with(self, **changed: Any) -> SearchTask:
        names = ("shape_vars", "instances", "target", "threads", "max_kernels", "cache")
        task = SearchTask(self.workload, **{name: getattr(self, name) for name in names} | changed)
        return task.at_rates(self.rates)

    def with_least_shape(self) -> SearchTask:
        """The task with the least shape of its range as a further instance, at a small weight, if it is FAR from all.

        Small shapes are bound by other things than large ones, so what is measured at those says little of it.
        """
        least = {var.name: next((value for value in var.values if value > 0), 0) for var in self.shape_vars}
        is_served = any(self._is_near(least, instance.shape) for instance in self.instances)
        is_empty = not self.workload.points(self.workload.dims(least))
        if is_served or is_empty or len(self.instances) == MAX_INSTANCES:
            return self
        weight = MIN_SHAPE_WEIGHT * min(instance.weight for instance in self.instances if instance.weight)
        return self._with(instances=(WorkloadInstance.of(least, weight), *self.instances))

    def _is_near(self, one: Mapping[str, int], other: Mapping[str, int]) -> bool:
        dims = (self.workload.dims(shape).values() for shape in (one, other))
        return all(max(a, b) < FAR * min(a, b) for a, b in zip(*dims, strict=True))

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {var.name: (var.min, var.max) for var in self.shape_vars}

    def contains(self, shape: Mapping[str, int]) -> bool:
        """Whether ``shape`` gives every shape variable a value of its declared range."""
        return set(shape) == set(self.ranges) and all(var.takes(shape[var.name]) for var in self.shape_vars)

    def shapes(self, limit: int = 4096) -> list[dict[str, int]]:
        """Every shape of the declared range; of more than ``limit`` about as many, the extremes kept."""
        return shapes_of(self.shape_vars, limit)

    def __repr__(self) -> str:
        instances, threads = len(self.instances), self.threads
        return f"<SearchTask {self.workload} at {instances} instances, {threads} threads{self.cache.note}>"

    def to_json(self) -> JsonObject:
        return {
            "workload": self.workload.to_json(),
            "shape_vars": {var.name: var.to_json() for var in self.shape_vars},
            "instances": [instance.to_json() for instance in self.instances],
            "target": self.target.to_json() if self.target else "native",
            "threads": self.threads,
            "max_kernels": self.max_kernels,
            "cache": self.cache.value,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SearchTask:
        """Read what ``to_json`` wrote (the same fields that one workload of a job file has).

        Sizes and bounds of the whole range were checked when the task was made; inferring shapes takes longer than
        all the rest.
        """
        workload = workload_from_stored(json.dumps(data["workload"]))
        variables = tuple(sorted(parse_shape_vars(data.get("shape_vars", {})), key=lambda var: var.name))
        check_variables(workload, variables)
        given = parse_instances(data.get("instances"))
        task = object.__new__(SearchTask)
        task._set(
            workload,
            variables,
            _checked_instances(variables, default_instances(variables) if given is None else given, None),
            data.get("target", "native"),
            data.get("threads", 1),
            data.get("max_kernels", 8),
            # Of an earlier release, which knew no other.
            data.get("cache", Cache.WARM),
        )
        return task


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


def _checked_instances(
    variables: tuple[ShapeVar, ...],
    given: Sequence[int | Mapping[str, int] | WorkloadInstance],
    weights: Sequence[float] | None,
) -> tuple[WorkloadInstance, ...]:
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


def _merged(workload: Workload, instances: Sequence[WorkloadInstance]) -> tuple[WorkloadInstance, ...]:
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


def parse_shape(text: str) -> dict[str, int]:
    """``T=37,S=4`` as a mapping. Raises InvalidInput on field ``shape``."""
    result: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not value.isdecimal() or len(value) > 18 or name in result:
            raise InvalidInput("shape", f"{part!r} does not give one variable a size", "as in T=37,S=4")
        result[name] = int(value)
    return result


def check_shape(task: SearchTask, shape: Mapping[str, int]) -> None:
    """Raise InvalidInput unless ``shape`` gives a size to exactly the task's variables; the range does not matter."""
    if set(shape) != set(task.ranges):
        names = ", ".join(sorted(task.ranges)) or "no variable"
        raise InvalidInput("shape", f"{format_shape(shape) or 'nothing'} does not fit {task.workload}", f"give {names}")
    for symbol, size in task.workload.dims(shape).items():
        if size < 0:
            expr = task.workload.symbol_exprs[symbol]
            raise InvalidInput("shape", f"{format_shape(shape)} makes {expr} {size}", "extents are 0 or more")


def _range_text(var: ShapeVar) -> str:
    if isinstance(var.values, range):
        steps = f" in steps of {var.values.step}" if var.values.step > 1 else ""
        return f"{var.name} runs from {var.min} to {var.max}{steps}"
    return f"{var.name} is one of {', '.join(map(str, var.values[:20]))}"


def _check_count(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(field, f"{shown(value)} will not do", f"an integer from {low} to {high}")


def _with_threads(target: Target | None, threads: int) -> Target | None:
    """``target``, whose kernels run on so many threads of a CPU. Raises InvalidInput for those of a GPU on several."""
    if target is not None and target.gpu is not None and threads != 1:
        problem = f"{threads} threads of a CPU, for kernels of {target.mcpu}"
        raise InvalidInput("threads", problem, "1, or none: a GPU's kernels take all of it; or a job of its own")
    return target


def parse_target(target: object) -> Target | None:
    """A target as a job file gives it; None for ``native``. Raises InvalidInput on field ``target``."""
    if target is None or isinstance(target, Target):
        return target
    if isinstance(target, str):
        if target == "native":
            return None
        remedy = "native, or {kind: llvm, mcpu: ..., num-cores: ...}"
        raise InvalidInput("target", f"{shown(target)} is not known", remedy)
    return Target.from_json(target)
