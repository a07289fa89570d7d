"""Commands about jobs of a service: `submit`, `jobs`, `show`, `watch`, `cancel`, `resume`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.describe import described, ended_text
from shapewright.cli.display import JobView, display_for
from shapewright.cli.finding import client, job_id, service_and_job
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, failure_of, table
from tuner.errors import ShapewrightError

if TYPE_CHECKING:
    from shapewright.client import Client

STATES = ("WAITING", "RUNNING", "CANCELLING", "COMPLETED", "CANCELLED", "FAILED")
Event = dict[str, Any]

SETTLE_S = 0.15
"""Events that arrive closer together are shown as one: a stream begins with all stored ones."""
UNSHOWN_S = 3.0
"""The longest time before events of a busy stream are shown."""
JOB_CONTINUES = (ExitCode.OUT_OF_TIME, ExitCode.UNREACHABLE, ExitCode.INTERRUPTED)
"""Exit codes after which the job itself continues."""

timeout = click.option("--timeout", type=options.Seconds(), metavar="S", help="Wait S seconds, then exit with 6.")


@click.command()
@options.job_file
@click.option("--wait", is_flag=True, help="Wait until the job has ended, and show its progress.")
@timeout
@click.option("--idempotency-key", metavar="K", help="The same key with the same job gives the same job again.")
@options.service
@as_json
def submit(
    *,
    job: Path,
    wait: bool,
    timeout: float | None,
    idempotency_key: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> int:
    """Submit a job to the service."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout only makes sense together with --wait")
    text = job.read_bytes()
    with client(url, key) as service:
        return hand_in(service, text, wait, timeout, json_output, idempotency_key)


def hand_in(
    service: Client,
    job: bytes | dict[str, Any],
    wait: bool,
    timeout_s: float | None,
    json_output: bool,
    idempotency_key: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Submit a job, and wait for its end if requested; ``more`` are further members of what is emitted."""
    submitted = service.submit(job, idempotency_key)
    if wait:
        return _watch(service, submitted, timeout_s, json_output, more)
    emit(_brief(submitted, service) | dict(more or {}), json_output, _accepted(submitted, service))
    return ExitCode.DONE


@click.command()
@job_id
@timeout
@options.service
@as_json
def watch(job_id: str, timeout: float | None, url: str | None, key: str | None, json_output: bool) -> int:
    """Show the progress of a job until it has ended."""
    with service_and_job(url, key, job_id) as (service, found):
        return _watch(service, service.job(found), timeout, json_output)


@click.command("jobs")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--search", metavar="TEXT", help="Words of name, owner, tags or id's start; name:, tag:, ... for one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@options.service
@as_json
def list_jobs(
    *, state: str | None, search: str | None, limit: int, url: str | None, key: str | None, json_output: bool
) -> None:
    """List the newest jobs."""
    with client(url, key) as service:
        jobs = service.jobs(state, limit, search=search)
    rows = ((job["id"], job["state"], job["trials"], job["created_at"], job["name"]) for job in jobs)
    emit(jobs, json_output, table(("ID", "STATE", "TRIALS", "CREATED", "NAME"), rows))


@click.command()
@job_id
@options.service
@as_json
def show(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Show a job: its state, its search tasks and results."""
    with service_and_job(url, key, job_id) as (service, found):
        job = service.job(found)
    emit(job, json_output, described(job))


@click.command()
@job_id
@options.service
@as_json
def cancel(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Ask a job to stop; what it has measured is kept."""
    with service_and_job(url, key, job_id) as (service, found):
        job = service.cancel(found)
    emit(job, json_output, f"{job['id']}  {job['state']}")


@click.command()
@job_id
@options.service
@as_json
def resume(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Put a cancelled or failed job back in the queue."""
    with service_and_job(url, key, job_id) as (service, found):
        job = service.resume(found)
    emit(job, json_output, f"{job['id']}  {job['state']}")


def _watch(
    service: Client,
    job: dict[str, Any],
    timeout_s: float | None,
    json_output: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Show a job until it has ended, then emit its outcome. Raises CommandFailed if that is not COMPLETED."""
    view = JobView.of(job)
    try:
        _follow(service, view, timeout_s)
        ended = service.job(job["id"])
    except (CommandFailed, ShapewrightError, KeyboardInterrupt) as error:
        raise _detached(error, _brief(job) | {"state": view.state}) from error
    return emit_outcome(ended, json_output, more)


def _detached(error: BaseException, document: dict[str, Any]) -> BaseException:
    """The failure of a watch; the job itself continues if it was not the job that failed."""
    failure = CommandFailed(ExitCode.INTERRUPTED, "interrupted")
    if isinstance(error, Exception):
        failure = failure_of(error) or failure
    if failure.code not in JOB_CONTINUES:
        return error
    message = f"{failure}; {document['job_id']} continues: shapewright watch {document['job_id']}"
    return CommandFailed(failure.code, message, result=document, **failure.details)


def emit_outcome(job: dict[str, Any], json_output: bool, more: Mapping[str, Any] | None = None) -> int:
    """Emit a job that has ended, and ``more`` members. Raises CommandFailed if it is not COMPLETED."""
    result = {name: job[name] for name in ("trials", "summary", "outcome", "libraries") if name in job}
    document = _brief(job) | result | dict(more or {})
    if job["state"] != "COMPLETED":
        reason = f": {job['error']}" if job["error"] else ""
        message = f"job {job['id']} is {job['state']}{reason}"
        raise CommandFailed(ExitCode.JOB_FAILED, message, result=document)
    emit(document, json_output, ended_text(job))
    return ExitCode.DONE


def page_of(service: Client, job_id: str) -> str:
    """Where the dashboard shows a job."""
    return f"{service.url}/jobs/{job_id}"


def _accepted(job: dict[str, Any], service: Client) -> str:
    """What `submit` says to people: the job, its page, and what to type next."""
    keys = job["workload_keys"]
    lines = [
        f"{job['id']}  {job['state']}",
        f"  page    {page_of(service, job['id'])}",
        f"  watch   shapewright watch {job['id']}",
        f"  result  shapewright show {job['id']}",
    ]
    if len(keys) == 1:
        lines.append(f"  pull    shapewright pull {keys[0]} --job {job['id']} -o library")
    return "\n".join(lines)


def _follow(service: Client, view: JobView, timeout_s: float | None) -> None:
    with display_for() as display:
        for events in events_within(service.events(view.job_id), timeout_s):
            for event in events:
                view.apply(event["kind"], event["data"])
            display.show(view)


def events_within(events: Iterator[Event], timeout_s: float | None) -> Iterator[list[Event]]:
    """``events`` in batches as they arrive. Raises CommandFailed after ``timeout_s`` seconds, and as ``events`` does.

    A thread waits for the events, because an idle stream gives no chance to check the clock.
    """
    arrived: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(events, arrived), daemon=True).start()
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        batch, end = _next_batch(arrived, until)
        if batch:
            yield batch
        if isinstance(end, Exception):
            raise end
        if end is None:
            return
        if until is not None and time.monotonic() >= until:
            raise CommandFailed(ExitCode.OUT_OF_TIME, f"not done after {timeout_s:g} s")


def _next_batch(
    arrived: queue.SimpleQueue[Event | Exception | None], until: float | None
) -> tuple[list[Event], Exception | bool | None]:
    """The next events, and why they end: an error, None at the end of the stream, True if there may be more."""
    batch: list[Event] = []
    shown_by = until
    while True:
        wait_s = None if shown_by is None else max(0.0, shown_by - time.monotonic())
        try:
            item = arrived.get(timeout=min(SETTLE_S, wait_s) if batch and wait_s is not None else wait_s)
        except queue.Empty:
            return batch, True
        if item is None or isinstance(item, Exception):
            return batch, item
        if not batch:
            shown_by = min(filter(None, (until, time.monotonic() + UNSHOWN_S)))
        batch.append(item)


def _pump(events: Iterator[Event], arrived: queue.SimpleQueue[Event | Exception | None]) -> None:
    try:
        for event in events:
            arrived.put(event)
    except Exception as error:  # handed on to the thread that waits for the events
        arrived.put(error)
    else:
        arrived.put(None)


def _brief(job: dict[str, Any], service: Client | None = None) -> dict[str, Any]:
    page = {"page": page_of(service, job["id"])} if service else {}
    return {"job_id": job["id"], "state": job["state"], "workload_keys": job["workload_keys"], **page}


COMMANDS = (submit, list_jobs, show, watch, cancel, resume)
