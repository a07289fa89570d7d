"""The routes under /workloads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from service.dependencies import Cursor, LibrariesDep, Limit, StorageDep, WorkloadsDep
from service.workloads import service
from service.workloads.schemas import BestOut, WorkloadOut, WorkloadPage
from tuner.storage import Artifact, LibraryStorage

router = APIRouter(prefix="/workloads", tags=["workloads"])

TargetQuery = Annotated[str | None, Query(max_length=200, description="a target's fingerprint; the newest if left out")]
ShapeQuery = Annotated[
    str,
    Query(
        max_length=1000,
        description="the workload's symbols, as in m=592; or the newest job's variables, as in T=37,S=4",
    ),
]
JobQuery = Annotated[str | None, Query(max_length=200, description="only what this job built")]
DigestQuery = Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="the digest of one library")]


@router.get("")
def list_workloads(storage: WorkloadsDep, cursor: Cursor = None, limit: Limit = 50) -> WorkloadPage:
    """Workloads that some job was submitted for, newest first."""
    return WorkloadPage.of(storage.list_workloads(cursor, limit))


@router.get("/{key}")
def get_workload(key: str, storage: WorkloadsDep) -> WorkloadOut:
    return WorkloadOut.of(storage.get_workload(key))


@router.get("/{key}/best")
def best(key: str, storage: StorageDep, shape: ShapeQuery = "", target: TargetQuery = None) -> BestOut:
    """The best known micro-kernel for one shape, and how it was found."""
    return service.best(storage, key, target, shape)


@router.get("/{key}/dispatcher")
def dispatcher(
    key: str, storage: LibrariesDep, response: Response, target: TargetQuery = None, job: JobQuery = None
) -> dict[str, Any]:
    """The dispatch table of the newest library (of one job, where given): which micro-kernel serves which shape."""
    artifact = storage.latest_artifact(key, service.fingerprint(target), job)
    response.headers["ETag"] = service.etag(artifact)
    return artifact.dispatch


@router.get("/{key}/library", response_class=Response, responses={200: {"content": {"application/zip": {}}}})
def library(
    key: str,
    storage: LibrariesDep,
    *,
    target: TargetQuery = None,
    job: JobQuery = None,
    digest: DigestQuery = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The newest library that fits, as a ZIP archive of its files. 304 if the client has it already."""
    artifact = storage.latest_artifact(key, service.fingerprint(target), job, digest)
    if if_none_match == service.etag(artifact):
        return Response(status_code=304, headers={"ETag": service.etag(artifact)})
    return _packed(storage, artifact)


def _packed(storage: LibraryStorage, artifact: Artifact) -> Response:
    content = service.archive(storage.artifact_files(artifact.digest))
    return Response(content, media_type="application/zip", headers=service.library_headers(artifact, content))
