"""Looking up kernels of a workload, and sending libraries."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from service.workloads.schemas import BestOut
from tuner.errors import InvalidInput
from tuner.library import lookup
from tuner.library.dispatcher import Dispatcher, kernel_json
from tuner.program.task import parse_shape
from tuner.program.workload import JsonObject, format_shape
from tuner.storage import Artifact, LibraryStorage, NotFound, RecordStorage, SearchTaskRow, WorkloadStorage

_EPOCH = (1980, 1, 1, 0, 0, 0)


class LookupStorage(WorkloadStorage, RecordStorage, LibraryStorage, Protocol):
    """What a lookup reads."""


def best(storage: LookupStorage, workload_key: str, target: str | None, shape_text: str) -> BestOut:
    """The best known kernel for a shape, which gives the workload's symbols or the newest job's shape variables.

    Raises NotFound, and InvalidInput for a shape that does not fit.
    """
    row = storage.latest_task(workload_key, fingerprint(target))
    dims = lookup.dims_of(row.task, parse_shape(shape_text))
    dispatcher, threads = _dispatcher_of(storage, row), row.task.threads
    exact = storage.best_record(workload_key, row.target_fingerprint, threads, format_shape(dims))
    # Records of other shapes matter only where no library answers: reading them is the costly part.
    others = dispatcher is None and exact is None
    records = storage.records_of_workload(workload_key, row.target_fingerprint, threads) if others else ()
    answer = lookup.best(row.task, dispatcher, exact, records, dims)
    return BestOut(
        workload_key=workload_key,
        target_fingerprint=row.target_fingerprint,
        threads=threads,
        shape=dims,
        served_by=kernel_json(answer.served_by) if answer.served_by else None,
        **answer.to_json(),
    )


def fingerprint(target: str | None) -> str | None:
    """The ``target`` of a query, None if it is left out. ``native`` means nothing to a service: whose would it be?"""
    if target == "native":
        remedy = "a fingerprint, as GET /v1/devices lists them"
        raise InvalidInput("target", "native is another target on every machine", remedy)
    return target or None


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


def _dispatcher_of(storage: LibraryStorage, row: SearchTaskRow) -> Dispatcher | None:
    """The dispatcher of the newest library, unless that was built for another number of threads."""
    try:
        artifact = storage.latest_artifact(row.workload_key, row.target_fingerprint)
    except NotFound:
        return None
    return _parsed(_Table(artifact.digest, artifact.dispatch)) if artifact.threads == row.task.threads else None


@dataclass(frozen=True)
class _Table:
    """A dispatch table, which the digest of its library tells from every other."""

    digest: str
    dispatch: JsonObject = field(compare=False)


@lru_cache(maxsize=256)
def _parsed(table: _Table) -> Dispatcher:
    return Dispatcher.from_json(table.dispatch)
