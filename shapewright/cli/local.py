"""Commands that need no service: `tune`, `ops`, `explain`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.output import as_json, emit, table

if TYPE_CHECKING:
    from tuner.program.catalogue import Op
    from tuner.program.job.task import SearchTask
    from tuner.program.language.workload import Workload
    from tuner.schedule import NoMatch, Rule


@click.command()
@as_json
def ops(json_output: bool) -> None:
    """List the operators: their args, rules and programs."""
    from tuner.program.catalogue import OPS  # noqa: PLC0415

    rows = [_op_row(op) for _, op in sorted(OPS.items())]
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


def _op_row(op: Op) -> dict[str, Any]:
    from tuner.program.job.build import make_workload  # noqa: PLC0415
    from tuner.program.language.dtypes import FLOATS  # noqa: PLC0415
    from tuner.program.target import native  # noqa: PLC0415
    from tuner.schedule import rules_for  # noqa: PLC0415

    workload = make_workload(op, dict.fromkeys(op.args, 64) | {name: 3 for name in "rs" if name in op.args})
    inputs = " ".join(_read_text(workload, name) for name in workload.program.inputs)
    outputs = " ".join(f"{name}[{','.join(workload.program.stage[name].axes)}]" for name in workload.program.outputs)
    return {
        "name": op.name,
        "args": list(op.args),
        "settings": {name: setting.default for name, setting in op.settings.items()},
        "layouts": [f"{inputs} -> {outputs}"],
        "dtypes": sorted(FLOATS),
        "rule": rules_for(workload, native())[0].name,
        "program": str(workload.program),
        "constant": list(workload.constants),
        "doc": op.doc,
    }


def _read_text(workload: Workload, tensor: str) -> str:
    """``x[m,k]``: how a program reads a tensor first."""
    from tuner.program.language.expr import text_of  # noqa: PLC0415

    read = next(read for read in workload.program.reads if read.tensor == tensor)
    return text_of(read).replace(", ", ",")


def _explained(task: SearchTask) -> dict[str, Any]:
    from tuner.program.target import native  # noqa: PLC0415
    from tuner.schedule import NoMatch, explain, rules_of, space_of  # noqa: PLC0415

    task = task if task.target else task.on(native())
    rules, space = rules_of(task), space_of(task)
    answers = explain(task.workload, task.known_target)
    return {
        "workload": str(task.workload),
        "workload_key": task.workload.key,
        "program": str(task.workload.program),
        "symbols": {name: str(dim) for name, dim in task.workload.symbol_exprs.items()},
        "operands": [
            {"name": each.name, "dtype": each.dtype, "shape": list(map(str, each.dims)), "constant": each.constant}
            for each in task.workload.operands
        ],
        "target": task.known_target.fingerprint,
        "rule": rules[0].name,
        "rule_version": rules[0].version,
        # A rule's module says in its first line which pattern it knows.
        "why": _pattern(rules[0]),
        "rules": [
            {"name": rule.name, "version": rule.version, "why": _pattern(rule), "roles": _roles(answers[rule.name])}
            for rule in rules
        ],
        "passed_over": {name: answer.reason for name, answer in answers.items() if isinstance(answer, NoMatch)},
        "axes": [
            {"name": axis.name, "shown": axis.shown, "doc": axis.doc, "choices": list(axis.choices), "rule": each.rule}
            for each in space.spaces
            for axis in each.axes
        ],
        "size": space.size,
    }


def _pattern(rule: Rule) -> str:
    return (sys.modules[type(rule).__module__].__doc__ or rule.name).splitlines()[0].replace("`", "")


def _roles(answer: Mapping[str, str] | NoMatch) -> dict[str, str]:
    return dict(answer) if isinstance(answer, Mapping) else {}


def _explanation(task: dict[str, Any]) -> str:
    axes = ((axis["shown"], " ".join(map(str, axis["choices"])), axis["doc"]) for axis in task["axes"])
    takers = " and ".join(rule["name"] for rule in task["rules"])
    return "\n".join(
        [
            f"{takers} take{'s' * (len(task['rules']) == 1)} {task['workload']}  ({task['workload_key']})",
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
