"""Job files: what a user submits, in YAML or JSON, checked whole before anything is stored or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.build import workload_from_json
from tuner.program.target import Target
from tuner.program.task import SearchTask, parse_instances, parse_shape_vars
from tuner.program.workload import JsonObject, ShapeVar, Workload, WorkloadInstance

FIELDS = (
    *("name", "workload", "workloads", "shape_vars", "instances", "target", "targets"),
    *("threads", "device", "policy", "budget", "max_kernels", "seed"),
)
POLICIES = ("evolutionary", "random")
"""The names of tuner.search.policy.POLICIES, which may not be imported here."""
DEFAULT_POLICY = "evolutionary"
MAX_TASKS = 256
MAX_NAME = 200
MAX_SECONDS = 366 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Budget:
    """When a job's search must end: after ``trials``, or ``seconds`` of wall time, whichever comes first.

    ``seconds`` covers search, selection, verification and build. None means no limit of that kind.
    """

    trials: int | None
    seconds: float | None

    def to_json(self) -> JsonObject:
        return {key: value for key, value in (("trials", self.trials), ("seconds", self.seconds)) if value is not None}


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A checked job: its search tasks in order, and what they share."""

    name: str
    tasks: tuple[SearchTask, ...]
    counts: tuple[int, ...]
    device: str
    policy: str
    budget: Budget
    seed: int
    source: JsonObject

    def on(self, target: Target) -> JobSpec:
        """The same job with every ``native`` target filled in by ``target``."""
        return replace(self, tasks=tuple(task if task.target else task.on(target) for task in self.tasks))


def parse_job(data: object) -> JobSpec:
    """Check a job file's content. Raises InvalidInput with the dotted path of the first field that is wrong."""
    if not isinstance(data, Mapping):
        raise InvalidInput("job", f"{type(data).__name__} is not a mapping", f"fields: {', '.join(FIELDS)}")
    unknown = sorted(set(map(str, data)) - set(FIELDS))
    if unknown:
        known = f"fields: {', '.join(FIELDS)}"
        raise InvalidInput(unknown[0] or "job", f"{unknown[0]!r} is not a field of a job", known)
    shape_vars = parse_shape_vars(data.get("shape_vars"))
    instances = parse_instances(data.get("instances"))
    tasks: list[SearchTask] = []
    counts: list[int] = []
    workloads, targets = _one_or_many(data, "workload"), _one_or_many(data, "target", default="native")
    if len(workloads) * len(targets) > MAX_TASKS:
        raise InvalidInput("workloads", f"{len(workloads) * len(targets)} search tasks", f"at most {MAX_TASKS}")
    for field, item in workloads:
        try:
            workload = workload_from_json(item)
        except InvalidInput as error:
            raise error.within(field) from None
        used = _used(shape_vars, workload) if "workloads" in data else shape_vars
        for target_field, target in targets:
            try:
                task = SearchTask(
                    workload,
                    shape_vars=used,
                    instances=instances if used == shape_vars else _projected(instances, shape_vars, used),
                    target=target,
                    threads=data.get("threads", 1),
                    max_kernels=data.get("max_kernels", 8),
                )
            except InvalidInput as error:
                raise _placed(error, field, target_field) from None
            tasks.append(task)
            counts.append(_count(item, field))
    used_names = frozenset().union(*(task.workload.variables for task in tasks))
    for var in shape_vars:
        if var.name not in used_names:
            raise InvalidInput(f"shape_vars.{var.name}", "no dim of any workload uses it", "leave it out")
    return JobSpec(
        name=_name(data.get("name", tasks[0].workload.label[:MAX_NAME])),
        tasks=tuple(tasks),
        counts=tuple(counts),
        device=_device(data.get("device", "local")),
        policy=check_policy(data.get("policy", DEFAULT_POLICY)),
        budget=parse_budget(data.get("budget")),
        seed=_seed(data.get("seed", 0)),
        source=dict(data),
    )


def _used(shape_vars: tuple[ShapeVar, ...], workload: Workload) -> tuple[ShapeVar, ...]:
    return tuple(var for var in shape_vars if var.name in workload.variables)


def _projected(
    instances: list[WorkloadInstance] | None, declared: tuple[ShapeVar, ...], used: tuple[ShapeVar, ...]
) -> list[WorkloadInstance] | None:
    """A job's instances for a workload that uses some of its variables: where shapes become one, weights add up."""
    if instances is None:
        return None
    dropped = {var.name for var in declared} - {var.name for var in used}
    weights: dict[tuple[tuple[str, int], ...], float] = {}
    for instance in instances:
        kept = tuple((name, value) for name, value in instance.values if name not in dropped)
        weights[kept] = weights.get(kept, 0.0) + instance.weight
    return [WorkloadInstance(values, weight) for values, weight in weights.items()]


def parse_budget(data: object) -> Budget:
    form = "as in {trials: 256, seconds: 180}"
    if not isinstance(data, Mapping):
        raise InvalidInput("budget", "is missing" if data is None else f"{data!r} is not a mapping", form)
    unknown = sorted(set(map(str, data)) - {"trials", "seconds"})
    if unknown:
        raise InvalidInput(f"budget.{unknown[0]}", "is not a field of a budget", form)
    trials, seconds = data.get("trials"), data.get("seconds")
    if trials is None and seconds is None:
        raise InvalidInput("budget", "has neither trials nor seconds", form)
    if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int) or trials < 0):
        raise InvalidInput("budget.trials", f"{trials!r} is not a number of trials", "an integer, 0 or more")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS
    ):
        raise InvalidInput("budget.seconds", f"{seconds!r} is not a time", f"above 0, at most {MAX_SECONDS}")
    return Budget(trials, None if seconds is None else float(seconds))


def check_policy(policy: object) -> str:
    """The name of a search policy. Raises InvalidInput."""
    if policy not in POLICIES:
        raise InvalidInput("policy", f"{policy!r} is not known", f"one of: {', '.join(POLICIES)}")
    return str(policy)


def _one_or_many(data: Mapping[str, Any], name: str, default: object = None) -> list[tuple[str, Any]]:
    """The values under ``name`` or its plural, each with the path of its field."""
    plural = name + "s"
    if name in data and plural in data:
        raise InvalidInput(plural, f"{name} and {plural} are both given", "give one of them")
    if plural not in data:
        if name not in data and default is None:
            raise InvalidInput(name, "is missing", "as in {op: dense, args: {m: 16*T, n: 2304, k: 768}}")
        return [(name, data.get(name, default))]
    items = data[plural]
    if not isinstance(items, list) or not items:
        raise InvalidInput(plural, f"{items!r} is not a list with something in it", f"a list of {name}s")
    return [(f"{plural}[{index}]", item) for index, item in enumerate(items)]


def _placed(error: InvalidInput, workload_field: str, target_field: str) -> InvalidInput:
    """Errors of SearchTask name ``workload...`` or ``target...``: put in which of several it was."""
    for name, field in (("workload", workload_field), ("target", target_field)):
        if error.field == name or error.field.startswith(name + "."):
            return InvalidInput(field + error.field[len(name) :], error.problem, error.remedy)
    return error


def _count(item: object, field: str) -> int:
    count = item.get("count", 1) if isinstance(item, Mapping) else 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidInput(f"{field}.count", f"{count!r} is not a count", "an integer of 1 or more")
    return count


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME or not name.isprintable():
        raise InvalidInput("name", f"{str(name)[:40]!r} will not do", f"1 to {MAX_NAME} printable characters")
    return name


def _device(device: object) -> str:
    if not isinstance(device, str) or not device:
        raise InvalidInput("device", f"{device!r} is not a device key", "a key that a device registered with")
    return device


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidInput("seed", f"{seed!r} is not a seed", "an integer from 0 to 2**32 - 1")
    return seed
