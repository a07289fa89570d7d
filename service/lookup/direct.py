"""The most frequent lookup, answered without the framework's routing and parameters, which take longer than it.

Whatever is not a well-formed question goes on to the route (service/workloads/endpoints.py), which says what is wrong.
A question that is refused is not asked again.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.json_response import JsonResponse
from service.lookup.batching import LookupBatcher
from service.lookup.best_query import BestQuery
from service.lookup.lookups import Query
from service.metrics import Metrics
from service.paths import path_of
from service.problems import invalid_input, not_found, storage_unavailable
from service.settings import Settings
from tuner.errors import InvalidInput, ShapewrightError
from tuner.storage import ApiKey, NotFound, StorageUnavailable
from tuner.storage import Scope as Access

ROUTE = SimpleNamespace(path="/v1/workloads/{key}/best")
"""The route under which the metrics of this service count it."""
_PATH = re.compile(r"/v1/workloads/([\w-]+)/best", re.ASCII)


class DirectLookups:
    """A middleware; authentication comes before it."""

    def __init__(self, app: ASGIApp, batcher: LookupBatcher, metrics: Metrics, settings: Settings) -> None:
        self._app = app
        self._batcher = batcher
        self._metrics = metrics
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._response(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        await (response or self._app)(scope, receive, send)

    async def _response(self, scope: Scope) -> Response | None:
        path = _PATH.fullmatch(path_of(scope))
        key: ApiKey | None = scope.get("state", {}).get("api_key")
        if path is None or key is None or not key.allows(Access.READ):
            return None
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if len(given) != len(dict(given)):
            return None
        try:
            query = BestQuery.model_validate(dict(given)).lookup(path[1])
        except (InvalidInput, ValidationError):
            return None
        scope["route"] = ROUTE
        return await self._answer(query)

    async def _answer(self, query: Query) -> Response | None:
        try:
            answer = await self._batcher.best(query)
        except InvalidInput as error:
            return invalid_input(error)
        except NotFound as error:
            return not_found(error)
        except StorageUnavailable as error:
            return storage_unavailable(error, self._settings, known_caller=True)
        except ShapewrightError:
            return None  # rare: the route has a handler for each
        self._metrics.looked_up(answer.match)
        return JsonResponse(answer.to_json())
