"""Search tasks: a workload, the instances that matter, a target. The unit that a search policy works on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tuner.errors import InvalidInput, shown
from tuner.program.catalogue import Op
from tuner.program.job.build import ProgramOp, in_tf32, make_workload, workload_from_stored
from tuner.program.job.cache import Cache, parse_cache
from tuner.program.job.instances import MAX_INSTANCES, checked_instances, default_instances, merged_instances
from tuner.program.job.shape_fields import parse_instances, parse_shape_vars
from tuner.program.language.dims import DimLike
from tuner.program.language.ranges import (
    check_bounds,
    check_sizes,
    check_variables,
    largest_dims,
    shapes_of,
)
from tuner.program.language.workload import JsonObject, ShapeVar, Workload, WorkloadInstance, format_shape
from tuner.program.target import Target
from tuner.program.target.rates import TYPICAL, Rates

MAX_KERNELS = 64
MAX_THREADS = 1024
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
        tf32: bool = False,
        threads: int = 1,
        max_kernels: int = 8,
        cache: str = "warm",
    ) -> None:
        """Check everything that can be checked without a device. Raises InvalidInput naming the field."""
        workload = op if isinstance(op, Workload) else make_workload(op, {} if args is None else args, dtype, epilogue)
        workload = in_tf32(workload) if tf32 else workload
        variables = tuple(sorted(shape_vars, key=lambda var: var.name))
        check_variables(workload, variables)
        check_sizes(workload, variables)
        check_bounds(workload, variables)
        given = default_instances(variables) if instances is None else instances
        checked = checked_instances(variables, given, weights)
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
        object.__setattr__(self, "instances", merged_instances(workload, instances))
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
            checked_instances(variables, default_instances(variables) if given is None else given, None),
            data.get("target", "native"),
            data.get("threads", 1),
            data.get("max_kernels", 8),
            # Of an earlier release, which knew no other.
            data.get("cache", Cache.WARM),
        )
        return task


def check_shape(task: SearchTask, shape: Mapping[str, int]) -> None:
    """Raise InvalidInput unless ``shape`` gives a size to exactly the task's variables; the range does not matter."""
    if set(shape) != set(task.ranges):
        names = ", ".join(sorted(task.ranges)) or "no variable"
        raise InvalidInput("shape", f"{format_shape(shape) or 'nothing'} does not fit {task.workload}", f"give {names}")
    for symbol, size in task.workload.dims(shape).items():
        if size < 0:
            expr = task.workload.symbol_exprs[symbol]
            raise InvalidInput("shape", f"{format_shape(shape)} makes {expr} {size}", "extents are 0 or more")


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
