"""The routes under /filters: searches of the list of jobs that are saved under a name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from service.access.scopes import READ, SUBMIT
from service.dependencies import CallerDep, ClientDep
from service.jobs.schemas import SavedFilterIn, SavedFilterList, SavedFilterOut
from service.problems.openapi import answers

router = APIRouter(prefix="/filters", tags=["jobs"])

Name = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("", dependencies=[READ])
def list_filters(caller: CallerDep, storage: ClientDep) -> SavedFilterList:
    """The searches of the list of jobs that the caller's owner saved, by name."""
    items = [SavedFilterOut.model_validate(each) for each in storage.list_filters(caller.owner)]
    return SavedFilterList(items=items)


@router.put("/{name}", dependencies=[SUBMIT], responses=answers(422))
def save_filter(name: Name, body: SavedFilterIn, caller: CallerDep, storage: ClientDep) -> SavedFilterOut:
    """Save a search under a name, in place of the one of that name."""
    return SavedFilterOut.model_validate(storage.save_filter(caller.owner, name, body.query, caller.id))


@router.delete("/{name}", status_code=204, dependencies=[SUBMIT])
def delete_filter(name: Name, caller: CallerDep, storage: ClientDep) -> Response:
    """Forget a saved search."""
    storage.delete_filter(caller.owner, name, caller.id)
    return Response(status_code=204)
