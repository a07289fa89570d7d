"""The command line, from click."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import click

from docs.tools.markdown import code, prose, table
from shapewright.cli.main import cli
from shapewright.cli.output import ExitCode

ROOT = Path(__file__).parents[2]
MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.JOB_FAILED: "the job failed or was cancelled; of `check`: a library is not whole, wrong, or slower",
    ExitCode.REFUSED: "bad usage, a refused job, settings of the environment that cannot be used, or no room for the "
    "output; with `--json`, `error` names `field`, `problem` and `remedy`",
    ExitCode.UNREACHABLE: "the service, or its database, does not answer",
    ExitCode.NOT_ALLOWED: "the API key is missing, unknown or revoked, or does not allow this",
    ExitCode.NOT_FOUND: "nothing of that name",
    ExitCode.OUT_OF_TIME: "out of time (`--timeout S`); the job goes on",
    ExitCode.BUG: "an unexpected exception: a defect",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}


def all_commands(group: click.Group = cli, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def commands() -> str:
    return "\n\n".join(_command(name, command) for name, command in all_commands())


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"shapewright {name}")
    usage = f"```text\nshapewright {name} {' '.join(command.collect_usage_pieces(context))}\n```"
    text = prose(command.help).replace("\b\n", "")
    records = (each.get_help_record(context) for each in command.params if isinstance(each, click.Option))
    rows = [(code(options), help_text) for options, help_text in filter(None, records)]
    return "\n\n".join(part for part in (f"## {name}", usage, text, table(("option", "is"), rows)) if part)


def exit_codes() -> str:
    return table(("code", "means"), [(str(each.value), MEANINGS[each]) for each in ExitCode])


def make_targets() -> str:
    """The targets that ``make help`` lists, which are those with a text behind ``##``."""
    lines = re.findall(r"^([a-z]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return table(("target", "does"), [(code(f"make {name}"), text) for name, text in lines])


def problems() -> str:
    """Every problem document that the service's code names, by the literals of its calls of ``problem``."""
    calls = (node for file in (ROOT / "service").rglob("*.py") for node in ast.walk(ast.parse(file.read_text())))
    found = {_problem(node) for node in calls if isinstance(node, ast.Call) and _is_problem(node)}
    rows = [(str(status), code(name), title) for status, name, title in sorted(found) if name]
    return table(("status", "name", "title"), rows)


def _is_problem(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("problem", "_logged")


def _problem(call: ast.Call) -> tuple[int, str, str]:
    """Status (500 where the call leaves it out), name and title (the status's own where it is computed)."""
    given = [each.value for each in call.args if isinstance(each, ast.Constant)]
    status = next((each for each in given if isinstance(each, int)), 500)
    name, title, *_ = (*(each for each in given if isinstance(each, str)), "", "")
    return status, name, title or HTTPStatus(status).phrase
