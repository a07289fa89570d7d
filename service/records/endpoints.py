"""The routes under /records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio
from anyio import from_thread, to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.access.scopes import ADMIN, READ
from service.dependencies import CallerDep, ExportsDep, ImportsDep, OperatorDep, SettingsDep, StorageDep
from service.problems.openapi import answers
from service.records import service
from service.records.schemas import ImportOut
from service.settings import Settings
from service.streaming import in_turn

router = APIRouter(prefix="/records", tags=["records"])

JSONL = "application/jsonl"
MAX_WORKLOADS = 200
WorkloadsQuery = Annotated[
    list[str], Query(alias="workload", max_length=MAX_WORKLOADS, description="a workload's key; may be repeated")
]
_LINES = {"type": "string", "description": "a header, then a record in each line"}
_BODY = {"requestBody": {"required": True, "content": {JSONL: {"schema": _LINES}}}}


@router.get(
    "",
    dependencies=[READ],
    response_class=StreamingResponse,
    responses={200: {"content": {JSONL: {"schema": _LINES}}}, **answers(404)},
)
async def export_records(
    storage: OperatorDep,
    exports: ExportsDep,
    workload: WorkloadsQuery = [],  # noqa: B006  (read only)
) -> StreamingResponse:
    """Every tuning record (of these workloads, if any are named) as JSON lines, in the order stored."""
    pieces = await to_thread.run_sync(service.exported, storage, workload, limiter=exports)
    return StreamingResponse(in_turn(pieces, exports), media_type=JSONL)


# What is imported is seen by everyone.
@router.post("", dependencies=[ADMIN], openapi_extra=_BODY, responses=answers(422))
async def import_records(
    request: Request, storage: StorageDep, imports: ImportsDep, settings: SettingsDep, caller: CallerDep
) -> ImportOut:
    """Import records as JSON lines. Known ones are passed over; new ones decide nothing until they are measured here.

    The body is read and stored a part at a time: if it is refused at some line, the lines before it may be stored.
    """
    if not imports.acquire(blocking=False):
        raise HTTPException(503, "other imports are under way; try again later", {"Retry-After": "5"})
    body = aiter(request.stream())
    try:
        result = await to_thread.run_sync(service.imported, storage, _pieces(body, settings), caller.id)
        return ImportOut.model_validate(result)
    except ClientDisconnect:
        raise HTTPException(400, "the client left before it had sent all") from None
    except Exception:
        await _discard(body, settings)
        raise
    finally:
        imports.release()


def _pieces(body: AsyncIterator[bytes], settings: Settings) -> Iterator[bytes]:
    """The pieces of a body, for a thread of the event loop's; each must arrive in time."""
    while (piece := from_thread.run(_next, body, settings.body_timeout_s)) is not None:
        yield piece


async def _next(body: AsyncIterator[bytes], timeout_s: float) -> bytes | None:
    with anyio.move_on_after(timeout_s):
        return await anext(body, None)
    raise HTTPException(408, f"nothing of the body arrived for {timeout_s:g} s; send it again")


async def _discard(body: AsyncIterator[bytes], settings: Settings) -> None:
    """Read on for a while: a client that is still sending may lose the answer of a closed connection."""
    with anyio.move_on_after(settings.linger_s):
        try:
            async for _ in body:
                pass
        except (ClientDisconnect, RuntimeError):
            return
