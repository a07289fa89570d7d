"""POST /lookup."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from service.access.scopes import READ
from service.dependencies import MetricsDep
from service.json_response import JsonResponse
from service.lookup.described import DescribedLookups
from service.lookup.lookups import Answer
from service.lookup.queries import parse_queries
from service.lookup.schemas import LookupIn, LookupOut
from service.problems import problem_of
from service.validation import Abandon, ValidationDep
from tuner.library.lookup import BestAnswer

router = APIRouter(tags=["workloads"])


@router.post("/lookup", dependencies=[READ], response_model=LookupOut)
async def lookup(body: LookupIn, request: Request, metrics: MetricsDep, validation: ValidationDep) -> JsonResponse:
    """The best kernel for each of up to 1,000 shapes; a query that cannot be answered says why, and stops no other."""
    lookups = cast(DescribedLookups, request.app.state.described_lookups)

    def answer(abandoned: Abandon = lambda: False) -> JsonResponse:
        answers = lookups.answers(parse_queries(body.queries, abandoned))
        for match, count in Counter(each.match for each in answers if isinstance(each, BestAnswer)).items():
            metrics.looked_up(match, count)
        # No model of the answers: they are ours, and there may be megabytes of them.
        return JsonResponse({"answers": [_shown(answer) for answer in answers]})

    # Workloads that are described have to be checked, as those of a job.
    describes = any("workload" in query for query in body.queries)
    return await (validation.run(request, answer) if describes else run_in_threadpool(answer))


def _shown(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, BestAnswer):
        return {"best": answer.to_json(), "problem": None}
    return {"best": None, "problem": problem_of(answer)}
