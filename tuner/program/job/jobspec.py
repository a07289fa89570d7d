"""Job files: what a user submits, in YAML or JSON, checked whole before anything is stored or run.

The work of checking is bounded by what is counted (tuner.program.language.effort), and so is what a job makes the
database hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from tuner.errors import MAX_SHOWN, InvalidInput, did_you_mean, shown
from tuner.program.job.build import workload_from_json
from tuner.program.job.instances import MAX_INSTANCES
from tuner.program.job.layers import check_layers, items_of
from tuner.program.job.policies import DEFAULT_POLICY, POLICIES
from tuner.program.job.shape_fields import parse_instances, parse_shape_vars
from tuner.program.job.task import SearchTask, parse_target
from tuner.program.job.webhook import parse_priority, parse_webhook
from tuner.program.language.effort import limited
from tuner.program.language.workload import JsonObject, ShapeVar, Workload, WorkloadInstance
from tuner.program.target import Target

FIELDS = (
    *("name", "workload", "workloads", "shape_vars", "instances", "target", "targets"),
    *("cache", "threads", "device", "policy", "budget", "max_kernels", "seed", "priority", "webhook"),
)
MAX_TASKS = 256
MAX_NAME = 200
"""Characters of a job's name, and of a device key."""
MAX_SECONDS = 366 * 24 * 3600
MAX_TRIALS = 10_000_000
MAX_COUNT = 1_000_000
MAX_LISTED = 4096
"""Values of a shape variable that are listed one by one; a range may have more."""
MAX_STORED = 2_000_000
"""Characters that all search tasks of a job take as JSON: each stores its workload, its variables and its instances."""
MAX_STEPS = 400_000
"""Steps of checking one job (see tuner.program.language.effort)."""
SPLIT = "split it into several jobs"


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
    priority: int = 0
    webhook: str | None = None
    """The URL that is notified when the job has ended."""

    def on(self, target: Target) -> JobSpec:
        """A copy of the job with every ``native`` target filled in by ``target``."""
        return replace(self, tasks=tuple(task if task.target else task.on(target) for task in self.tasks))


def parse_job(data: object, abandoned: Callable[[], bool] = lambda: False) -> JobSpec:
    """Check a job file's content. Raises InvalidInput with the dotted path of the first field that is wrong.

    ``abandoned`` is asked now and then: Abandoned is raised once it says that nobody waits any more.
    """
    with limited(MAX_STEPS, "job", f"{SPLIT}, or give fewer workloads, instances and terms", abandoned):
        return _parsed(data)


def _parsed(data: object) -> JobSpec:
    if not isinstance(data, Mapping):
        raise InvalidInput("job", f"{type(data).__name__} is not a mapping", f"fields: {', '.join(FIELDS)}")
    unknown = min((str(name) for name in data if name not in FIELDS), default=None)
    if unknown is not None:
        field = unknown if 0 < len(unknown) <= MAX_SHOWN else "job"
        meant = did_you_mean(unknown, FIELDS)
        raise InvalidInput(field, f"{shown(unknown)} is not a field of a job", f"{meant}fields: {', '.join(FIELDS)}")
    shape_vars, instances = _shape_vars(data.get("shape_vars")), _instances(data.get("instances"))
    workloads, targets = _one_or_many(data, "workload"), _one_or_many(data, "target", default="native")
    if len(workloads) * len(targets) > MAX_TASKS:
        raise InvalidInput("workloads", f"{len(workloads) * len(targets)} search tasks", f"at most {MAX_TASKS}")
    on_targets = [(field, _target(field, target)) for field, target in targets]
    tasks: list[SearchTask] = []
    counts: list[int] = []
    stored = 0
    for field, item in workloads:
        workload = _workload(field, item)
        used = _used(shape_vars, workload) if "workloads" in data else shape_vars
        dropped = {var.name for var in shape_vars} - {var.name for var in used}
        given = without(dropped, instances) if instances is not None and dropped else instances
        task = _task(field, workload, used, given, data)
        stored += len(targets) * _stored_size(task)
        if stored > MAX_STORED:
            problem = f"the search tasks of the job take more than {MAX_STORED} characters when they are stored"
            raise InvalidInput(field, problem, f"{SPLIT}, or give fewer instances and listed values")
        tasks += [task if target is None else task.on(target) for _, target in on_targets]
        counts += [_count(item, field)] * len(targets)
        check_layers(item, field)
    used_names = frozenset().union(*(task.workload.variables for task in tasks))
    for var in shape_vars:
        if var.name not in used_names:
            raise InvalidInput(f"shape_vars.{var.name}", "no dim of any workload uses it", "leave it out")
    budget = parse_budget(data.get("budget"))
    return JobSpec(
        name=_name(data.get("name", tasks[0].workload.label[:MAX_NAME])),
        tasks=tuple(tasks),
        counts=tuple(counts),
        device=_device(data.get("device", "local")),
        policy=check_policy(data.get("policy", DEFAULT_POLICY)),
        budget=budget,
        seed=_seed(data.get("seed", 0)),
        source=dict(data),
        priority=parse_priority(data.get("priority", 0)),
        webhook=parse_webhook(data.get("webhook")),
    )


def _shape_vars(data: object) -> tuple[ShapeVar, ...]:
    for name, given in data.items() if isinstance(data, Mapping) else ():
        listed = given.get("values") if isinstance(given, Mapping) else None
        if isinstance(listed, list | tuple) and len(listed) > MAX_LISTED:
            field = f"shape_vars.{name}" if len(str(name)) <= MAX_SHOWN else "shape_vars"
            remedy = f"at most {MAX_LISTED}; a range, {{min: ..., max: ...}}, may have more"
            raise InvalidInput(field, f"{len(listed)} values are listed", remedy)
    return parse_shape_vars(data)


def _instances(data: object) -> list[WorkloadInstance] | None:
    if isinstance(data, list) and len(data) > MAX_INSTANCES:
        raise InvalidInput("instances", f"{len(data)} instances", f"give 1 to {MAX_INSTANCES}")
    return parse_instances(data)


def _workload(field: str, item: object) -> Workload:
    try:
        return workload_from_json(item)
    except InvalidInput as error:
        raise error.within(field) from None


def _target(field: str, target: object) -> Target | None:
    """A target of the job, None if it is the device's own."""
    try:
        return parse_target(target)
    except InvalidInput as error:
        raise _placed(error, "target", field) from None


def _task(
    field: str,
    workload: Workload,
    variables: Sequence[ShapeVar],
    instances: list[WorkloadInstance] | None,
    data: Mapping[str, Any],
) -> SearchTask:
    fields = {name: data[name] for name in ("threads", "max_kernels", "cache") if name in data}
    try:
        return SearchTask(workload, shape_vars=variables, instances=instances, **fields)
    except InvalidInput as error:
        raise _placed(error, "workload", field) from None


def _stored_size(task: SearchTask) -> int:
    """Characters that a search task takes as JSON, its target left out."""
    return len(task.workload.source) + sum(
        len(json.dumps(part))
        for part in (
            {var.name: var.to_json() for var in task.shape_vars},
            [instance.to_json() for instance in task.instances],
        )
    )


def _used(shape_vars: tuple[ShapeVar, ...], workload: Workload) -> tuple[ShapeVar, ...]:
    return tuple(var for var in shape_vars if var.name in workload.variables)


def without(names: Collection[str], instances: Sequence[WorkloadInstance]) -> list[WorkloadInstance]:
    """Instances without some of their variables: where shapes become one, weights add up."""
    weights: dict[tuple[tuple[str, int], ...], float] = {}
    for instance in instances:
        kept = tuple((name, value) for name, value in instance.values if name not in names)
        weights[kept] = weights.get(kept, 0.0) + instance.weight
    return [WorkloadInstance(values, weight) for values, weight in weights.items()]


def parse_budget(data: object) -> Budget:
    form = "as in {trials: 256, seconds: 180}"
    if not isinstance(data, Mapping):
        raise InvalidInput("budget", "is missing" if data is None else f"{shown(data)} is not a mapping", form)
    unknown = min((str(name) for name in data if name not in ("trials", "seconds")), default=None)
    if unknown is not None:
        field = f"budget.{unknown}" if len(unknown) <= MAX_SHOWN else "budget"
        raise InvalidInput(field, "is not a field of a budget", did_you_mean(unknown, ("trials", "seconds")) + form)
    trials, seconds = data.get("trials"), data.get("seconds")
    if trials is None and seconds is None:
        raise InvalidInput("budget", "has neither trials nor seconds", form)
    if trials is not None and not _is_int(trials, 0, MAX_TRIALS):
        remedy = f"an integer from 0 to {MAX_TRIALS}"
        raise InvalidInput("budget.trials", f"{shown(trials)} is not a number of trials", remedy)
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS
    ):
        raise InvalidInput("budget.seconds", f"{shown(seconds)} is not a time", f"above 0, at most {MAX_SECONDS}")
    return Budget(trials, None if seconds is None else float(seconds))


def check_measured(spec: JobSpec, devices: Iterable[Target]) -> None:
    """Raise InvalidInput on field ``budget.trials`` for a search that none of these devices, those of its key, can
    measure: CPUs of one that another kind of hardware is searched for, a GPU other than the target."""
    own = list(devices)
    targets = (task.target for task in spec.tasks if task.target is not None)
    target = next((each for each in targets if not any(map(each.is_measured_on, own))), None)
    if target is None or spec.budget.trials == 0:
        return
    trials = "trials" if spec.budget.trials is None else f"{spec.budget.trials} trials"
    known = " and ".join(sorted({str(each) for each in own}))
    problem = f"{trials} need a device that runs code for {target}, those of key {spec.device!r} run it for {known}"
    remedy = "another `device`, or trials: 0, for the library that theory alone chooses"
    raise InvalidInput("budget.trials", problem, remedy)


def check_policy(policy: object) -> str:
    """The name of a search policy. Raises InvalidInput."""
    if not isinstance(policy, str) or policy not in POLICIES:
        remedy = f"{did_you_mean(policy, POLICIES)}one of: {', '.join(POLICIES)}"
        raise InvalidInput("policy", f"{shown(policy)} is not known", remedy)
    return policy


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
        raise InvalidInput(plural, f"{shown(items)} is not a list with something in it", f"a list of {name}s")
    return [(f"{plural}[{index}]", item) for index, item in enumerate(items)]


def _placed(error: InvalidInput, name: str, field: str) -> InvalidInput:
    """Errors name ``workload...`` or ``target...``: put in which of several it was."""
    if error.field == name or error.field.startswith(name + "."):
        return InvalidInput(field + error.field[len(name) :], error.problem, error.remedy)
    return error


def _count(item: object, field: str) -> int:
    count = item.get("count", 1) if isinstance(item, Mapping) else 1
    if not _is_int(count, 1, MAX_COUNT):
        raise InvalidInput(f"{field}.count", f"{shown(count)} is not a count", f"an integer from 1 to {MAX_COUNT}")
    return count


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME or not name.isprintable():
        raise InvalidInput("name", f"{shown(name)} will not do", f"1 to {MAX_NAME} printable characters")
    return name


def _device(device: object) -> str:
    if not isinstance(device, str) or not 0 < len(device) <= MAX_NAME or not device.isprintable():
        remedy = f"a key that a device registered with, at most {MAX_NAME} printable characters"
        raise InvalidInput("device", f"{shown(device)} is not a device key", remedy)
    return device


def _seed(seed: object) -> int:
    if not _is_int(seed, 0, 2**32 - 1):
        raise InvalidInput("seed", f"{shown(seed)} is not a seed", "an integer from 0 to 2**32 - 1")
    return seed


def counts_of(source: Mapping[str, Any]) -> list[int]:
    """How often the model holds the workload of each search task, in order, of a job file that was checked."""
    return [item.get("count", 1) if isinstance(item, Mapping) else 1 for item in items_of(source)]


def _is_int(value: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
