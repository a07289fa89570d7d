"""Requests about jobs and their trials, logs and events: one definition of each for both kinds of client."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapewright.connection import read_json
from shapewright.errors import ServiceNotFound, ServiceUnreachable
from shapewright.queries import WorkloadLike, key_of, part, submitted
from shapewright.sse import Frames
from shapewright.steps import (
    PAGE,
    STREAM_TIMEOUT,
    Each,
    Item,
    Open,
    Pause,
    Piece,
    Steps,
    Work,
    ask,
    collected,
    each,
    items,
    pieces,
    request,
)
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject

if TYPE_CHECKING:
    from pandas import DataFrame

LONGEST_PAUSE_S = 5.0
END_COMMENT = "end"
LOG_PAUSE_S = 1.0
"""The pause between two looks for new lines of a log."""
LATEST = "latest"
"""In place of a job's id: the newest job."""
CANDIDATES = 10
"""Jobs that the refusal of an ambiguous name lists."""
_JOB_ID = re.compile("job-[0-9a-f]{19}")
SHORTEST_END = 4
"""Characters of the end of an id that name a job: ids begin with the time, and differ at their ends."""


class JobRequests:
    """For a class that sends requests to ``url``."""

    url: str
    _clock: Callable[[], float]

    @request
    def submit(
        self,
        /,
        job: SearchTask | Mapping[str, Any] | str | bytes | Path,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Steps[JsonObject]:
        """Submit a job: a search task, the parsed content of a job file, its text in YAML or JSON, or its path.

        ``fields`` are those of a job file that come beside a search task or a mapping, as in
        ``submit(task, budget={"trials": 64})``. With an idempotency key the same submission may be repeated, and gives
        the same job. Returns the job as stored.
        """
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        content, media_type = submitted(job, fields)
        headers["Content-Type"] = media_type
        return (yield from self._whole((yield from ask("POST", "/v1/jobs", content=content, headers=headers))))

    @request
    def job(self, job_id: str) -> Steps[JsonObject]:
        """A job with all its search tasks, what was submitted, and the summary of the search so far.

        Of a very large job ``spec`` lacks its largest fields (``spec_complete`` is false then).
        """
        return (yield from self._whole((yield from ask("GET", f"/v1/jobs/{part(job_id)}"))))

    def _whole(self, job: JsonObject) -> Steps[JsonObject]:
        """The job with all its search tasks: an answer has no more than the first of many."""
        while (first := job.get("tasks_next")) is not None:
            page = yield from ask("GET", f"/v1/jobs/{part(job['id'])}/tasks", params={"first": first})
            job["tasks"] += page.rows("items")
            job["tasks_next"] = page["next"]
        return job

    @request
    def jobs(self, state: str | None = None, limit: int = 100, *, search: str | None = None) -> Steps[list[JsonObject]]:
        """The newest jobs, at most ``limit`` of them, that ``search`` finds: words, as in ``bert tag:nightly``."""
        return (yield from items("/v1/jobs", limit, state=state, q=search))

    @request
    def find_job(self, name: str) -> Steps[str]:
        """The id of a job: ``latest``, an id, or so much of its beginning or its end as only one job has.

        Raises ServiceNotFound, and InvalidInput with the candidates where it may be several.
        """
        if _JOB_ID.fullmatch(name):
            return name
        if name == LATEST:
            newest = yield from items("/v1/jobs", 1)
            if not newest:
                raise ServiceNotFound("no job has been submitted yet")
            return str(newest[0]["id"])
        found = yield from items("/v1/jobs", PAGE, q=f"id:{part(name)}")
        fitting = [job for job in found if name in (job["id"], job["id"].removeprefix("job-"))]
        fitting = fitting or [job for job in found if _abbreviates(name, job["id"])]
        if len(fitting) > 1:
            listed = ", ".join(f"{job['id']} ({job['state']}, {job['name']})" for job in fitting[:CANDIDATES])
            more = f" and {len(fitting) - CANDIDATES} more" if len(fitting) > CANDIDATES else ""
            raise InvalidInput(
                "job_id", f"{name!r} may be any of {len(fitting)} jobs", f"give more of it: {listed}{more}"
            )
        if not fitting:
            raise ServiceNotFound(f"there is no job {name}, and none whose id begins or ends so")
        return str(fitting[0]["id"])

    @request
    def jobs_of(self, workload: WorkloadLike, limit: int = 20) -> Steps[list[JsonObject]]:
        """The newest jobs that search a workload, each with the ``position`` and the ``progress`` of its search."""
        path = f"/v1/workloads/{key_of(workload)}/jobs"
        return (yield from ask("GET", path, params={"limit": limit})).rows("items")

    @request
    def cancel(self, job_id: str) -> Steps[JsonObject]:
        """Ask a job to stop; what it has measured is kept."""
        return (yield from ask("POST", f"/v1/jobs/{part(job_id)}/cancel"))

    @request
    def resume(self, job_id: str) -> Steps[JsonObject]:
        """Put a cancelled or failed job back in the queue, with everything it has measured."""
        return (yield from ask("POST", f"/v1/jobs/{part(job_id)}/resume"))

    @each
    def trials(self, job_id: str, after: int = 0) -> Each[JsonObject]:
        """Every trial stored so far with ``seq`` above ``after``, in order."""
        while True:
            page = yield from ask("GET", f"/v1/jobs/{part(job_id)}/trials", params={"after": after})
            for row in page.rows("items"):
                yield Item(row)
            if page["after"] == after:
                return
            after = page["after"]

    @each
    def logs(self, job_id: str, *, follow: bool = False, limit: int = 1000) -> Each[JsonObject]:
        """What was logged about a job, each line ``{"time", "part", "level", "text"}``: of the parts on the service's
        machine, and the job's own events (part ``job``).

        The last ``limit`` lines; with ``follow`` also those that come until the job has ended.
        """
        path, since = f"/v1/jobs/{part(job_id)}/logs", None
        seen: list[JsonObject] = []
        while True:
            # Further lines come in whole pages: a page that is no longer than the lines of one moment leads nowhere.
            page = yield from ask("GET", path, params={"since": since, "limit": None if since else limit})
            fresh = [line for line in page.rows("items") if line not in seen]
            for line in fresh:
                yield Item(line)
            if not follow or (page["ended"] and not fresh):
                return
            since = page["next"]
            seen = [line for line in page.rows("items") if line["time"] == since]
            yield Pause(LOG_PAUSE_S)

    @request
    def log_parts(self, job_id: str) -> Steps[JsonObject]:
        """Whose logs ``logs`` has: ``{"parts", "elsewhere"}``, those of the service's machine, and the worker and the
        devices of the job that keep their logs where they run."""
        page = yield from ask("GET", f"/v1/jobs/{part(job_id)}/logs", params={"limit": 1})
        return {"parts": page["parts"], "elsewhere": page.get("elsewhere", [])}

    @each
    def trial_lines(
        self,
        job_id: str,
        task: int = 0,
        *,
        error: str = "",
        kernel: str = "",
        instance: str = "",
        phase: str = "",
        newest_first: bool = False,
    ) -> Each[JsonObject]:
        """Trials of one search task in the order stored, as far as they fit what is given.

        ``error`` is a kind of failure, ``any`` or ``none``; ``kernel`` the beginning of an id; ``instance`` a shape, as
        in ``S=3,T=7``; ``phase`` what the trial was for.
        """
        params: JsonObject = {"task": task, "error": error, "kernel": kernel, "instance": instance, "phase": phase}
        params |= {"order": "stored", "descending": newest_first, "limit": 500}
        cursor: str | None = None
        while True:
            path = f"/v1/jobs/{part(job_id)}/trials/table"
            page = yield from ask("GET", path, params={**params, "cursor": cursor})
            for row in page.rows("items"):
                yield Item(row)
            if (cursor := page["cursor"]) is None:
                return

    @each
    def trials_file(
        self,
        job_id: str,
        task: int = 0,
        *,
        form: str = "csv",
        error: str = "",
        kernel: str = "",
        instance: str = "",
        phase: str = "",
    ) -> Each[bytes]:
        """Those trials as a file, in pieces as they arrive: ``form`` csv or parquet, a column for each shape variable
        and each axis of the kernels."""
        params = {"format": form, "task": task, "error": error, "kernel": kernel, "instance": instance, "phase": phase}
        yield from pieces(f"/v1/jobs/{part(job_id)}/trials/file", params)

    @request
    def trials_dataframe(self, job_id: str, task: int = 0) -> Steps[DataFrame]:
        """The trials of one search task as a pandas DataFrame with the columns of ``trials_file``, indexed by ``seq``.

        Raises InvalidInput where pandas is not installed.
        """
        try:
            import pandas  # noqa: PLC0415 - an option
        except ModuleNotFoundError:
            remedy = "pip install pandas; client.trials(job_id) gives the same as dictionaries"
            raise InvalidInput("trials_dataframe", "pandas is not installed", remedy) from None
        table = yield from collected(pieces(f"/v1/jobs/{part(job_id)}/trials/file", {"task": task}))
        frame: DataFrame = yield Work(lambda: pandas.read_csv(io.BytesIO(b"".join(table)), index_col="seq"))
        return frame

    @request
    def compare(self, job_ids: Sequence[str]) -> Steps[JsonObject]:
        """2 to 8 jobs side by side over their equal workloads: ``{"jobs", "pairings", "unlike", "method", ...}``.

        Ratios are to the first job, by shape, with intervals; from what is recorded.
        """
        return (yield from ask("GET", "/v1/compare", params={"job": list(job_ids)}))

    @each
    def events(self, job_id: str, after: int = 0, retry_s: float = 60.0, *, follow: bool = True) -> Each[JsonObject]:
        """The events of a job until it has ended, stored ones first; each is ``{"seq", "kind", "data", ...}``.

        Without ``follow`` only those that are stored. A broken stream is resumed after its last event. Raises
        ServiceUnreachable when the service has not answered for ``retry_s`` seconds.
        """
        lost_at, pause_s = self._clock(), 0.1
        path = f"/v1/jobs/{part(job_id)}/events" + ("" if follow else "?follow=false")
        while True:
            frames = Frames()
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            try:
                yield Open(path, {"headers": headers, "timeout": STREAM_TIMEOUT})
                while (piece := (yield Piece())) is not None:
                    for frame in frames.feed(piece):
                        lost_at, pause_s = self._clock(), 0.1
                        if frame.comment == END_COMMENT:
                            return
                        if frame.data:
                            event = read_json(frame.data.encode(), self.url)
                            yield Item(event)
                            after = event["seq"]
            except ServiceUnreachable:
                if self._clock() - lost_at > retry_s:
                    raise
            yield Pause(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


def _abbreviates(name: str, job_id: str) -> bool:
    begins = job_id.startswith(name) or job_id.removeprefix("job-").startswith(name)
    return begins or (len(name) >= SHORTEST_END and job_id.endswith(name))
