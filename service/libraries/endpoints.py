"""The routes about libraries of workloads and their names."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response

from service.access.scopes import PROMOTE, READ
from service.dependencies import BLANK, CallerDep, ClientDep, Cursor, Limit, StorageDep
from service.json_response import JsonResponse
from service.libraries import service
from service.libraries.schemas import (
    MAX_THREADS,
    AliasList,
    AliasOut,
    JobLibraries,
    LibraryPage,
    PromotionIn,
    PromotionPage,
    RollBackIn,
    ServedIn,
    ServedOut,
)
from service.problems.openapi import answers
from service.workloads.service import fingerprint
from tuner.program.job.cache import Cache
from tuner.storage import AliasQuery, LibraryQuery, PromotionOrder

router = APIRouter(tags=["libraries"])

TargetQuery = Annotated[str | None, Query(max_length=200, description="a target's fingerprint; the newest if left out")]
ThreadsQuery = Annotated[
    int | None, Query(ge=1, le=MAX_THREADS, description="1, or the only number there is, if left out"), BLANK
]
CacheQuery = Annotated[
    Cache | None,
    Query(description="how its calls find their operands: warm, cold or streamed; warm, or the only one there is, if "
          "left out"),
    BLANK,
]  # fmt: skip
RangeQuery = Annotated[
    str | None,
    Query(
        alias="range",
        max_length=1000,
        description="what the library must cover, the widest if left out: the workload's symbols, as in m=16..512, "
        "or the newest job's variables, as in T=1..32; with a step as in m=16..512:16, or listed as in m=16|32|64",
    ),
]
JobQuery = Annotated[str | None, Query(max_length=200, description="the library that this job built"), BLANK]
DigestQuery = Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="the library of this digest"), BLANK]
AliasQueryText = Annotated[str | None, Query(max_length=200, description="the library of this name"), BLANK]
AliasName = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
IfNoneMatch = Annotated[str | None, Header(max_length=4000)]


def _asked(
    key: str,
    storage: StorageDep,
    *,
    target: TargetQuery = None,
    threads: ThreadsQuery = None,
    cache: CacheQuery = None,
    range_text: RangeQuery = None,
    job: JobQuery = None,
    digest: DigestQuery = None,
    alias: AliasQueryText = None,
) -> LibraryQuery:
    return service.query_of(
        storage, key, target=target, threads=threads, cache=cache, range_text=range_text, job=job, digest=digest,
        alias=alias,
    )  # fmt: skip


def _of(key: str, target: TargetQuery = None, threads: ThreadsQuery = None, cache: CacheQuery = None) -> AliasQuery:
    return AliasQuery(key, None, fingerprint(target), threads, cache)


AskedDep = Annotated[LibraryQuery, Depends(_asked)]
PlaceDep = Annotated[AliasQuery, Depends(_of)]


@router.get(
    "/workloads/{key}/library",
    dependencies=[READ],
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}},
)
def library(asked: AskedDep, storage: ClientDep, if_none_match: IfNoneMatch = None) -> Response:
    """The best library that covers the range, as a ZIP archive of its files; or the one of a job, digest or name.

    304 if the client has it already.
    """
    artifact = storage.serve(asked)
    if service.is_known(artifact, if_none_match):
        return Response(status_code=304, headers={"ETag": service.etag(artifact)})
    content = service.archive(storage.artifact_files(artifact.digest))
    return Response(content, media_type="application/zip", headers=service.library_headers(artifact, content))


@router.get("/workloads/{key}/dispatcher", dependencies=[READ], response_model=dict[str, Any])
def dispatcher(asked: AskedDep, storage: ClientDep, if_none_match: IfNoneMatch = None) -> Response:
    """The dispatch table of the library that the same parameters give: which micro-kernel serves which shape.

    304 if the client has it already.
    """
    artifact = storage.serve(asked)
    headers = {"ETag": service.etag(artifact), "Cache-Control": "no-cache"}
    if service.is_known(artifact, if_none_match):
        return Response(status_code=304, headers=headers)
    return JsonResponse(artifact.dispatch, headers=headers)


@router.post("/workloads/{key}/served", dependencies=[READ])
def served(key: str, asked: ServedIn, storage: StorageDep) -> ServedOut:
    """Which library is served, of which job, and how it compares with the others. Changes nothing."""
    return ServedOut.found(storage.served(service.asked_of(storage, key, asked)))


@router.get("/workloads/{key}/libraries", dependencies=[READ])
def libraries(place: PlaceDep, storage: ClientDep, cursor: Cursor = None, limit: Limit = 50) -> LibraryPage:
    """Every library of a workload, served or not, newest first."""
    query = LibraryQuery(place.workload_key, place.target_fingerprint, place.threads, cache=place.cache)
    return LibraryPage.model_validate(storage.list_libraries(query, cursor, limit))


@router.get("/jobs/{job_id}/libraries", dependencies=[READ])
def libraries_of_job(job_id: str, storage: ClientDep) -> JobLibraries:
    """What a job has built, in the order of its search tasks."""
    return JobLibraries.of(storage.libraries_of_job(job_id))


@router.get("/workloads/{key}/aliases", dependencies=[READ])
def aliases(place: PlaceDep, storage: ClientDep) -> AliasList:
    """The names of a workload's libraries, in order of target, threads, caches and name."""
    return AliasList(items=[AliasOut.model_validate(alias) for alias in storage.list_aliases(place)])


@router.post("/workloads/{key}/aliases/{name}", dependencies=[PROMOTE], responses=answers(409))
def promote(name: AliasName, place: PlaceDep, body: PromotionIn, storage: ClientDep, caller: CallerDep) -> AliasOut:
    """Give a name to a library, and the rule by which it may move on."""
    order = PromotionOrder(caller.name, body.reason, body.at_least_percent, caller.id)
    return AliasOut.model_validate(storage.promote(_named(place, name), body.digest, order))


@router.post("/workloads/{key}/aliases/{name}/rollback", dependencies=[PROMOTE], responses=answers(409))
def roll_back(name: AliasName, place: PlaceDep, body: RollBackIn, storage: ClientDep, caller: CallerDep) -> AliasOut:
    """Give a name back to the library that had it before. Its rule ends: what was taken back does not come again."""
    order = PromotionOrder(caller.name, body.reason, actor=caller.id)
    return AliasOut.model_validate(storage.roll_back(_named(place, name), order))


@router.get("/workloads/{key}/history", dependencies=[READ])
def history(
    place: PlaceDep, storage: ClientDep, alias: AliasQueryText = None, cursor: Cursor = None, limit: Limit = 50
) -> PromotionPage:
    """How names came to stand for libraries, newest first."""
    return PromotionPage.model_validate(storage.list_promotions(_named(place, alias), cursor, limit))


def _named(place: AliasQuery, name: str | None) -> AliasQuery:
    return replace(place, name=name)
