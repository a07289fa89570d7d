"""Parses the command lines of containers by the parsers of the programs that they start."""

from __future__ import annotations

import worker  # noqa: F401 - before Ray, which reads when it is imported what this sets

# isort: split

from collections.abc import Sequence

import click
from ray.scripts.scripts import cli as ray_cli

from shapewright.cli.main import cli


def parse(line: Sequence[str]) -> str:
    """The program, or the sub-command, that takes the line. Raises UsageError or SystemExit if none does."""
    program, *arguments = line
    if program == "shapewright":
        return _parse(cli, program, arguments)
    if program == "ray":
        return _parse(ray_cli, program, arguments)
    raise click.UsageError(f"no part of Shapewright starts {program!r}")


def _parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> str:
    context = command.make_context(name, list(arguments), parent=parent)
    if not isinstance(command, click.Group):
        return context.command_path
    # What a group has not parsed itself is its sub-command's.
    rest = [*context._protected_args, *context.args]
    found_name, result, rest = command.resolve_command(context, rest)
    assert result is not None and found_name is not None
    return _parse(result, found_name, rest, context)
