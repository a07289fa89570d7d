"""`shapewright trials`: what a job measured, as a table, as CSV or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.finding import job_id, service_and_job
from shapewright.cli.output import as_json, emit, put, say, table
from tuner.durations import format_duration
from tuner.errors import InvalidInput
from tuner.program.language.shape_vars import format_shape
from tuner.records import ErrorKind, Phase

if TYPE_CHECKING:
    from shapewright.client import Client

SHOWN = 50
Trial = Mapping[str, Any]


@click.command()
@job_id
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values on stdout, a column for each axis.")
@click.option("--task", type=click.IntRange(min=0), metavar="N", help="Only of this search task [default: of all].")
@click.option(
    "--error",
    type=click.Choice((*(each.value for each in ErrorKind), "any", "none")),
    help="Only trials that failed so; any: all that failed.",
)
@click.option("--kernel", metavar="ID", help="Only of this kernel, by the beginning of its id.")
@click.option("--instance", metavar="T=5", help="Only at this shape.")
@click.option("--phase", type=click.Choice([each.value for each in Phase]), help="Only of this part of the search.")
@click.option("--limit", type=click.IntRange(1, 10_000_000), default=SHOWN, show_default=True, metavar="N",
              help="Rows of the table, the newest ones.")  # fmt: skip
@options.service
@as_json
def trials(
    *,
    job_id: str,
    as_csv: bool,
    task: int | None,
    limit: int,
    url: str | None,
    key: str | None,
    json_output: bool,
    **wanted: str | None,
) -> None:
    """List the trials of a job.

    A trial is one micro-kernel, built and measured on one instance. --csv and --json have all that fit. In Python
    `client.trials_dataframe(ID)` gives the columns of --csv.
    """
    if as_csv and json_output:
        raise click.UsageError("give either --csv or --json")
    filters = {name: value for name, value in wanted.items() if value}
    with service_and_job(url, key, job_id) as (service, found):
        positions = range(service.job(found)["task_count"]) if task is None else range(task, task + 1)
        if as_csv:
            return _print_csv(service, found, positions, filters)
        if json_output:
            return emit(list(_lines(service, found, positions, filters)), True, "")
        newest = list(islice(_lines(service, found, positions, filters, newest_first=True), limit + 1))
    emit([], False, _table(newest[:limit][::-1]))
    if len(newest) != min(len(newest), limit):
        say(f"the newest {limit} trials: --limit N shows more")
    elif not newest:
        say("no trial fits")
    return None


def _lines(
    service: Client, job: str, positions: Sequence[int], filters: Mapping[str, Any], *, newest_first: bool = False
) -> Iterator[dict[str, Any]]:
    """The trials of several search tasks, each with its ``task``, in one order."""
    of_tasks = [
        ({"task": each, **line} for line in service.trial_lines(job, each, newest_first=newest_first, **filters))
        for each in positions
    ]
    return merge(*of_tasks, key=lambda line: int(line["seq"]), reverse=newest_first)


def _print_csv(service: Client, job: str, positions: Sequence[int], filters: Mapping[str, Any]) -> None:
    if len(positions) != 1:
        problem = f"the job has {len(positions)} search tasks, which differ in their columns"
        raise InvalidInput("--task", problem, f"one of 0 to {len(positions) - 1}")
    for piece in service.trials_file(job, positions[0], **filters):
        put(piece)


def _table(rows: Sequence[Trial]) -> str:
    header = ("TASK", "SEQ", "PHASE", "ROUND", "INSTANCE", "LATENCY", "PREDICTED", "KERNEL", "CHOICES")
    return table(header, map(_row, rows)) if rows else ""


def _row(trial: Trial) -> tuple[object, ...]:
    outcome = trial["error_kind"] or _time(trial["latency_s"])
    choices = " ".join(f"{name}={value}" for name, value in trial["choices"].items())
    return (
        *(trial["task"], trial["seq"], trial["phase"], trial["round"], format_shape(trial["instance"]), outcome),
        *(_time(trial["predicted_s"]), trial["kernel_id"], trial["error"].partition("\n")[0] or choices),
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


COMMANDS = (trials,)
