"""POST /lookup."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from service.access.scopes import READ
from service.lookup.described import DescribedLookups
from service.lookup.lookups import Answer
from service.lookup.queries import parse_queries
from service.lookup.schemas import LookupIn, LookupOut
from service.problems import problem_of
from tuner.library.lookup import BestAnswer

router = APIRouter(tags=["workloads"])


@router.post("/lookup", dependencies=[READ], response_model=LookupOut)
def lookup(body: LookupIn, request: Request) -> JSONResponse:
    """The best kernel for each of up to 1,000 shapes; a query that cannot be answered says why, and stops no other."""
    lookups = cast(DescribedLookups, request.app.state.described_lookups)
    answers = lookups.answers(parse_queries(body.queries))
    # No model of the answers: they are ours, and there may be megabytes of them.
    return JSONResponse({"answers": [_shown(answer) for answer in answers]})


def _shown(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, BestAnswer):
        return {"best": answer.to_json(), "problem": None}
    return {"best": None, "problem": problem_of(answer)}
