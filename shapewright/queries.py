"""How a client states its query: a workload by its key or by what has one, shapes and ranges in symbols."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.job.cache import Cache, parse_cache
from tuner.program.job.instances import parse_shape
from tuner.program.job.jobspec import parse_job
from tuner.program.job.range_text import Ranges, check_ranges, format_ranges, parse_ranges
from tuner.program.job.task import SearchTask
from tuner.program.language.spans import span_of, span_of_extent, span_to_json
from tuner.program.language.workload import JsonObject, Workload, format_shape
from tuner.program.target import Target, native
from tuner.program.target.cuda import PRODUCTS

WorkloadLike = str | SearchTask | Workload | Mapping[str, Any]
"""A workload's key, something that has one, or the content of a job file for one workload."""
RangesLike = str | Ranges
"""``T=1..512``, ``T=8..512:8``, or ``{"T": (1, 512)}``, ``{"T": range(8, 513, 8)}``. Without a step the ends count."""

DEFAULT_BUDGET = {"trials": 256, "seconds": 180}
"""Of a search task that is submitted without one: that of the example in the reference."""
ONLY_WARM = "the service is of an earlier release, which has libraries for warm caches alone"
JOB_SUFFIXES = (".yaml", ".yml", ".json")


def part(name: str) -> str:
    """A name as one segment of a path. Raises InvalidInput."""
    if not name or not all(char.isalnum() or char in "-_." for char in name) or set(name) == {"."}:
        raise InvalidInput("id", f"{name!r} is not a name of the service", "letters, digits, - and _")
    return name


def key_of(workload: WorkloadLike) -> str:
    return part(workload) if isinstance(workload, str) else workload_of(workload).key


def symbols_text(workload: WorkloadLike, shape: Mapping[str, int] | str) -> str:
    """``m=592``: values of the workload's symbols, which mean the same to every job. A key's are taken as they are."""
    if isinstance(workload, str):
        return shape if isinstance(shape, str) else format_shape(shape)
    given = parse_shape(shape) if isinstance(shape, str) else dict(shape)
    result = workload_of(workload)
    if set(given) != result.variables:
        names = ", ".join(sorted(result.variables)) or "no variable"
        raise InvalidInput("shape", f"{format_shape(given) or 'nothing'} does not fit {result}", f"give {names}")
    return format_shape(result.dims(given))


def workload_of(workload: Workload | SearchTask | Mapping[str, Any]) -> Workload:
    if isinstance(workload, Workload):
        return workload
    if isinstance(workload, SearchTask):
        return workload.workload
    result = {task.workload.key: task.workload for task in parse_job(workload).tasks}
    if len(result) > 1:
        raise InvalidInput("workloads", f"the job has {len(result)} of them", f"name one: {', '.join(sorted(result))}")
    return next(iter(result.values()))


def task_of(workload: WorkloadLike) -> SearchTask | None:
    """The search task, of a task or a job; None of what has no ranges, instances, target or threads of its own."""
    if isinstance(workload, SearchTask):
        return workload
    if isinstance(workload, Mapping):
        workload_of(workload)
        return parse_job(workload).tasks[0]
    return None


def submitted(job: SearchTask | Mapping[str, Any] | str | bytes | Path, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """The body that submits a job, and its media type.

    A text on one line that ends as the name of a job file does is a path. Raises InvalidInput, OSError.
    """
    if isinstance(job, SearchTask):
        job = without_usual({"budget": DEFAULT_BUDGET, **job.to_json()})
    if isinstance(job, Mapping):
        return json.dumps({**job, **fields}).encode(), "application/json"
    if fields:
        remedy = "write them into the file, or give a search task or a mapping"
        raise InvalidInput(next(iter(fields)), "a job file has its own fields", remedy)
    if isinstance(job, str) and "\n" not in job and Path(job).suffix in JOB_SUFFIXES:
        job = Path(job)
    if isinstance(job, Path):
        return job.read_bytes(), "application/yaml"
    if not isinstance(job, str | bytes):
        problem = f"{type(job).__name__} is no job"
        raise InvalidInput("job", problem, "a SearchTask, a mapping, the path of a job file, or its text")
    return job.encode() if isinstance(job, str) else job, "application/yaml"


def without_usual(job: Mapping[str, Any]) -> JsonObject:
    """A job or a query without the state of the caches, where it is the usual one: so services of earlier releases take
    them."""
    return {name: value for name, value in job.items() if (name, value) != ("cache", Cache.WARM.value)}


def library_query(
    workload: WorkloadLike,
    *,
    target: str | None = None,
    threads: int | None = None,
    cache: str | None = None,
    ranges: RangesLike | None = None,
    job: str | None = None,
    digest: str | None = None,
    alias: str | None = None,
) -> JsonObject:
    """The body of a query for the served library.

    A task or a job brings its own target, threads, caches, range and instances, as far as they are not given. For the
    library of a job or a digest only what is given counts. Raises InvalidInput on fields ``range``, ``cache``.
    """
    given = parse_ranges(ranges) if isinstance(ranges, str) else ranges
    asked: JsonObject = {"target": target, "threads": threads, "job": job, "digest": digest, "alias": alias}
    asked["cache"] = None if cache is None else parse_cache(cache).value
    task = task_of(workload)
    own = {var.name: span_of(var.values) for var in task.shape_vars} if task else {}
    if task is not None and target is None and task.target is not None:
        asked["target"] = task.target.fingerprint
    if task is not None and job is None and digest is None:
        asked["threads"] = threads or task.threads
        asked["cache"] = asked["cache"] or task.cache.value
        asked["instances"] = [
            {"shape": task.workload.dims(instance.shape), "weight": instance.weight} for instance in task.instances
        ]
        given = given or own
    if given:
        asked["range"] = _symbol_ranges(workload, own, given)
    return {name: value for name, value in asked.items() if value is not None}


def check_knows_caches(answer: Mapping[str, Any], cache: str | None) -> None:
    """Raise InvalidInput where a service of an earlier release took no notice of ``cache``: what it answers with was
    timed with warm caches."""
    if cache not in (None, Cache.WARM) and "cache" not in answer:
        raise InvalidInput("cache", f"is {cache}, and {ONLY_WARM}", "upgrade the service, or leave cache out")


def target_named(workload: WorkloadLike, fingerprint: str | None) -> Target | None:
    """The target of a fingerprint: the workload's own, this machine's, or that of a GPU's product; None of others."""
    task = task_of(workload)
    own = task.target if task is not None else None
    gpus = map(Target.of_gpu, PRODUCTS.values())
    known = {target.fingerprint: target for target in (own, native(), *gpus) if target is not None}
    return known.get(fingerprint or "")


def _symbol_ranges(workload: WorkloadLike, own: Ranges, given: Ranges) -> JsonObject:
    """The ranges in the workload's symbols where it is known here, else as given: the service knows it."""
    check_ranges(given)
    result = given if isinstance(workload, str) else _translated(workload_of(workload), own, given)
    return {name: span_to_json(span) for name, span in result.items()}


def _translated(workload: Workload, own: Ranges, given: Ranges) -> Ranges:
    known = {**own, **given}
    if set(given) <= workload.variables <= set(known):
        return {name: span_of_extent(expr, known) for name, expr in workload.symbol_exprs.items()}
    if set(given) == set(workload.symbols):
        return given
    names = ", ".join(sorted(workload.variables)) or "no variable: every extent is fixed"
    raise InvalidInput("range", f"{format_ranges(given)} does not fit {workload}", f"give {names}")
