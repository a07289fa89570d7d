"""`shapewright tune`: the search of a worker, in this process, recorded in a directory."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright import extras
from shapewright.cli import options
from shapewright.cli.display import Display, JobView, display_for
from shapewright.cli.exclusive import exclusive
from shapewright.cli.jobs import emit_outcome
from shapewright.cli.output import CommandFailed, ExitCode, as_json, quiet_stdout, say
from shapewright.defaults import sqlite_url
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.measure import Builder, Runner
    from tuner.measure.builders.local import LocalBuilder
    from tuner.measure.runners.local_device import LocalDevice
    from tuner.measure.runners.rpc import RpcRunner
    from tuner.program.job.jobspec import Budget, JobSpec
    from tuner.program.job.task import SearchTask
    from tuner.program.target.rates import Rates
    from tuner.storage import Job, Lease
    from tuner.storage.jsonl import SharedRecord
    from tuner.storage.sql import ClientStorage, Storage
    from worker.devices.calibrations import RatesOf

UPDATE_S = 0.5
"""How often the display is updated: seldom, because candidates are measured meanwhile."""
LEASE_WAIT_S = 25.0
"""Longer than the lease of a run that was killed."""
STOP_S = 60.0
"""How long a search that was told to stop may take to finish the measurement under way."""
CLOSED_S = 10.0


@click.command()
@options.job_file
@options.output
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads of a kernel, in place of the job's.")
@click.option("--from", "source", metavar="URL_OR_FILE", help="Start from the records of a service, a file or a DIR.")
@click.option(
    "--measured",
    multiple=True,
    metavar="URL_OR_FILE",
    help="Measure nothing: choose the library by the records of a service, a file or a DIR; or of several.",
)
@options.calibration("Whether theory takes what `device calibrate` or a second of measuring tells of this machine.")
@as_json
def tune(
    *,
    job: Path,
    directory: Path,
    threads: int | None,
    source: str | None,
    measured: Sequence[str],
    calibration: str,
    json_output: bool,
) -> int:
    """Search in this process, without a service.

    The library is written to DIR. Everything measured is recorded in DIR/tuning.db: the same command resumes a search
    that was interrupted, and a job that has ended is searched again from what is known. --from adds what a service, a
    file of `shapewright export` or another DIR knows; it is measured again before it counts, and a job of `trials: 0`
    reads none of it. --measured takes what was measured of this very target as it is, in place of trials: for a machine
    that cannot measure.
    """
    from tuner.measure.processes import stop_on_signals  # noqa: PLC0415  (keeps --help fast)

    extras.require("tune")
    if source is not None and measured:
        raise InvalidInput("--measured", "excludes --from", "give one of them")
    began_s = time.monotonic()
    say(f"tuning {job}: loading the compiler")
    spec = _spec(job, threads, bool(measured))
    shared = _shared(source, measured, spec)
    # Neither signal raises: a second one, as `timeout` sends it, must not close the builder and the device under a
    # search that is about to end.
    options.writable(directory, "--output")
    with (
        exclusive(directory.resolve(), "tune", "--output"),
        quiet_stdout(),
        closing(_storage(directory)) as storage,
        stop_on_signals() as stop,
    ):
        lease = _lease(storage, spec, stop)
        _run(storage, lease, stop, shared, calibration, began_s)
        ended = storage.get_job(lease.job.id)
        if not ended.state.ended:
            if stop.is_set():
                raise KeyboardInterrupt
            raise CommandFailed(ExitCode.JOB_FAILED, f"{ended.error}; the same command resumes job {ended.id}")
        libraries = _write(storage, lease, directory) if ended.state.value == "COMPLETED" else []
    for library in libraries:
        say(f"library {library['digest']} is in {library['directory']}")
    return emit_outcome({**_document(ended, lease), "libraries": libraries}, json_output)


@dataclass(frozen=True)
class LocalTools:
    """The tools of a search in this process: builds in child processes, measures on private devices: this CPU, or a GPU
    behind it, or that alone."""

    local_builder: LocalBuilder
    devices: tuple[LocalDevice, ...]

    def builder(self) -> Builder:
        return self.local_builder

    def runner(self, _key: str) -> Runner:
        from tuner.measure.runners.pool import RunnerPool  # noqa: PLC0415

        if len(self.devices) == 1:
            return self.first()
        return RunnerPool(lambda: {each.pid: partial(self.on, each) for each in self.devices})

    def first(self) -> RpcRunner:
        """A runner on this CPU, if it is one of them."""
        return self.on(self.devices[0])

    def on(self, device: LocalDevice) -> RpcRunner:
        """A runner on one device."""
        from tuner.measure.runners.rpc import RpcRunner  # noqa: PLC0415  (TVM)

        return RpcRunner(device.connect)

    def parallel_builds(self, _key: str, threads: int) -> int:
        return max(0, len(os.sched_getaffinity(0)) - threads)


def _gpus_of(tasks: Sequence[SearchTask], budget: Budget) -> tuple[int | None, ...]:
    """The GPUs that the tasks are measured on, as the driver counts them; None is this CPU, which does for what theory
    alone chooses."""
    from tuner.measure import FIRST_GPU  # noqa: PLC0415  (keeps --help fast)

    kinds = {task.known_target.gpu is not None and budget.trials != 0 for task in tasks}
    return tuple(FIRST_GPU if is_gpu else None for is_gpu in sorted(kinds))


@contextmanager
def _tools(gpus: Sequence[int | None]) -> Iterator[LocalTools]:
    from tuner.measure.builders.local import LocalBuilder  # noqa: PLC0415  (TVM)
    from tuner.measure.runners.local_device import LocalDevice, gpu_options  # noqa: PLC0415

    with closing(LocalBuilder()) as builder, ExitStack() as started:
        with _sigint_blocked():
            builder.start()
            devices = [started.enter_context(LocalDevice(options=gpu_options(gpu))) for gpu in gpus]
        yield LocalTools(builder, tuple(devices))


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start child processes inside, and Ctrl-C does not reach them: a terminal sends it to its whole foreground group.
    This process ends them in order, so that no candidate fails because its builder or device was interrupted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spec(path: Path, threads: int | None, is_measured: bool) -> JobSpec:
    from tuner.program.job.jobspec import parse_job  # noqa: PLC0415  (keeps --help fast)
    from tuner.program.target import native  # noqa: PLC0415

    spec, document = options.read_job(path)
    own: dict[str, Any] = {"threads": threads} if threads is not None else {}
    if is_measured:
        own["budget"] = {"trials": 0}
    if own:
        spec = parse_job({**document, **own})
    return spec.on(native())


def _shared(source: str | None, measured: Sequence[str], spec: JobSpec) -> list[SharedRecord]:
    """The records of ``--from``, but for a job of no trials, which reads none; or those of ``--measured``."""
    from shapewright.warm_start import records_of  # noqa: PLC0415  (keeps --help fast)

    if measured:
        records = [record for each in measured for record in records_of(each, spec.tasks, "--measured")]
        _check_all_are_measured(records, ", ".join(measured), spec.tasks)
        return records
    return list(records_of(source, spec.tasks, "--from")) if source is not None and spec.budget.trials != 0 else []


def _check_all_are_measured(records: Sequence[SharedRecord], source: str, tasks: Sequence[SearchTask]) -> None:
    """Raises InvalidInput where theory would have to choose for one of the tasks."""
    from tuner.schedule import space_of  # noqa: PLC0415  (keeps --help fast)
    from tuner.search.reuse import Reuse, shared_knowledge  # noqa: PLC0415

    for task in tasks:
        known = Reuse(task.with_least_shape(), space_of(task), shared_knowledge(records, task)).results
        if not any(each.ok for each in known):
            asked = f"{task.workload} on {task.known_target}, threads {task.threads}, cache {task.cache.value}"
            remedy = "a job for what was measured, such as the job.json of a bundle"
            raise InvalidInput("--measured", f"{source} has no time of today's kernels for {asked}", remedy)


def _storage(directory: Path) -> Storage:
    from tuner.storage.sql import open_storage, upgrade  # noqa: PLC0415  (keeps --help fast)

    url = sqlite_url(directory / "tuning.db")
    upgrade(url)
    return open_storage(url)


def _lease(storage: Storage, spec: JobSpec, stop: threading.Event) -> Lease:
    """The lease of a new job, or of an unfinished one for the same. Raises KeyboardInterrupt on ``stop``."""
    from worker.jobs.heartbeat import LEASE_S  # noqa: PLC0415  (keeps --help fast)

    job = _unfinished(storage, spec) or storage.create_job(spec)[0]
    until = time.monotonic() + LEASE_WAIT_S
    while (lease := storage.lease_job(f"tune:{os.getpid()}", LEASE_S)) is None:
        if (ended := storage.get_job(job.id)).state.ended:
            raise CommandFailed(ExitCode.JOB_FAILED, f"job {job.id}: {ended.error}")
        if time.monotonic() > until:
            raise CommandFailed(ExitCode.REFUSED, f"another process runs job {job.id}; wait, or use another directory")
        if stop.wait(UPDATE_S):
            raise KeyboardInterrupt
    return lease


def _unfinished(storage: ClientStorage, spec: JobSpec) -> Job | None:
    """The job to resume; all others are cancelled, so that they are not leased instead."""
    unfinished = None
    for job in storage.list_jobs(limit=200).items:
        if not job.state.ended:
            if unfinished is None and job.spec == spec.source:
                unfinished = job
                say(f"resuming job {job.id} with {job.trials} recorded trials")
            else:
                storage.request_cancel(job.id)
    return unfinished


def _rates_of(calibration: str, tools: LocalTools) -> RatesOf:
    """What theory takes for this machine."""
    from shapewright.calibrations import rates_here  # noqa: PLC0415  (keeps --help fast)
    from worker.devices.calibrations import typical  # noqa: PLC0415  (TVM)

    def here(key: str, task: SearchTask, interrupted: Callable[[], bool], _say: Callable[[str], None]) -> Rates:
        with closing(tools.first()) as runner:
            return rates_here(task, runner, interrupted)

    return typical if calibration == "off" else here


def _run(
    storage: Storage,
    lease: Lease,
    stop: threading.Event,
    shared: Sequence[SharedRecord],
    calibration: str,
    began_s: float,
) -> None:
    """Run the job in a thread, and show it here; ``stop`` ends it after the measurement under way.

    Its seconds count from ``began_s`` on, when nothing was loaded yet.
    """
    from tuner.program.job.jobspec import parse_budget  # noqa: PLC0415  (keeps --help fast)
    from worker.jobs.runner import JobRunner  # noqa: PLC0415  (TVM)

    with _tools(_gpus_of([row.task for row in lease.tasks], parse_budget(lease.job.spec.get("budget")))) as tools:
        rates_of = _rates_of(calibration, tools)
        runner = JobRunner(storage, tools, stopping=stop.is_set, shared=shared, rates_of=rates_of, began_s=began_s)
        with _sigint_blocked():
            # Threads inherit the signal mask, and so do their child processes.
            thread = threading.Thread(target=runner.run, args=(lease,), daemon=True)
            thread.start()
        with display_for() as display:
            _show(storage, JobView.of(_document(lease.job, lease)), display, thread, stop)
    # A thread that was still running has lost its tools now, and releases the job.
    thread.join(CLOSED_S)


def _show(
    storage: ClientStorage, view: JobView, display: Display, thread: threading.Thread, stop: threading.Event
) -> None:
    """Show the job until its thread has ended, or STOP_S after ``stop``."""
    seen, alive, until = 0, True, None
    while alive and (until is None or time.monotonic() < until):
        alive = thread.is_alive()
        for event in storage.list_events(view.job_id, seen):
            view.apply(event.kind, event.data)
            seen = event.seq
        display.show(view)
        if stop.is_set() and until is None:
            say("stopping; the same command resumes the search")
            until = time.monotonic() + STOP_S
        thread.join(UPDATE_S)


def _write(storage: ClientStorage, lease: Lease, directory: Path) -> list[dict[str, Any]]:
    """Write the library of each search task: a single one to ``directory``, several to folders below it."""
    from shapewright.download import write  # noqa: PLC0415  (keeps --help fast)

    written = []
    for task in lease.tasks:
        artifact = storage.latest_artifact(task.workload_key, task.target_fingerprint, lease.job.id)
        several = len(lease.tasks) > 1
        folder = directory / task.workload_key / task.target_fingerprint if several else directory
        write(storage.artifact_files(artifact.digest), folder)
        facts = {"workload_key": task.workload_key, "target_fingerprint": task.target_fingerprint}
        written.append({"directory": str(folder), "digest": artifact.digest, **facts})
    return written


def _document(job: Job, lease: Lease) -> dict[str, Any]:
    """The job as a service returns it, as far as the display needs it."""
    keys = list(dict.fromkeys(task.workload_key for task in lease.tasks))
    names = ("id", "name", "error", "trials", "summary", "spec")
    tasks = [
        {
            "position": task.position,
            "workload": str(task.task.workload),
            "count": task.count,
            "workload_key": task.workload_key,
            "target_fingerprint": task.target_fingerprint,
            "done": job.state.value == "COMPLETED",
        }
        for task in lease.tasks
    ]
    facts = {name: getattr(job, name) for name in names} | {"state": job.state.value}
    return {**facts, "workload_keys": keys, "tasks": tasks}


COMMANDS = (tune,)
