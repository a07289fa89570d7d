"""Commands about the results of searches: `best`, `pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.jobs import client
from shapewright.cli.output import as_json, emit
from tuner.durations import format_duration
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.program.task import SearchTask

workload = click.argument("workload", metavar="WORKLOAD")
target = click.option("--target", help="A target's fingerprint [default: the job file's, or the newest known].")


@click.command()
@workload
@click.option("--shape", required=True, help="Each shape variable (T=37,S=4) or, of a key, each symbol (m=592).")
@target
@options.service
@as_json
def best(
    *, workload: str, shape: str, target: str | None, url: str | None, key: str | None, json_output: bool
) -> None:
    """Print the best recorded micro-kernel for one shape.

    WORKLOAD is a key or a job file. The library's dispatcher may serve another kernel there: it is printed too.
    """
    name, target = resolve(workload, target)
    with client(url, key) as service:
        answer = service.best(name, shape, target)
    measured, predicted = _latency(answer["latency_s"]), _latency(answer["predicted_latency_s"])
    kernel, served = answer["kernel"], answer.get("served_by")
    text = f"{answer['match']}  {_name(kernel)}  measured {measured}  predicted {predicted}"
    if served and served.get("id") != kernel.get("id"):
        text += f"  the library runs {_name(served)}"
    emit(answer, json_output, text)


@click.command()
@workload
@options.output
@click.option("--job", metavar="ID", help="Only a library that this job built.")
@click.option("--digest", metavar="SHA256", help="Only the library with this digest.")
@target
@options.service
@as_json
def pull(
    *,
    workload: str,
    directory: Path,
    job: str | None,
    digest: str | None,
    target: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Download the newest library of a workload.

    WORKLOAD is a key or a job file.
    """
    name, target = resolve(workload, target)
    with client(url, key) as service:
        try:
            manifest = service.download_library(name, directory, job=job, digest=digest, target=target)
        except OSError as error:
            # The error may name a temporary file; the user knows the directory.
            raise options.not_writable(directory, "--output", error) from error
    text = f"{directory}: library {manifest['digest']} for {manifest['target_fingerprint']}"
    emit({"directory": str(directory), **manifest}, json_output, text)


def resolve(workload: str, target: str | None) -> tuple[str | SearchTask, str | None]:
    """A workload's key, or the search task of a job file, and the target's fingerprint. Raises InvalidInput."""
    path = Path(workload)
    if not path.exists():
        if "/" in workload or path.suffix in (".yaml", ".yml", ".json"):
            raise InvalidInput("workload", f"there is no file {workload}", "a workload's key, or a job file")
        return workload, target
    spec, _ = options.read_job(path)
    task = _only(spec.tasks)
    return task, target or (task.target.fingerprint if task.target else None)


def _only(tasks: tuple[SearchTask, ...]) -> SearchTask:
    keys = sorted({task.workload.key for task in tasks})
    if len(keys) > 1:
        raise InvalidInput("workload", f"the job file has {len(keys)} workloads", f"name one: {', '.join(keys)}")
    return tasks[0]


def _name(kernel: dict[str, Any]) -> str:
    return str(kernel.get("name", kernel.get("id", "")))


def _latency(seconds: float | None) -> str:
    return "never" if seconds is None else format_duration(seconds)


COMMANDS = (best, pull)
