"""The `shapewright` command: its sub-commands, and the exit codes of their errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from shapewright import defaults
from shapewright.cli import (
    admin,
    bundle,
    check,
    compare,
    database,
    device_tokens,
    doctor,
    init,
    jobs,
    libraries,
    local,
    logs,
    models,
    parts,
    pull,
    records,
    reports,
    snapshot,
    trials,
    tune,
    up,
)
from shapewright.cli.output import CommandFailed, ExitCode, StdoutClosed, drop_stdout, failure_of, report, say
from tuner import __version__, without_torch

DEBUG = "SHAPEWRIGHT_DEBUG"
PRINTED_BY_CLICK = frozenset({"-h", "--help", "--version"})


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Tune tensor programs whose shapes are dynamic.

    `up` starts a service on this machine; `submit` hands it a job; `pull` downloads the resulting library. `tune`
    does the same in one process, without a service.
    """


GROUPS = (
    *(up, parts, init, tune, local, jobs, trials, logs, compare, models, libraries, pull, snapshot, check),
    *(reports, records, bundle, admin, device_tokens, database, doctor),
)
for _group in GROUPS:
    for _command in _group.COMMANDS:
        cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line (this process's own unless given) and exit with its code."""
    without_torch.install()
    defaults.ensure_home()
    _open_streams()
    line = sys.argv[1:] if arguments is None else arguments
    sys.exit(_flushed(run(line), line))


def _open_streams() -> None:
    """Have stdout and stderr lead somewhere, and take every character: a program may be started without them, or with
    ones that know few."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        getattr(sys, name).reconfigure(errors="backslashreplace")


def _flushed(code: int, arguments: Sequence[str]) -> int:
    """The exit code, once stdout has taken what was printed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        return code or _failed(failure_of(error) or _bug(error), arguments)
    return code


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. An error is one message, never a traceback."""
    try:
        result = cli.main(list(arguments), prog_name="shapewright", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        # What click itself makes of a group without a command: its help, and the code of a usage error.
        say(error.format_message())
        return ExitCode.REFUSED
    except (click.Abort, KeyboardInterrupt):
        return _failed(CommandFailed(ExitCode.INTERRUPTED, "interrupted"), arguments)
    except StdoutClosed:
        drop_stdout()
        return ExitCode.DONE
    except SystemExit:
        # What click makes of a broken pipe; what it prints itself is help and the version.
        if not PRINTED_BY_CLICK.intersection(arguments):
            raise
        drop_stdout()
        return ExitCode.DONE
    except Exception as error:  # the outermost boundary
        return _failed(failure_of(error) or _bug(error), arguments)
    return result if isinstance(result, int) else ExitCode.DONE


def _failed(failure: CommandFailed, arguments: Sequence[str]) -> int:
    try:
        report(failure, "--json" in arguments)
    except OSError:
        drop_stdout()
    return failure.code


def _bug(error: Exception) -> CommandFailed:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    what = f"unexpected {type(error).__name__}: {error}"
    text = f"{what}; this is a defect of Shapewright ({DEBUG}=1 prints where it was)"
    return CommandFailed(ExitCode.BUG, text)
