"""The library that a request means, and libraries as archives."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence

from service.libraries.schemas import InstanceIn, ServedIn
from service.workloads.service import fingerprint
from tuner.errors import InvalidInput
from tuner.library.choice import Point
from tuner.program.job.cache import CACHES, Cache
from tuner.program.job.range_text import Ranges, check_ranges, format_ranges, parse_ranges
from tuner.program.job.task import SearchTask
from tuner.program.language.spans import span_of, span_of_extent
from tuner.program.language.workload import format_shape
from tuner.storage import Artifact, LibraryQuery, NotFound, SearchTaskRow
from tuner.storage.sql import ClientStorage

_EPOCH = (1980, 1, 1, 0, 0, 0)

Place = tuple[str, int, Cache]
"""A target's fingerprint, a number of threads, and a state of the caches: libraries compete within one."""


def query_of(
    storage: ClientStorage,
    key: str,
    *,
    target: str | None,
    threads: int | None,
    cache: Cache | None,
    range_text: str | None,
    job: str | None,
    digest: str | None,
    alias: str | None,
) -> LibraryQuery:
    """The query that the parameters of a URL make. Raises InvalidInput, NotFound for a workload that is not known."""
    ranges = symbol_ranges(storage, key, parse_ranges(range_text)) if range_text else None
    return LibraryQuery(key, fingerprint(target), threads, ranges, job, digest, alias, cache=cache)


def asked_of(storage: ClientStorage, key: str, asked: ServedIn) -> LibraryQuery:
    """The query that a body makes. Raises InvalidInput, NotFound for a workload that is not known."""
    ranges = symbol_ranges(storage, key, asked.range) if asked.range else None
    points = _points(storage.latest_task(key).task, asked.instances) if asked.instances else ()
    target = fingerprint(asked.target)
    return LibraryQuery(key, target, asked.threads, ranges, asked.job, asked.digest, asked.alias, points, asked.cache)


def served_tasks(storage: ClientStorage, key: str) -> dict[str, SearchTaskRow]:
    """The search task, by target, that built the library which is served there, with the least number of threads, for
    warm caches where there is one.

    Targets without a library are left out. Raises NotFound for a workload that is not known.
    """
    rows = storage.tasks_of_workload(key)
    tasks: dict[str, SearchTaskRow] = {}
    for target, threads, cache in places_of(rows):
        if target in tasks:
            continue
        try:
            job_id = storage.served(LibraryQuery(key, target, threads, cache=cache)).library.job_id
        except NotFound:
            continue  # none was built, or what was built is withdrawn
        there = (row for row in rows if _place(row) == (target, threads, cache))
        tasks[target] = next(row for row in there if row.job_id == job_id)
    return tasks


def places_of(rows: Iterable[SearchTaskRow]) -> list[Place]:
    """Where libraries of these searches compete, in order of target, threads and caches, warm ones first."""
    return sorted({_place(row) for row in rows}, key=lambda place: (*place[:2], CACHES.index(place[2])))


def _place(row: SearchTaskRow) -> Place:
    return row.target_fingerprint, row.task.threads, row.task.cache


def symbol_ranges(storage: ClientStorage, key: str, given: Ranges) -> Ranges:
    """Ranges of the workload's symbols. Others may be of the newest job's shape variables, some of them or all.

    Raises InvalidInput on field ``range``, NotFound.
    """
    check_ranges(given)
    task = storage.latest_task(key).task
    exprs = task.workload.symbol_exprs
    if set(given) == set(exprs):
        return given
    if not set(given) <= set(task.ranges):
        named = " or ".join(", ".join(names) for names in (exprs, task.ranges) if names) or "none: all sizes are fixed"
        raise InvalidInput("range", f"gives {format_ranges(given)}", f"give {named}")
    spans = {var.name: span_of(var.values) for var in task.shape_vars} | dict(given)
    return {name: span_of_extent(expr, spans) for name, expr in exprs.items()}


def _points(task: SearchTask, instances: Sequence[InstanceIn]) -> tuple[Point, ...]:
    symbols = task.workload.symbols
    for index, instance in enumerate(instances):
        if set(instance.shape) != set(symbols):
            given = format_shape(instance.shape) or "nothing"
            remedy = f"the workload's symbols: {', '.join(symbols) or 'none'}"
            raise InvalidInput(f"instances[{index}].shape", f"gives {given}", remedy)
    if not any(instance.weight for instance in instances):
        raise InvalidInput("instances", "every weight is 0", "at least one above 0")
    return tuple(Point(instance.shape, instance.weight) for instance in instances if instance.weight)


def archive(files: Mapping[str, bytes]) -> bytes:
    """The files as a ZIP archive, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name in sorted(files):
            packed.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED, compresslevel=1)
    return buffer.getvalue()


def library_headers(artifact: Artifact, content: bytes) -> dict[str, str]:
    """``ETag`` names the library by its digest; ``Content-Digest`` (RFC 9530) lets the receiver check the transfer."""
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return {
        "ETag": etag(artifact),
        "Content-Digest": f"sha-256=:{digest}:",
        "Content-Disposition": f'attachment; filename="{artifact.workload_key}.zip"',
        "Cache-Control": "no-cache",
    }


def etag(artifact: Artifact) -> str:
    return f'"{artifact.digest}"'


def is_known(artifact: Artifact, if_none_match: str | None) -> bool:
    """Whether the client has this library already, by its ``If-None-Match``."""
    tags = (tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(","))
    return any(tag in ("*", etag(artifact)) for tag in tags)
