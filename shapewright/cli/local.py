"""Commands that need no service: `tune`, `ops`, `explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.output import as_json, emit, table

if TYPE_CHECKING:
    from tuner.program.ops import Op

    from tuner.program.task import SearchTask


@click.command()
@as_json
def ops(json_output: bool) -> None:
    """List the catalogue of operators: their axes, their rules."""
    from tuner.program.ops import OPS  # noqa: PLC0415

    rows = [_op_row(op) for _, op in sorted(OPS.items())]
    lines = ((row["name"], " ".join(row["args"]), "; ".join(row["layouts"]), row["rule"]) for row in rows)
    emit(rows, json_output, table(("NAME", "ARGS", "LAYOUT", "RULE"), lines))


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


def _op_row(op: Op) -> dict[str, Any]:
    from tuner.program.workload import Workload  # noqa: PLC0415
    from tuner.rules import rule_for  # noqa: PLC0415

    parts = op.contraction
    inputs = " ".join(f"{operand.name}[{','.join(operand.axes)}]" for operand in (parts.left, parts.right))
    return {
        "name": op.name,
        "args": list(op.args),
        "layouts": [f"{inputs} -> {parts.output.name}[{','.join(parts.output.axes)}]"],
        "dtypes": list(op.dtypes),
        "rule": rule_for(Workload.of(op, dict.fromkeys(op.args, 64))).name,
        "doc": op.doc,
    }


def _explained(task: SearchTask) -> dict[str, Any]:
    from tuner.program.target import native  # noqa: PLC0415
    from tuner.rules import RULES, rule_for  # noqa: PLC0415

    rule = rule_for(task.workload)
    task = task if task.target else task.on(native())
    space = rule.space(task)
    passed_over = {other.name: other.refuses(task.workload) for other in RULES[: RULES.index(rule)]}
    return {
        "workload": str(task.workload),
        "workload_key": task.workload.key,
        "target": task.target.fingerprint if task.target else None,
        "rule": rule.name,
        "rule_version": rule.version,
        # A rule's module says in its first line which pattern it knows.
        "why": (sys.modules[type(rule).__module__].__doc__ or rule.name).splitlines()[0].replace("`", ""),
        "passed_over": passed_over,
        "axes": [{"name": axis.name, "doc": axis.doc, "choices": list(axis.choices)} for axis in space.axes],
        "size": space.size,
    }


def _explanation(task: dict[str, Any]) -> str:
    axes = ((axis["name"], " ".join(map(str, axis["choices"])), axis["doc"]) for axis in task["axes"])
    return "\n".join(
        [
            f"{task['workload']}  ({task['workload_key']})",
            *(f"not by {name}: {reason}" for name, reason in task["passed_over"].items()),
            f"by {task['rule']} version {task['rule_version']}: {task['why']}",
            f"{task['size']:,} points before the hardware's limits, over these axes:",
            table(("AXIS", "CHOICES", "MEANING"), axes),
        ]
    )


COMMANDS = (ops, explain)
