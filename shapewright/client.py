"""A client of the service: what the command line, build scripts and notebooks use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from shapewright import defaults
from shapewright.client_libraries import LibraryRequests
from shapewright.connection import MAX_ANSWER, MAX_PROBLEM, Fields, lines_of, open_http, read_json, read_whole
from shapewright.errors import BadDownload, NotAllowed, Refused, ServiceError, ServiceNotFound, ServiceUnreachable
from shapewright.queries import WorkloadLike
from shapewright.queries import key_of as _key_of
from shapewright.queries import part as _part
from shapewright.queries import symbols_text as _symbols_text
from shapewright.queries import task_of as _task_of
from shapewright.sse import MAX_EVENT, Frame, frames
from tuner.errors import InvalidInput
from tuner.program.language.workload import JsonObject

__all__ = ["BadDownload", "Client", "NotAllowed", "Refused", "ServiceError", "ServiceNotFound", "ServiceUnreachable"]

# An open stream is never silent for longer than 15 s: the service sends comments to keep it alive.
STREAM_TIMEOUT = httpx.Timeout(45.0, connect=5.0)
# A service stores what it is sent before it takes more.
IMPORT_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
LONGEST_PAUSE_S = 5.0
END_COMMENT = "end"
MAX_DETAIL = 4000
"""Characters of what a service says is wrong."""


class Client(LibraryRequests):
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
            self._http = open_http(self.url, headers)
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
            return self._whole(self._json("POST", "/v1/jobs", json=dict(job), headers=headers))
        headers["Content-Type"] = "application/yaml"
        return self._whole(self._json("POST", "/v1/jobs", content=job, headers=headers))

    def job(self, job_id: str) -> JsonObject:
        """A job with all its search tasks, what was submitted, and the summary of the search so far.

        Of a very large job ``spec`` lacks its largest fields (``spec_complete`` is false then).
        """
        return self._whole(self._json("GET", f"/v1/jobs/{_part(job_id)}"))

    def _whole(self, job: JsonObject) -> JsonObject:
        """The job with all its search tasks: an answer has no more than the first of many."""
        while (first := job.get("tasks_next")) is not None:
            page = self._json("GET", f"/v1/jobs/{_part(job['id'])}/tasks", params={"first": first})
            job["tasks"] += page.rows("items")
            job["tasks_next"] = page["next"]
        return job

    def jobs(self, state: str | None = None, limit: int = 100) -> list[JsonObject]:
        """The newest jobs, at most ``limit`` of them."""
        jobs: list[JsonObject] = []
        cursor: str | None = None
        while len(jobs) < limit:
            params = {"state": state, "cursor": cursor, "limit": min(200, limit - len(jobs))}
            page = self._json("GET", "/v1/jobs", params=params)
            jobs += page.rows("items")
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
            yield from page.rows("items")
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
                        event = read_json(frame.data.encode(), self.url)
                        yield event
                        after = event["seq"]
            except ServiceUnreachable:
                if self._clock() - lost_at > retry_s:
                    raise
            self._sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    # -- what is known --------------------------------------------------------------------------------------------
    def devices(self) -> list[JsonObject]:
        return self._json("GET", "/v1/devices").rows("items")

    def best(
        self,
        workload: WorkloadLike,
        shape: Mapping[str, int] | str,
        target: str | None = None,
        threads: int | None = None,
        job: str | None = None,
    ) -> JsonObject:
        """The best known micro-kernel for a shape: ``{"match", "kernel", "latency_s", "predicted_latency_s", ...}``.

        The shape is in the shape variables of ``workload`` or, of a key, in the workload's symbols. A search task and
        a job bring their target and their threads; others are of the newest target and one thread. With ``job`` only
        of what that one measured and built.
        """
        task = _task_of(workload)
        if task is not None:
            target = target or (task.target.fingerprint if task.target else None)
            threads = threads or task.threads
        params = {"shape": _symbols_text(workload, shape), "target": target, "threads": threads, "job": job}
        return self._json("GET", f"/v1/workloads/{_key_of(workload)}/best", params=params)

    def lookup(self, queries: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
        """The best kernel for each of up to 1,000 queries: ``{"best": as of best, "problem": null}``, or the other way
        round for one that cannot be answered.

        A query is ``{"workload": as in a job, "shape", "target", "threads", "job"}``, or has a ``workload_key``.
        """
        body = {"queries": [dict(query) for query in queries]}
        return self._json("POST", "/v1/lookup", json=body).rows("answers")

    # -- records ----------------------------------------------------------------------------------------------------
    def export_records(self, workloads: Sequence[WorkloadLike] = ()) -> Iterator[bytes]:
        """Every record (of these workloads, if any are named) as JSON lines, in pieces as they arrive."""
        params = {"workload": [_key_of(workload) for workload in workloads]}
        try:
            with self._http.stream("GET", "/v1/records", params=params, timeout=STREAM_TIMEOUT) as response:
                self._check_stream(response)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def import_records(self, lines: Iterable[bytes]) -> JsonObject:
        """Import what ``export_records`` gave, in pieces of any size: ``{"added", "known"}``.

        Importing twice adds nothing. Imported records decide nothing until the service's own devices measured them.
        """
        headers = {"Content-Type": "application/jsonl"}
        return self._json("POST", "/v1/records", content=iter(lines), headers=headers, timeout=IMPORT_TIMEOUT)

    # -- requests -------------------------------------------------------------------------------------------------
    def _json(self, method: str, path: str, **request: Any) -> Fields:
        return read_json(self._send(method, path, **request).content, f"{self.url}{path}")

    def _send(self, method: str, path: str, most: int = MAX_ANSWER, **request: Any) -> httpx.Response:
        if "params" in request:
            request["params"] = {name: value for name, value in request["params"].items() if value is not None}
        try:
            with self._http.stream(method, path, **request) as coming:
                response = read_whole(coming, most, self._clock)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(response)
        return response

    def _frames(self, job_id: str, after: int, follow: bool) -> Iterator[Frame]:
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        path = f"/v1/jobs/{_part(job_id)}/events" + ("" if follow else "?follow=false")
        try:
            with self._http.stream("GET", path, headers=headers, timeout=STREAM_TIMEOUT) as response:
                self._check_stream(response)
                yield from frames(lines_of(response.iter_bytes(), MAX_EVENT))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _check_stream(self, response: httpx.Response) -> None:
        if not response.is_success:
            self._check(read_whole(response, MAX_PROBLEM, self._clock))

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
