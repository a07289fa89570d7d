"""Queries as clients write them: with the key of a workload, or with what a job says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from service.lookup.lookups import Query
from service.workloads.service import fingerprint
from tuner.errors import InvalidInput, ShapewrightError, shown
from tuner.program.job.build import workload_from_json
from tuner.program.job.cache import Cache, parse_cache
from tuner.program.job.instances import parse_shape
from tuner.program.language.dims import MAX_DIM
from tuner.program.language.effort import limited
from tuner.program.language.workload import Workload, format_shape
from tuner.program.target import Target
from tuner.storage import LookupScope

FIELDS = ("workload", "workload_key", "shape", "target", "threads", "cache", "job")
MAX_THREADS = 1024
MAX_NAME = 200
MAX_SYMBOLS = 64
MAX_STEPS = 1_500_000
"""Steps to check what one call describes (tuner.program.language.effort). A thousand convolutions take two thirds."""


@dataclass(frozen=True, slots=True)
class Described:
    """A query for a workload that was described. One without symbols may be an instance of a dynamic workload."""

    query: Query
    workload: Workload


def parse_queries(
    items: Sequence[object], abandoned: Callable[[], bool] = lambda: False
) -> list[Query | Described | ShapewrightError]:
    """Each query, or what is wrong with it. Fields of errors are relative to the query.

    Raises InvalidInput on ``queries`` where checking all of them takes too long, and Abandoned.
    """
    remedy = "name workloads by their keys, or ask in several calls"
    with limited(MAX_STEPS, "queries", remedy, abandoned):
        return [_parsed_or_refused(item) for item in items]


def _parsed_or_refused(item: object) -> Query | Described | ShapewrightError:
    try:
        return _parsed(item)
    except ShapewrightError as error:
        return error


def parse_target(target: object) -> str | None:
    """The fingerprint of a query's target: the text itself, or that of a job's ``{kind: llvm, ...}``; None without."""
    if isinstance(target, Mapping):
        return Target.from_json(target).fingerprint
    return fingerprint(_name("target", target))


def _parsed(item: object) -> Query | Described:
    if not isinstance(item, Mapping):
        raise InvalidInput("", f"{shown(item)} is not a mapping", "give workload or workload_key, and shape")
    unknown = min((str(name) for name in item if name not in FIELDS), default=None)
    if unknown is not None:
        raise InvalidInput(unknown[:MAX_NAME], "is not a field of a query", f"fields: {', '.join(FIELDS)}")
    if ("workload" in item) == ("workload_key" in item):
        raise InvalidInput("workload", "give a workload or the key of one", "workload, or workload_key: wl-...")
    shape = _shape(item.get("shape"))
    if "workload_key" in item:
        return Query(_scope(item, _name("workload_key", item["workload_key"])), shape)
    workload = _workload(item["workload"])
    return Described(Query(_scope(item, workload.key), _symbols(workload, shape)), workload)


def _scope(item: Mapping[str, Any], key: str) -> LookupScope:
    threads = item.get("threads", 1)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise InvalidInput("threads", f"{shown(threads)} will not do", f"an integer from 1 to {MAX_THREADS}")
    target, job, cache = parse_target(item.get("target")), _name("job", item.get("job")) or None, item.get("cache")
    return LookupScope(key, target, threads, job, Cache.WARM if cache is None else parse_cache(cache))


def _name(field: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise InvalidInput(field, f"{shown(value)} is not a name", f"a text of at most {MAX_NAME} characters")
    return value


def _shape(shape: object) -> dict[str, int]:
    if shape is None:
        return {}
    if isinstance(shape, str):
        return parse_shape(shape[: 64 * MAX_SYMBOLS])
    if not isinstance(shape, Mapping) or len(shape) > MAX_SYMBOLS:
        raise InvalidInput("shape", f"{shown(shape)} is not a shape", "as in {T: 37}")
    for name, size in shape.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_DIM:
            raise InvalidInput(f"shape.{str(name)[:MAX_NAME]}", f"{shown(size)} is not a size", f"0 to {MAX_DIM}")
    return {str(name): size for name, size in shape.items()}


def _workload(data: object) -> Workload:
    try:
        return _read(json.dumps(data, sort_keys=True))
    except InvalidInput as error:
        raise error.within("workload") from None


@lru_cache(maxsize=4096)
def _read(text: str) -> Workload:
    return workload_from_json(json.loads(text))


def _symbols(workload: Workload, shape: Mapping[str, int]) -> dict[str, int]:
    """The values of the symbols at a shape in the workload's variables, or in the symbols themselves."""
    if shape.keys() == workload.variables:
        return workload.dims(shape)
    if shape.keys() == set(workload.symbols):
        return dict(shape)
    names = ", ".join(sorted(workload.variables)) or "no variable"
    raise InvalidInput("shape", f"{format_shape(shape) or 'nothing'} does not fit {workload}", f"give {names}")
