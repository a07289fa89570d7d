"""`shapewright trials`: what a job measured, as a table, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from shapewright.cli import options
from shapewright.cli.finding import job_id, service_and_job
from shapewright.cli.output import as_json, emit, say, table
from tuner.durations import format_duration
from tuner.errors import InvalidInput
from tuner.program.language.shape_vars import format_shape
from tuner.records import ErrorKind, Phase

ANY, NONE = "any", "none"
SHOWN = 50
"""Trials of the table, the newest, unless --limit says otherwise."""
Trial = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which trials are listed; what is empty holds back none.

    ``error``: a kind of failure, ANY or NONE. ``kernel``: the beginning of its id, or its rule. ``shape``: some of the
    instance's sizes.
    """

    error: str = ""
    kernel: str = ""
    shape: Mapping[str, int] | None = None
    phase: str = ""

    def takes(self, trial: Trial) -> bool:
        error = trial["error_kind"]
        return (
            (not self.error or (error == self.error or (self.error == ANY and bool(error)))
             or (self.error == NONE and not error))
            and (trial["kernel_id"].startswith(self.kernel) or trial["kernel"]["rule"] == self.kernel)
            and all(trial["instance"].get(name) == size for name, size in (self.shape or {}).items())
            and self.phase in ("", trial["phase"])
        )  # fmt: skip


@click.command()
@job_id
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values on stdout, a column for each axis.")
@click.option(
    "--error",
    type=click.Choice((*(each.value for each in ErrorKind), ANY, NONE)),
    help="Only trials that failed so; any: all that failed.",
)
@click.option(
    "--kernel", default="", metavar="ID", help="Only of this kernel, by the beginning of its id, or its rule."
)
@click.option("--instance", metavar="T=5", help="Only at this shape; some of its variables are enough.")
@click.option("--phase", type=click.Choice([each.value for each in Phase]), help="Only of this part of the search.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000_000), metavar="N", help="The newest N [default: 50 in a table, else all]."
)
@options.service
@as_json
def trials(
    *,
    job_id: str,
    as_csv: bool,
    error: str | None,
    kernel: str,
    instance: str | None,
    phase: str | None,
    limit: int | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """List the trials of a job.

    A trial is one micro-kernel, built and measured on one instance. In Python `client.trials_dataframe(ID)` gives the
    columns of --csv.
    """
    if as_csv and json_output:
        raise click.UsageError("give either --csv or --json")
    wanted = Wanted(error or "", kernel, _shape(instance), phase or "")
    with service_and_job(url, key, job_id) as (service, found):
        every = list(service.trials(found))
    listed = [trial for trial in every if wanted.takes(trial)]
    newest = listed[-limit:] if limit else listed
    if as_csv:
        click.echo(_csv(newest), nl=False)
        return
    shown = newest if limit else newest[-SHOWN:]
    emit(newest, json_output, _table(shown))
    if not json_output:
        say(f"{len(shown)} of {len(listed)} trials" + _left_out(len(every) - len(listed)))


def _shape(text: str | None) -> Mapping[str, int] | None:
    from tuner.program.job.task import parse_shape  # noqa: PLC0415  (keeps --help fast)

    try:
        return parse_shape(text) if text else None
    except InvalidInput as error:
        raise InvalidInput("--instance", error.problem, error.remedy) from None


def _left_out(count: int) -> str:
    return f"; {count} others do not fit what was asked for" if count else ""


def _table(rows: Sequence[Trial]) -> str:
    if not rows:
        return ""
    return table(("SEQ", "PHASE", "ROUND", "INSTANCE", "LATENCY", "PREDICTED", "KERNEL", "VALUES"), map(_line, rows))


def _line(trial: Trial) -> tuple[object, ...]:
    from tuner.schedule.space import MicroKernel  # noqa: PLC0415  (keeps --help fast)

    shape = {name: int(size) for name, size in trial["instance"].items() if name != "weight"}
    outcome = trial["error_kind"] or _time(trial["latency_s"])
    values = trial["error"].partition("\n")[0] or MicroKernel.from_json(trial["kernel"]).shown
    return (
        *(trial["seq"], trial["phase"], trial["round"], format_shape(shape), outcome),
        *(_time(trial["predicted_s"]), trial["kernel_id"], values),
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _csv(rows: Iterable[Trial]) -> str:
    from tuner.storage.trial_rows import columns_of, row_of  # noqa: PLC0415  (keeps --help fast)

    flat = [row_of(trial) for trial in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(flat), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


COMMANDS = (trials,)
