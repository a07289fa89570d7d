"""The scope that a route needs, declared at the route: ``@router.get("", dependencies=[READ])``.

``create_app`` refuses to start with a route that declares none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import Request, Security, params
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.routing import BaseRoute

from service.problems import ProblemResponse, Refusal, problem
from tuner.storage import ApiKey, Scope

SCHEME = "ApiKey"


class _Authorized(HTTPBearer):
    """The scheme that the API's document shows, and the check of a route's scopes: one dependency of each route."""

    # Another type than the base class returns: FastAPI calls it with whatever parameters it declares.
    async def __call__(self, request: Request, needed: SecurityScopes) -> None:  # type: ignore[override]
        check(request, *map(Scope, needed.scopes))


_authorized = _Authorized(
    scheme_name=SCHEME,
    description="An API key, as `shapewright keys create` prints it. Scopes: read, submit, promote, admin; each "
    "includes the ones before it. A browser's cookie holds such a key too.",
)


async def _open() -> None:
    """Nothing to check."""


READ = Security(_authorized, scopes=[Scope.READ.value])
SUBMIT = Security(_authorized, scopes=[Scope.SUBMIT.value])
PROMOTE = Security(_authorized, scopes=[Scope.PROMOTE.value])
ADMIN = Security(_authorized, scopes=[Scope.ADMIN.value])
OPEN = Security(_open, scopes=[])
"""Marks routes that need no key. Which those are is decided in ``service.auth``; this only says that it is meant."""


def check(request: Request, *needed: Scope) -> None:
    """Raises Refusal unless the caller's key allows all of it."""
    key: ApiKey = request.state.api_key
    for scope in needed:
        if not key.allows(scope):
            raise Refusal(missing_scope(key, scope))


def missing_scope(key: ApiKey, needed: Scope, what: str = "this") -> ProblemResponse:
    """403: the key is known, but does not allow ``what``."""
    held = ", ".join(key.scopes)
    detail = (
        f"{what} needs a key of scope {needed}; {key.id} ({key.name}) has {held}; "
        f"ask an administrator for one: shapewright keys create NAME --scope {needed}"
    )
    return problem(
        403,
        "missing-scope",
        "The API key does not allow this",
        detail,
        needed_scope=needed.value,
        scopes=list(key.scopes),
        problem=f"the key lacks scope {needed}",
    )


def require_scopes(routes: Iterable[BaseRoute]) -> None:
    """Raises RuntimeError for a route that declares no scope: left to itself it would be open to every key."""
    for route in iter_route_contexts(list(routes)):
        if isinstance(route.original_route, APIRoute) and not _declared(route.dependencies):
            raise RuntimeError(f"{route.path} declares no scope; see service/access/scopes.py")


def _declared(dependencies: Iterable[Any]) -> bool:
    return any(isinstance(each, params.Security) and each.dependency in (_authorized, _open) for each in dependencies)
