"""The output of a command: a document or text on stdout, messages on stderr, an exit code."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any, TypeVar

import click

from shapewright import extras
from tuner.errors import InvalidInput, ShapewrightError, clean

Document = dict[str, Any] | list[dict[str, Any]]
Command = TypeVar("Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """The exit codes that scripts may rely on. BUG is that of an unexpected exception."""

    DONE = 0
    JOB_FAILED = 1
    REFUSED = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    OUT_OF_TIME = 6
    BUG = 70
    INTERRUPTED = 130


_KINDS = {
    ExitCode.JOB_FAILED: "job_failed",
    ExitCode.REFUSED: "refused",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.NOT_ALLOWED: "not_allowed",
    ExitCode.NOT_FOUND: "not_found",
    ExitCode.OUT_OF_TIME: "out_of_time",
    ExitCode.BUG: "bug",
    ExitCode.INTERRUPTED: "interrupted",
}

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write that nobody else is to blame for; the error of a file that is open names none."""
_NAMED = ("field", "problem", "remedy")
"""The members of a problem document that say which input was wrong."""


class CommandFailed(Exception):
    """The failure of a command. ``details`` are added to ``error`` in the JSON document, ``result`` to the document
    itself: the result of a command that did something before it failed."""

    def __init__(
        self, code: ExitCode, message: str, *, result: Mapping[str, Any] | None = None, **details: object
    ) -> None:
        super().__init__(message)
        self.code = code
        self.result = result or {}
        self.details = details

    def document(self) -> dict[str, Any]:
        error = {"kind": _KINDS[self.code], "exit_code": int(self.code), "message": str(self), **self.details}
        return {**self.result, "error": {name: value for name, value in error.items() if value not in (None, "")}}


def as_json(command: Command) -> Command:
    """Gives a command ``--json`` (parameter ``json_output``)."""
    option = click.option("--json", "json_output", is_flag=True, help="One JSON document on stdout, nothing else.")
    return option(command)


class StdoutClosed(OSError):
    """Whoever read stdout has left, as `head` does: there is nothing left to do, and nothing has failed."""


def put(text: str | bytes) -> None:
    """Write to stdout: a text as a line, bytes as they are. Raises StdoutClosed."""
    try:
        click.echo(text, nl=isinstance(text, str))
    except BrokenPipeError:
        # Of its own kind: click makes exit code 1 of a broken pipe, which is that of a job that failed.
        raise StdoutClosed from None


def emit(document: Document, json_output: bool, text: str) -> None:
    """The result of a command: the document as JSON, or the text that a person reads. Raises StdoutClosed."""
    if json_output:
        put(clean(json.dumps(document, indent=2, ensure_ascii=False), as_json=True))
    elif text:
        put(clean(text))


def say(message: str) -> None:
    """A line of progress, for people: on stderr. One that cannot be written ends nothing."""
    with suppress(OSError):
        click.echo(clean(message), err=True)


def report(failure: CommandFailed, json_output: bool) -> None:
    """Print why a command failed: on stdout as JSON with --json, on stderr otherwise, or where stdout takes nothing."""
    if json_output:
        try:
            emit(failure.document(), True, "")
        except OSError:
            drop_stdout()
        else:
            return
    say(f"shapewright: {failure}")


def drop_stdout() -> None:
    """Drop what stdout could not take, or the interpreter tries again as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def emit_last(document: Document, json_output: bool, text: str) -> None:
    """``emit`` for a command that keeps running, whether anybody reads it or not: from here on stdout is redirected to
    stderr."""
    with suppress(StdoutClosed):
        emit(document, json_output, text)
        sys.stdout.flush()
    os.dup2(2, 1)


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Redirect file descriptor 1 to stderr inside: compilers and their libraries print to it."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with aligned columns, for people."""
    lines = [list(header), *([clean(str(cell)).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def yes_no(value: object) -> str:
    return "yes" if value else "no"


def failure_of(error: Exception) -> CommandFailed | None:
    """The failure for an expected error; None for an unexpected one."""
    if isinstance(error, CommandFailed):
        return error
    if isinstance(error, click.ClickException):
        return CommandFailed(ExitCode.REFUSED, _usage(error), field=_field(error))
    if isinstance(error, InvalidInput):
        named = {name: getattr(error, name) for name in _NAMED}
        return CommandFailed(ExitCode.REFUSED, str(error), **named)
    if isinstance(error, ShapewrightError):
        problem = getattr(error, "problem", None)
        members = problem if isinstance(problem, dict) else {}
        return CommandFailed(_code_of(error), str(error), **{name: members.get(name) for name in _NAMED})
    if isinstance(error, ModuleNotFoundError) and (missing := extras.of_error(error)):
        return CommandFailed(ExitCode.REFUSED, str(missing))
    if isinstance(error, OSError) and error.errno in FULL and not error.filename:
        return CommandFailed(ExitCode.REFUSED, f"cannot write: {error.strerror}; make room, or write elsewhere")
    if isinstance(error, OSError) and error.filename:
        return CommandFailed(ExitCode.REFUSED, f"{error.filename}: {error.strerror}", field=str(error.filename))
    return None


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    return error.format_message().rstrip(".") + hint


def _field(error: click.ClickException) -> str | None:
    """The option or the argument that a usage error is about, where click knows."""
    if isinstance(error, click.NoSuchOption):
        return error.option_name
    parameter = getattr(error, "param", None)
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.name if isinstance(parameter, click.Argument) else None


def _code_of(error: ShapewrightError) -> ExitCode:
    # Imported only once there is an error: most commands need neither.
    from shapewright import errors  # noqa: PLC0415
    from tuner.storage import NotFound, StorageUnavailable  # noqa: PLC0415

    codes: tuple[tuple[type[ShapewrightError], ExitCode], ...] = (
        (errors.NotAllowed, ExitCode.NOT_ALLOWED),
        (errors.ServiceNotFound, ExitCode.NOT_FOUND),
        (errors.Refused, ExitCode.REFUSED),
        # Any other error of a client: what answers is not a Shapewright service.
        (errors.ServiceError, ExitCode.UNREACHABLE),
        (NotFound, ExitCode.NOT_FOUND),
        (StorageUnavailable, ExitCode.UNREACHABLE),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), ExitCode.REFUSED)
