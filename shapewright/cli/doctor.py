"""`shapewright doctor`: what is wrong with this machine, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from shapewright import defaults
from shapewright.cli import options
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=defaults.DEFAULT_PORT,
    show_default=True,
    help="Where `up` would be.",
)
@click.option(
    "--seconds",
    type=options.Seconds(),
    default=1.0,
    show_default=True,
    help="How long the machine's noise is measured.",
)
@options.database_url
@options.data_dir
@options.service
@as_json
def doctor(
    *,
    port: int,
    seconds: float,
    database_url: str | None,
    data_dir: Path | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Say what is wrong with this machine, and what to do.

    Versions, CPU, memory, noise, NumPy's BLAS, the C compiler, disks, the database and its schema, the service, the
    port of `up`. The exit code is 1 where something will not work; what is only slow or uncertain is a warning.
    """
    from shapewright.doctor import Doctor, State  # noqa: PLC0415  (keeps --help fast)

    looked = Doctor(url, key, data_dir, database_url, port, seconds)
    found = []
    for each in looked.findings():
        found.append(each)
        if not json_output:
            remedy = f"\n{'':18}-> {each.remedy}" if each.remedy else ""
            emit([], False, f"{each.state:<8}  {each.name}: {each.says}{remedy}")
    problems = [each for each in found if each.state is State.PROBLEM]
    document = {"good": not problems, "findings": [asdict(each) for each in found]}
    if problems:
        named = ", ".join(each.name for each in problems)
        raise CommandFailed(ExitCode.JOB_FAILED, f"wrong: {named}", result=document)
    warnings = len([each for each in found if each.state is State.WARNING])
    emit(document, json_output, "nothing is wrong" + (f"; {warnings} to know of" if warnings else ""))


COMMANDS = (doctor,)
