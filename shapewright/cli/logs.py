"""`shapewright logs`: what the parts logged about a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shapewright.cli import options
from shapewright.cli.finding import job_id, service_and_job
from shapewright.cli.jobs import events_within, timeout
from shapewright.cli.output import as_json, emit, put, say
from tuner.errors import clean

MAX_LINES = 1000


@click.command()
@job_id
@click.option("--follow", "-f", is_flag=True, help="Print further lines until the job has ended.")
@click.option("--part", metavar="NAME", help="Only of this part: worker, api, device-0, tracker; or job, its events.")
@click.option("--limit", type=click.IntRange(1, MAX_LINES), default=MAX_LINES, show_default=True, metavar="N")
@timeout
@options.service
@as_json
def logs(
    *,
    job_id: str,
    follow: bool,
    part: str | None,
    limit: int,
    timeout: float | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Print what was logged about a job.

    Lines of the parts that `up` runs on the service's machine, and what the job itself noted, in order of time. Parts
    on other machines keep their own logs, and are named at the end; what they note of a job is here.
    """
    if follow and json_output:
        raise click.UsageError("--json prints one document: leave --follow out")
    if timeout is not None and not follow:
        raise click.UsageError("--timeout only makes sense together with --follow")
    with service_and_job(url, key, job_id) as (service, found):
        lines = service.logs(found, follow=follow, limit=limit)
        if follow:
            for batch in events_within(lines, timeout):
                for line in batch:
                    if part in (None, line["part"]):
                        put(clean(line_text(line)))
        else:
            chosen = [line for line in lines if part in (None, line["part"])]
            emit(chosen, json_output, "\n".join(map(line_text, chosen)))
            if not chosen:
                say("nothing was logged" + (f" by {part}" if part else ""))
        if others := service.log_parts(found)["elsewhere"]:
            say(f"not here, but in their logs where they run: {', '.join(others)}")


def line_text(line: Mapping[str, Any]) -> str:
    """``2026-11-26T11:09:36.524+00:00  worker  info  ...``"""
    return f"{line['time']}  {line['part']:<8}  {line['level']:<7}  {line['text']}"


COMMANDS = (logs,)
