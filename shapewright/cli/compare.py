"""`shapewright compare`: jobs side by side, over what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from shapewright.cli import options
from shapewright.cli.finding import JOBS, client, job_named
from shapewright.cli.output import as_json, emit, table
from tuner.durations import format_duration
from tuner.program.job.cache import Cache
from tuner.program.language.shape_vars import format_shape
from tuner.search.outcome import Outcome

NOTHING = "-"


@click.command()
@click.argument("job_ids", metavar="ID ID...", nargs=-1, shell_complete=JOBS)
@options.service
@as_json
def compare(*, job_ids: tuple[str, ...], url: str | None, key: str | None, json_output: bool) -> None:
    """Compare 2 to 8 jobs over their equal workloads.

    Of each shape the time of each job, and how many times as fast as the first it is, with a 95 % interval: from what
    is recorded, nothing is measured. Workloads that only one of them has are listed with what is unlike.
    """
    with client(url, key) as service:
        named = [job_named(service, each) or each for each in job_ids]
        document = service.compare(named)
    emit(document, json_output, described(document))


def described(document: Mapping[str, Any]) -> str:
    """A table of the jobs, one of shapes for each workload that several have, and what is unlike."""
    numbers = {job["id"]: f"[{number}]" for number, job in enumerate(document["jobs"], 1)}
    parts = [
        table(("", "ID", "NAME", "STATE", "TRIALS", "SPEED-UP"), map(_job_row, numbers.values(), document["jobs"]))
    ]
    parts += [_pairing(each, numbers) for each in document["pairings"]]
    if document["left_out"]:
        parts.append(f"{document['left_out']} more workloads are equal: too many for one answer")
    if document["unlike"]:
        rows = ((numbers[each["job_id"]], each["workload"], each["reason"]) for each in document["unlike"])
        parts.append("not compared:\n" + table(("", "WORKLOAD", "UNLIKE"), rows))
    if document["pairings"]:
        parts.append(f"ratios above 1 are faster than {next(iter(numbers.values()))}; {document['method']}")
    return "\n\n".join(parts)


def _job_row(number: str, job: Mapping[str, Any]) -> tuple[object, ...]:
    return number, job["id"], job["name"], job["state"], job["trials"], _outcome(job["outcome"])


def _outcome(data: Mapping[str, Any]) -> str:
    return str(Outcome.from_json(data)) or NOTHING


def _pairing(pairing: Mapping[str, Any], numbers: Mapping[str, str]) -> str:
    threads = pairing["threads"]
    title = f"{pairing['workload']} for {pairing['target_fingerprint']}, {threads} thread{'s' * (threads != 1)}"
    title += Cache(pairing["cache"]).note
    header = ["SHAPE", "WEIGHT", *(numbers[each["job_id"]] for each in pairing["totals"])]
    rows: list[Sequence[object]] = [
        (format_shape(line["shape"]), f"{line['weight']:g}", *map(_cell, line["jobs"])) for line in pairing["shapes"]
    ]
    rows.append(("total", "", *map(_total, pairing["totals"])))
    return f"{title}\n{table(header, rows)}"


def _cell(entry: Mapping[str, Any]) -> str:
    time = NOTHING if entry["latency_s"] is None else format_duration(entry["latency_s"])
    return " ".join(filter(None, (time, _ratio(entry["ratio"]))))


def _total(entry: Mapping[str, Any]) -> str:
    time = NOTHING if entry["total_s"] is None else format_duration(entry["total_s"])
    return " ".join(filter(None, (time, _ratio(entry["ratio"]), f"over {entry['shapes']} shapes")))


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    """``1.25x (1.10-1.40)``, and the verdict in place of a number within its noise."""
    if ratio is None:
        return ""
    interval = f"({ratio['low']:.2f}-{ratio['high']:.2f})"
    return f"equal {interval}" if ratio["verdict"] == "equal" else f"{ratio['ratio']:.2f}x {interval}"


COMMANDS = (compare,)
