"""Commands about jobs of a service: `submit`, `jobs`, `show`, `watch`, `cancel`, `resume`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright import defaults
from shapewright.cli import options
from shapewright.cli.display import JobView, display_for
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, say, table
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from shapewright.client import Client

STATES = ("WAITING", "RUNNING", "CANCELLING", "COMPLETED", "CANCELLED", "FAILED")
Event = dict[str, Any]

timeout = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Wait S seconds, then exit with 6."
)
job_id = click.argument("job_id", metavar="ID")


@click.command()
@options.job_file
@click.option("--wait", is_flag=True, help="Stay until the job has ended, and show how it goes.")
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
        submitted = service.submit(text, idempotency_key)
        if wait:
            return _watch(service, submitted, timeout, json_output)
    emit(_brief(submitted), json_output, f"{submitted['id']}  {submitted['state']}")
    return ExitCode.DONE


@click.command()
@job_id
@timeout
@options.service
@as_json
def watch(job_id: str, timeout: float | None, url: str | None, key: str | None, json_output: bool) -> int:
    """Show how a job goes until it has ended."""
    with client(url, key) as service:
        return _watch(service, service.job(job_id), timeout, json_output)


@click.command("jobs")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@options.service
@as_json
def list_jobs(state: str | None, limit: int, url: str | None, key: str | None, json_output: bool) -> None:
    """List the newest jobs."""
    with client(url, key) as service:
        found = service.jobs(state, limit)
    rows = ((job["id"], job["state"], job["trials"], job["created_at"], job["name"]) for job in found)
    emit(found, json_output, table(("ID", "STATE", "TRIALS", "CREATED", "NAME"), rows))


@click.command()
@job_id
@options.service
@as_json
def show(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Show a job: its state, its search tasks, what it has found."""
    with client(url, key) as service:
        job = service.job(job_id)
    emit(job, json_output, _described(job))


@click.command()
@job_id
@options.service
@as_json
def cancel(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Ask a job to stop; what it has measured is kept."""
    with client(url, key) as service:
        job = service.cancel(job_id)
    emit(job, json_output, f"{job['id']}  {job['state']}")


@click.command()
@job_id
@options.service
@as_json
def resume(job_id: str, url: str | None, key: str | None, json_output: bool) -> None:
    """Put a cancelled or failed job back in the queue."""
    with client(url, key) as service:
        job = service.resume(job_id)
    emit(job, json_output, f"{job['id']}  {job['state']}")


def client(url: str | None, key: str | None) -> Client:
    """A client of the service at ``url``. Raises InvalidInput if that cannot be a URL."""
    from shapewright.client import Client  # noqa: PLC0415  (keeps --help fast)

    address = url or defaults.service_url()
    if not address.startswith(("http://", "https://")):
        raise InvalidInput("url", f"{address!r} is not a service's address", "as in http://127.0.0.1:8321")
    return Client(address, key)


def _watch(service: Client, job: dict[str, Any], timeout_s: float | None, json_output: bool) -> int:
    """Show a job until it has ended, then tell its outcome. Raises CommandFailed if that is not COMPLETED."""
    try:
        _follow(service, job, timeout_s)
    except KeyboardInterrupt:
        say(f"the job goes on; `shapewright cancel {job['id']}` stops it")
        raise
    return tell_outcome(service.job(job["id"]), json_output)


def tell_outcome(job: dict[str, Any], json_output: bool) -> int:
    """Emit a job that has ended. Raises CommandFailed if it is not COMPLETED."""
    more = {name: job[name] for name in ("trials", "summary", "libraries") if name in job}
    document = _brief(job) | more
    if job["state"] != "COMPLETED":
        reason = f": {job['error']}" if job["error"] else ""
        message = f"job {job['id']} is {job['state']}{reason}"
        raise CommandFailed(ExitCode.JOB_FAILED, message, result=document)
    keys = " ".join(job["workload_keys"])
    emit(document, json_output, f"{job['id']}  {job['state']}  {job['trials']} trials  {keys}")
    return ExitCode.DONE


def _follow(service: Client, job: dict[str, Any], timeout_s: float | None) -> None:
    view = JobView(job["id"], job["name"], job["state"])
    with display_for() as display:
        for event in events_within(service.events(job["id"]), timeout_s):
            view.apply(event["kind"], event["data"])
            display.show(view)


def events_within(events: Iterator[Event], timeout_s: float | None) -> Iterator[Event]:
    """``events`` as they come. Raises CommandFailed once ``timeout_s`` seconds have passed, news or none.

    A thread waits for the events, because a stream without news gives no chance to look at the clock.
    """
    arrived: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(events, arrived), daemon=True).start()
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            item = arrived.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            message = f"not done after {timeout_s:g} s; the job goes on"
            raise CommandFailed(ExitCode.OUT_OF_TIME, message) from None
        if item is None:
            return
        if isinstance(item, Exception):
            raise item
        yield item


def _pump(events: Iterator[Event], arrived: queue.SimpleQueue[Event | Exception | None]) -> None:
    try:
        for event in events:
            arrived.put(event)
    except Exception as error:  # handed on to the thread that waits for the events
        arrived.put(error)
    else:
        arrived.put(None)


def _brief(job: dict[str, Any]) -> dict[str, Any]:
    return {"job_id": job["id"], "state": job["state"], "workload_keys": job["workload_keys"]}


def _described(job: dict[str, Any]) -> str:
    facts = ("id", "name", "state", "error", "device", "worker", "trials", "created_at", "started_at", "ended_at")
    rows = table(
        ("TASK", "WORKLOAD", "KEY", "TARGET", "DONE"),
        (
            (task["position"], task["workload"], task["workload_key"], task["target_fingerprint"], task["done"])
            for task in job["tasks"]
        ),
    )
    lines = [f"{name:<12}{job[name]}" for name in facts if job[name] not in (None, "")]
    summary = [f"{name:<12}{value}" for name, value in job["summary"].items() if isinstance(value, int | float | str)]
    return "\n".join([*lines, *summary, "", rows])


COMMANDS = (submit, list_jobs, show, watch, cancel, resume)
