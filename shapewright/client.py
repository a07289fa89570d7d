"""A client of the service: what the command line, build scripts and notebooks use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from json import JSONDecodeError, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from shapewright import defaults, download
from shapewright.errors import BadDownload, NotAllowed, Refused, ServiceError, ServiceNotFound, ServiceUnreachable
from shapewright.sse import Frame, frames
from tuner.errors import InvalidInput
from tuner.program.jobspec import parse_job
from tuner.program.task import SearchTask, parse_shape
from tuner.program.workload import JsonObject, Workload, format_shape

if TYPE_CHECKING:
    from shapewright.library import Library

__all__ = ["BadDownload", "Client", "NotAllowed", "Refused", "ServiceError", "ServiceNotFound", "ServiceUnreachable"]

WorkloadLike = str | SearchTask | Workload | Mapping[str, Any]
"""A workload's key, something that has one, or the content of a job file for one workload."""

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# An open stream is never silent for longer than 15 s: the service sends comments to keep it alive.
STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)
LONGEST_PAUSE_S = 5.0
END_COMMENT = "end"


class Client:
    """Talks to a service. Every method raises a ``ServiceError`` that says what to do; see ``shapewright.errors``.

    ``url`` and ``key`` default to SHAPEWRIGHT_URL and SHAPEWRIGHT_API_KEY, and the key then to the file that
    ``shapewright up`` leaves in ``data_dir``. Safe to use from several threads; close it, or use it in a ``with``.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        data_dir: str | Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = (url or defaults.service_url()).rstrip("/")
        self._data_dir = Path(data_dir) if data_dir is not None else defaults.data_dir()
        secret = key or defaults.api_key(self._data_dir)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._clock = clock
        self._sleep = sleep
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT)
        except httpx.InvalidURL as error:
            raise InvalidInput("url", f"{self.url!r} is not one: {error}", "as in http://127.0.0.1:8321") from None
        except UnicodeEncodeError:
            raise InvalidInput("key", "an API key is ASCII text", "copy it again from where it was made") from None

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- jobs -----------------------------------------------------------------------------------------------------
    def submit(self, job: Mapping[str, Any] | str | bytes, idempotency_key: str | None = None) -> JsonObject:
        """Submit a job: the parsed content of a job file, or its text in YAML or JSON. Returns the job as stored.

        With an idempotency key the same submission may be repeated, and gives the same job.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if isinstance(job, Mapping):
            return self._json("POST", "/v1/jobs", json=dict(job), headers=headers)
        headers["Content-Type"] = "application/yaml"
        return self._json("POST", "/v1/jobs", content=job, headers=headers)

    def job(self, job_id: str) -> JsonObject:
        """A job with its search tasks, what was submitted, and the summary of the search so far."""
        return self._json("GET", f"/v1/jobs/{_part(job_id)}")

    def jobs(self, state: str | None = None, limit: int = 100) -> list[JsonObject]:
        """The newest jobs, at most ``limit`` of them."""
        jobs: list[JsonObject] = []
        cursor: str | None = None
        while len(jobs) < limit:
            params = {"state": state, "cursor": cursor, "limit": min(200, limit - len(jobs))}
            page = self._json("GET", "/v1/jobs", params=params)
            jobs += page["items"]
            cursor = page["cursor"]
            if cursor is None:
                break
        return jobs

    def cancel(self, job_id: str) -> JsonObject:
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/cancel")

    def resume(self, job_id: str) -> JsonObject:
        """Put a cancelled or failed job back in the queue, with everything it has measured."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/resume")

    def trials(self, job_id: str, after: int = 0) -> Iterator[JsonObject]:
        """Every trial stored so far with ``seq`` above ``after``, in order."""
        while True:
            page = self._json("GET", f"/v1/jobs/{_part(job_id)}/trials", params={"after": after})
            yield from page["items"]
            if page["after"] == after:
                return
            after = page["after"]

    def events(
        self, job_id: str, after: int = 0, retry_s: float = 60.0, *, follow: bool = True
    ) -> Iterator[JsonObject]:
        """The events of a job until it has ended, stored ones first; each is ``{"seq", "kind", "data", ...}``.

        Without ``follow`` only those that are stored. A broken stream is resumed after its last event. Raises
        ServiceUnreachable when the service has not answered for ``retry_s`` seconds.
        """
        lost_at, pause_s = self._clock(), 0.1
        while True:
            try:
                for frame in self._frames(job_id, after, follow):
                    lost_at, pause_s = self._clock(), 0.1
                    if frame.comment == END_COMMENT:
                        return
                    if frame.data:
                        event: JsonObject = loads(frame.data)
                        yield event
                        after = event["seq"]
            except ServiceUnreachable:
                if self._clock() - lost_at > retry_s:
                    raise
            self._sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    # -- what is known --------------------------------------------------------------------------------------------
    def devices(self) -> list[JsonObject]:
        items: list[JsonObject] = self._json("GET", "/v1/devices")["items"]
        return items

    def best(self, workload: WorkloadLike, shape: Mapping[str, int] | str, target: str | None = None) -> JsonObject:
        """The best known micro-kernel for a shape: ``{"match", "kernel", "latency_s", "predicted_latency_s", ...}``.

        The shape is in the shape variables of ``workload`` or, of a key, in the workload's symbols.
        """
        params = {"shape": _symbols_text(workload, shape), "target": target}
        return self._json("GET", f"/v1/workloads/{_key_of(workload)}/best", params=params)

    def dispatcher(self, workload: WorkloadLike, target: str | None = None, job: str | None = None) -> JsonObject:
        """The dispatch table of the newest library, for ``tuner.library.dispatcher.Dispatcher.from_json``.

        Of one that ``job`` built, if given."""
        params = {"target": target, "job": job}
        return self._json("GET", f"/v1/workloads/{_key_of(workload)}/dispatcher", params=params)

    def download_library(
        self,
        workload: WorkloadLike,
        directory: str | Path,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
    ) -> JsonObject:
        """Write the newest library that fits into ``directory`` and return its manifest.

        Everything is checked before anything is written. Raises BadDownload if a digest differs; the directory then
        holds what it held before.
        """
        params = {"job": job, "digest": digest, "target": target}
        response = self._send("GET", f"/v1/workloads/{_key_of(workload)}/library", params=params)
        download.check_transfer(response.content, response.headers.get("Content-Digest"))
        files = download.unpack(response.content)
        manifest = download.check(files, digest or response.headers.get("ETag", "").strip('"'))
        download.write(files, Path(directory))
        return manifest

    def pull(
        self,
        workload: WorkloadLike,
        directory: str | Path | None = None,
        job: str | None = None,
        digest: str | None = None,
        target: str | None = None,
    ) -> Library:
        """The newest library that fits, loaded; its files are kept in ``directory`` if one is given.

        Raises BadDownload, and ShapewrightError if this CPU lacks an instruction set that it uses.
        """
        from shapewright.library import load  # noqa: PLC0415 - clients that only query need no runtime

        if directory is not None:
            self.download_library(workload, directory, job, digest, target)
            return load(directory)
        with TemporaryDirectory(prefix="shapewright-") as folder:
            self.download_library(workload, folder, job, digest, target)
            return load(folder)

    # -- requests -------------------------------------------------------------------------------------------------
    def _json(self, method: str, path: str, **request: Any) -> JsonObject:
        response = self._send(method, path, **request)
        try:
            document: JsonObject = response.json()
        except ValueError:
            raise ServiceError(f"{self.url}{path} did not answer in JSON; is this URL a Shapewright service?") from None
        return document

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        if "params" in request:
            request["params"] = {name: value for name, value in request["params"].items() if value is not None}
        try:
            response = self._http.request(method, path, **request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self._check(response)
        return response

    def _frames(self, job_id: str, after: int, follow: bool) -> Iterator[Frame]:
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        path = f"/v1/jobs/{_part(job_id)}/events" + ("" if follow else "?follow=false")
        try:
            with self._http.stream("GET", path, headers=headers, timeout=STREAM_TIMEOUT) as response:
                if response.is_error:
                    response.read()
                self._check(response)
                yield from frames(response.iter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServiceUnreachable:
        reason = str(error) or type(error).__name__
        remedy = "is it running (shapewright up), and is SHAPEWRIGHT_URL right?"
        return ServiceUnreachable(f"no service answers at {self.url}: {reason}; {remedy}")

    def _check(self, response: httpx.Response) -> None:
        """Raise the error of a response that is not a success."""
        if response.is_success:
            return
        problem = _problem_of(response)
        detail = str(problem.get("detail") or f"{response.status_code} {response.reason_phrase}")
        if response.status_code in (401, 403):
            # The service's text is about a header; here a key comes from one of these.
            file = defaults.key_file(self._data_dir)
            where = f"give one (--key, or key=), set SHAPEWRIGHT_API_KEY, or see that {file} holds it"
            raise NotAllowed(f"not allowed at {self.url}: {problem.get('problem', detail)}; {where}", problem)
        if response.status_code == 404:
            raise ServiceNotFound(detail, problem)
        if response.status_code in (502, 503, 504):
            raise ServiceUnreachable(f"{self.url} cannot answer at present: {detail}; try again later", problem)
        if response.is_client_error:
            raise Refused(detail, problem)
        raise ServiceError(f"{self.url}: {detail}", problem)


def _problem_of(response: httpx.Response) -> JsonObject:
    try:
        document = response.json()
    except (JSONDecodeError, UnicodeDecodeError):
        return {}  # a proxy's page, not the service's answer
    return document if isinstance(document, dict) else {}


def _part(name: str) -> str:
    """A name as one segment of a path. Raises InvalidInput."""
    if not name or not all(char.isalnum() or char in "-_." for char in name) or set(name) == {"."}:
        raise InvalidInput("id", f"{name!r} is not a name of the service", "letters, digits, - and _")
    return name


def _key_of(workload: WorkloadLike) -> str:
    return _part(workload) if isinstance(workload, str) else _workload_of(workload).key


def _symbols_text(workload: WorkloadLike, shape: Mapping[str, int] | str) -> str:
    """``m=592``: values of the workload's symbols, which mean the same to every job. A key's are taken as they are."""
    if isinstance(workload, str):
        return shape if isinstance(shape, str) else format_shape(shape)
    given = parse_shape(shape) if isinstance(shape, str) else dict(shape)
    found = _workload_of(workload)
    if set(given) != found.variables:
        names = ", ".join(sorted(found.variables)) or "no variable"
        raise InvalidInput("shape", f"{format_shape(given) or 'nothing'} does not fit {found}", f"give {names}")
    return format_shape(found.dims(given))


def _workload_of(workload: Workload | SearchTask | Mapping[str, Any]) -> Workload:
    if isinstance(workload, Workload):
        return workload
    if isinstance(workload, SearchTask):
        return workload.workload
    found = {task.workload.key: task.workload for task in parse_job(workload).tasks}
    if len(found) > 1:
        raise InvalidInput("workloads", f"the job has {len(found)} of them", f"name one: {', '.join(sorted(found))}")
    return next(iter(found.values()))
