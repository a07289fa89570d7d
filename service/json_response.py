"""Answers of routes that write their JSON themselves."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    """JSON without a model in between, for responses that are large or frequent. NaN becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
