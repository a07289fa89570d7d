"""What there is to tune in a model: a sequence of search tasks, each with its place, and what was left."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from shapewright.models.lifted import Left
from shapewright.queries import without_usual
from tuner.errors import InvalidInput
from tuner.program.job.budget_plan import BudgetPlan
from tuner.program.job.instances import MAX_INSTANCES
from tuner.program.job.jobspec import MAX_NAME, parse_budget, without
from tuner.program.job.layers import MAX_LAYERS, layer_name
from tuner.program.job.task import SearchTask
from tuner.program.language.ranges import thinned
from tuner.program.language.shape_vars import JsonObject, ShapeVar, WorkloadInstance
from tuner.program.language.workload import Workload

Weights = Mapping[str, Mapping[int, float]]
OF_ONE_WORKLOAD = "workload"
"""The first part of the fields of errors that one workload alone is refused for."""
PER_VARIABLE = 8
"""Sizes of a variable that no weights are given for, beside those that have some."""
SHOWN_PLACES = 3
SHOWN_LEFT = 20


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ModelTask(SearchTask):
    """A search task of a model. ``count``: how often it occurs; ``places``: where, by the model's own names."""

    count: int
    places: tuple[str, ...]

    def __init__(self, *args: Any, count: int, places: Sequence[str], **kwargs: Any) -> None:
        SearchTask.__init__(self, *args, **kwargs)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "places", tuple(places))

    def __repr__(self) -> str:
        return f"<ModelTask {self.count}x {self.workload}>"


@dataclass(frozen=True, repr=False)
class ModelTasks(Sequence[ModelTask]):
    """The distinct tasks of a model in the order in which they first occur; ``left``: what was not lifted, and why."""

    name: str
    tasks: tuple[ModelTask, ...]
    left: tuple[Left, ...]
    shape_vars: tuple[ShapeVar, ...]
    instances: tuple[WorkloadInstance, ...] | None

    @overload
    def __getitem__(self, index: int) -> ModelTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ModelTask]: ...
    def __getitem__(self, index: int | slice) -> ModelTask | Sequence[ModelTask]:
        return self.tasks[index]

    def __len__(self) -> int:
        return len(self.tasks)

    def job(self, budget: Mapping[str, Any], **fields: Any) -> JsonObject:
        """The document of one job for all tasks, their counts given; ``fields`` are further ones of a job file."""
        if not self.tasks:
            raise InvalidInput("model", "nothing of it can be tuned", self.reasons())
        used = frozenset().union(*(task.workload.variables for task in self.tasks))
        document: JsonObject = {
            "name": self.name,
            "workloads": [
                {**task.workload.to_json(), "count": task.count, "layers": layers_named(task.places)}
                for task in self.tasks
            ],
            "shape_vars": {var.name: var.to_json() for var in self.shape_vars if var.name in used},
        }
        if self.instances is not None:
            document["instances"] = [instance.to_json() for instance in self.instances]
        # Of no number of threads, nor a target: what runs a job says those.
        return without_usual({**document, "cache": self.tasks[0].cache.value, "budget": dict(budget), **fields})

    def plan(self, *, seconds: float | None = None, trials: int | None = None) -> BudgetPlan:
        """What such a budget buys: for how many of the tasks it is enough, and what is recommended. Raises InvalidInput
        for what is no budget."""
        budget = parse_budget({"seconds": seconds, "trials": trials})
        return BudgetPlan.of(((task, task.count) for task in self.tasks), budget)

    def reasons(self) -> str:
        """What was left, by reason, the most frequent first."""
        names: dict[str, list[str]] = {}
        for one in self.left:
            names.setdefault(one.reason, []).append(one.node)
        ordered = sorted(names.items(), key=lambda item: -len(item[1]))
        lines = [f"{reason} ({_places(nodes)})" for reason, nodes in ordered[:SHOWN_LEFT]]
        more = len(ordered) - SHOWN_LEFT
        return "; ".join(lines + ([f"and {more} more reasons"] if more > 0 else [])) or "no operator was found"

    def rows(self) -> list[tuple[str, str, str]]:
        """How often each task occurs, what it computes, and where."""
        return [(str(task.count), str(task.workload), _places(task.places)) for task in self.tasks]

    def __repr__(self) -> str:
        lines = [f"<ModelTasks {self.name}: {len(self)} workloads, {sum(task.count for task in self.tasks)} operators"]
        lines += [f"  {count.rjust(4)}x  {label}  ({places})" for count, label, places in self.rows()]
        lines += [f"  left: {self.reasons()}"] if self.left else []
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows())
        left = "".join(row(("", f"{one.op}: {one.reason}", one.node), "td") for one in self.left)
        head = row(("count", "workload", "where"), "th")
        rest = f"<tbody><tr><th colspan=3>left to the framework</th></tr>{left}</tbody>" if left else ""
        return f"<table><caption>{html.escape(self.name)}</caption>{head}{body}{rest}</table>"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A workload somewhere in a model. ``node``: of its graph; ``place``: by the model's own names."""

    workload: Workload
    node: str
    place: str


def tasks_of(
    name: str,
    found: Sequence[Occurrence],
    left: Sequence[Left],
    variables: Sequence[ShapeVar],
    weights: Weights | None,
    options: Mapping[str, Any],
) -> ModelTasks:
    """The search tasks of what was found in a model.

    ``variables`` gives the sizes of all its symbols, ``weights`` how often they occur; ``options`` are further fields
    of every task. A workload that cannot be searched is left, with the reason. Raises InvalidInput for another fault.
    """
    used_names = frozenset().union(*(each.workload.variables for each in found))
    used = tuple(var for var in variables if var.name in used_names)
    instances = None if weights is None else _instances(used, weights)
    tasks, untuned = list[ModelTask](), list(left)
    for group in _distinct(found):
        try:
            tasks.append(_task(group, used, instances, options))
        except InvalidInput as error:
            if not error.field.startswith(OF_ONE_WORKLOAD):
                raise
            # One that is too large, or empty, at sizes of the range; what the others are is not its matter.
            reason = f"{error.field}: {error.problem}"
            untuned += [Left(each.node, str(each.workload), reason) for each in group]
    return ModelTasks(name, tuple(tasks), tuple(untuned), used, instances)


def _distinct(found: Sequence[Occurrence]) -> list[list[Occurrence]]:
    """Equal workloads of equal sizes together."""
    groups: dict[tuple[str, ...], list[Occurrence]] = {}
    for each in found:
        sizes = tuple(str(dim) for dim in each.workload.symbol_exprs.values())
        groups.setdefault((each.workload.key, *sizes), []).append(each)
    return list(groups.values())


def _task(
    group: Sequence[Occurrence],
    variables: Sequence[ShapeVar],
    instances: Sequence[WorkloadInstance] | None,
    options: Mapping[str, Any],
) -> ModelTask:
    workload, places = group[0].workload, [each.place for each in group]
    used = [var for var in variables if var.name in workload.variables]
    dropped = {var.name for var in variables} - {var.name for var in used}
    kept = None if instances is None else without(dropped, instances)
    return ModelTask(workload, shape_vars=used, instances=kept, count=len(group), places=places, **options)


def _instances(variables: Sequence[ShapeVar], weights: Weights) -> tuple[WorkloadInstance, ...]:
    """Every combination of sizes that occur, its weight their product. Raises InvalidInput on field ``weights``."""
    unknown = sorted(set(weights) - {var.name for var in variables})
    if unknown:
        remedy = f"weights of {', '.join(var.name for var in variables) or 'nothing: no dim is dynamic'}"
        raise InvalidInput(f"weights.{unknown[0]}", "no workload has such a shape variable", remedy)
    sizes = [dict(weights[var.name]) if var.name in weights else _spread(var) for var in variables]
    if math.prod(map(len, sizes)) > MAX_INSTANCES:
        problem = f"{math.prod(map(len, sizes))} combinations of sizes"
        raise InvalidInput("weights", problem, f"at most {MAX_INSTANCES}: give fewer sizes")
    names = [var.name for var in variables]
    return tuple(
        WorkloadInstance.of(
            dict(zip(names, (size for size, _ in point), strict=True)), math.prod(weight for _, weight in point)
        )
        for point in itertools.product(*(each.items() for each in sizes))
    )


def _spread(var: ShapeVar) -> dict[int, float]:
    return dict.fromkeys(thinned(var.values, PER_VARIABLE), 1.0)


def layers_named(names: Sequence[str]) -> list[str]:
    """Layer names for a job file, as many as it may have."""
    return list(map(layer_name, names[:MAX_LAYERS]))


def _places(names: Sequence[str]) -> str:
    listed = ", ".join(names[:SHOWN_PLACES])
    return f"{listed}, ... {len(names) - SHOWN_PLACES} more" if len(names) > SHOWN_PLACES else listed


def job_name(text: str) -> str:
    """A name that a job may have."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_NAME].strip() or "model"
