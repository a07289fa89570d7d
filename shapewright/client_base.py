"""What both kinds of client share: whom they ask, as whom, and what an answer that is no success means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from shapewright import defaults
from shapewright.connection import read_json
from shapewright.errors import NotAllowed, Refused, ServiceError, ServiceNotFound, ServiceUnreachable
from shapewright.steps import Each, Item, Step, Steps
from tuner.errors import InvalidInput
from tuner.program.language.workload import JsonObject

MAX_DETAIL = 4000
"""Characters of what a service says is wrong."""
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class ClientBase:
    """``url`` and ``key`` default to SHAPEWRIGHT_URL and SHAPEWRIGHT_API_KEY, and the key then to the file that
    ``shapewright up`` leaves in ``data_dir``."""

    def __init__(self, url: str | None, data_dir: str | Path | None, clock: Callable[[], float]) -> None:
        self.url = (url or defaults.service_url()).rstrip("/")
        self._data_dir = Path(data_dir) if data_dir is not None else defaults.data_dir()
        self._clock = clock

    def _opened(self, open_http: Callable[[str, dict[str, str]], Http], key: str | None) -> Http:
        """The connection. Raises InvalidInput, BadEnvironment."""
        # A line end may come with it, from a file or a prompt.
        secret = (key or defaults.api_key(self._data_dir) or "").strip()
        if not (secret.isascii() and secret.isprintable()):
            # Here, and without it: the error of a header would tell the key.
            raise InvalidInput("key", "an API key is one line of ASCII text", "copy it again from where it was made")
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        try:
            return open_http(self.url, headers)
        except httpx.InvalidURL as error:
            raise InvalidInput("url", f"{self.url!r} is not one: {error}", "as in http://127.0.0.1:8321") from None

    def _unreachable(self, error: Exception) -> ServiceUnreachable:
        reason = str(error) or type(error).__name__
        remedy = "is it running (shapewright up), and is SHAPEWRIGHT_URL right?"
        return ServiceUnreachable(f"no service answers at {self.url}: {reason}; {remedy}")

    def _check(self, response: httpx.Response) -> None:
        """Raise the error of a response that is not a success."""
        if response.is_success:
            return
        problem = _problem_of(response)
        detail = str(problem.get("detail") or f"{response.status_code} {response.reason_phrase}")[:MAX_DETAIL]
        if response.status_code == 403:
            raise NotAllowed(f"not allowed at {self.url}: {detail}", problem)
        if response.status_code == 401:
            # The service's text is about a header; here a key comes from one of these.
            file = defaults.key_file(self._data_dir)
            where = f"give one (--key, or key=), set SHAPEWRIGHT_API_KEY, or see that {file} holds it"
            said = str(problem.get("problem", detail))[:MAX_DETAIL]
            raise NotAllowed(f"not allowed at {self.url}: {said}; {where}", problem)
        if response.status_code == 404:
            raise ServiceNotFound(detail, problem)
        if response.status_code in (502, 503, 504):
            raise ServiceUnreachable(f"{self.url} cannot answer at present: {detail}; try again later", problem)
        if response.is_client_error:
            raise Refused(detail, problem)
        raise ServiceError(f"{self.url}: {detail}", problem)


def _problem_of(response: httpx.Response) -> JsonObject:
    try:
        return read_json(response.content, "")
    except ServiceError:
        return {}  # a proxy's page, not the service's answer


class Turn:
    """Where a request stands: ``step`` is what is to be done next, None once there is a ``result``."""

    def __init__(self, steps: Steps[Any] | Each[Any]) -> None:
        self._steps = steps
        self.step: Step | Item[Any] | None = None
        self.result: Any = None
        self.given(None)

    def given(self, value: object) -> None:
        """Go on with what the step gave."""
        self._go_on(lambda: self._steps.send(value))

    def failed(self, error: Exception) -> None:
        """Go on with what the step failed over, which is raised unless the request takes it."""
        self._go_on(lambda: self._steps.throw(error))

    def _go_on(self, next_step: Callable[[], Step | Item[Any]]) -> None:
        try:
            self.step = next_step()
        except StopIteration as end:
            self.step, self.result = None, end.value
