"""Commands that need no service: `tune`, `ops`, `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.output import as_json, emit, table
from tuner.program.job.cache import Cache

if TYPE_CHECKING:
    from tuner.program.job.task import SearchTask


@click.command()
@as_json
def ops(json_output: bool) -> None:
    """List the operators: their args, rules and programs."""
    from tuner.program.catalogue import OPS  # noqa: PLC0415
    from tuner.program.target import native  # noqa: PLC0415
    from tuner.schedule.described import op_described  # noqa: PLC0415

    rows = [op_described(op, native()) for _, op in sorted(OPS.items())]
    lines = ((row["name"], " ".join(row["args"]), row["rule"], row["program"].splitlines()) for row in rows)
    stages = (
        (*(head if index == 0 else ("", "", "")), stage) for *head, text in lines for index, stage in enumerate(text)
    )
    emit(rows, json_output, table(("NAME", "ARGS", "RULE", "PROGRAM"), stages))


@click.command()
@options.job_file
@as_json
def explain(job: Path, json_output: bool) -> None:
    """Say how a job would be searched, before it costs anything.

    That is: which rule takes each workload and why, and what the search will choose from.
    """
    spec, _ = options.read_job(job)
    tasks = [_explained(task) for task in spec.tasks]
    emit({"name": spec.name, "tasks": tasks}, json_output, "\n\n".join(_explanation(task) for task in tasks))


def _explained(task: SearchTask) -> dict[str, Any]:
    from tuner.program.target import native  # noqa: PLC0415
    from tuner.schedule.described import explained  # noqa: PLC0415

    return explained(task if task.target else task.on(native()))


def _explanation(task: dict[str, Any]) -> str:
    axes = ((axis["shown"], " ".join(map(str, axis["choices"])), axis["doc"]) for axis in task["axes"])
    takers = " and ".join(rule["name"] for rule in task["rules"])
    return "\n".join(
        [
            f"{takers} take{'s' * (len(task['rules']) == 1)} {task['workload']}  ({task['workload_key']})",
            *([] if task["cache"] == Cache.WARM else [f"timed with caches {task['cache']}"]),
            *(f"    {rule['name']} version {rule['version']}: {rule['why']}" for rule in task["rules"]),
            "computed:",
            *(f"    {stage}" for stage in task["program"].splitlines()),
            f"{task['size']:,} points before the hardware's limits, over these axes:",
            table(("AXIS", "CHOICES", "MEANING"), axes),
            *(["passed over:"] if task["passed_over"] else []),
            *(f"    {name}: {reason}" for name, reason in task["passed_over"].items()),
        ]
    )


COMMANDS = (ops, explain)
