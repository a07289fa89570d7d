"""Bundles for GPUs that can be borrowed for minutes: `bundle pack`, `bundle import`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from shapewright import extras
from shapewright.cli import options
from shapewright.cli.output import as_json, emit, quiet_stdout, say
from tuner.bundle import CHOICES, OTHERS


@click.group()
def bundle() -> None:
    """Pack candidates for a borrowed GPU, read its results."""


@bundle.command()
@options.job_file
@click.argument("directory", metavar="DIR", type=options.Directory())
@click.option("--arch", "archs", multiple=True, metavar="SM", help="As in sm_90, in place of the job's targets.")
@click.option(
    "--choices",
    type=click.IntRange(min=1),
    default=CHOICES,
    show_default=True,
    help="Kernels of theory for each workload and target.",
)
@click.option(
    "--others",
    type=click.IntRange(min=0),
    default=OTHERS,
    show_default=True,
    help="Kernels that are unlike those, and one another.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of what is drawn: equal seeds choose equal candidates.",
)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="URL_OR_FILE",
    help="Pack what a search would measure next, by the records of a service, a file or a DIR.",
)
@as_json
def pack(
    *,
    job: Path,
    directory: Path,
    archs: Sequence[str],
    choices: int,
    others: int,
    seed: int,
    sources: Sequence[str],
    json_output: bool,
) -> None:
    """Pack a job's candidates and a runner into DIR.

    DIR is a new folder, or a bundle to write again. Candidates are compiled here, without a GPU. DIR/run.py measures
    them on a host that has Python, NumPy and NVIDIA's driver; `bundle import` reads the results. With --from it is a
    further round: what was measured teaches a cost model, and is not measured again.
    """
    extras.require("tune")
    from shapewright.warm_start import records_of  # noqa: PLC0415  (keeps --help fast)
    from tuner.bundle.form import RUNNER  # noqa: PLC0415  (keeps --help fast)
    from tuner.bundle.writing import job_for, write_bundle  # noqa: PLC0415
    from tuner.measure.builders.local import LocalBuilder  # noqa: PLC0415  (TVM)
    from tuner.program.job.jobspec import parse_job  # noqa: PLC0415

    began_s = time.monotonic()
    document = job_for(options.read_job(job)[1], archs)
    tasks = parse_job(document).tasks
    known = [record for source in sources for record in records_of(source, tasks, "--from")]
    with quiet_stdout(), closing(LocalBuilder()) as builder:
        made = write_bundle(
            directory, document, builder, choices=choices, others=others, seed=seed, known=known, say=say
        )
    seconds = time.monotonic() - began_s
    emit(
        {
            "directory": str(directory),
            "candidates": made.candidates,
            "left_out": made.left_out,
            "bytes": made.size,
            "seconds": round(seconds, 1),
        },
        json_output,
        f"{made.candidates} candidates, {made.left_out} left out, {made.size / 1e6:.1f} MB, {seconds:.0f} s\n"
        f"copy {directory} to the GPU's machine, and run: python {directory.resolve().name}/{RUNNER} --seconds S",
    )


@bundle.command("import")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@as_json
def import_bundle(directory: Path, json_output: bool) -> None:
    """Make records of what the runner of a bundle measured.

    DIR is the bundle, with the folder of results that its runner wrote. The records are for `tune --measured` and
    `import`; the bundle's job is written for the targets that were measured.
    """
    from tuner.bundle.form import JOB, RECORDS  # noqa: PLC0415  (keeps --help fast)
    from tuner.bundle.importing import import_results  # noqa: PLC0415

    job, file = directory / JOB, directory / RECORDS
    found = import_results(directory)
    lines = [
        *(f"{name} is none of the job's targets: its records, and {job}, are for what it is" for name in found.others),
        f"{found.records} records, {found.failed} of them failures, in {file}, of:",
        *map(str, found.targets),
        f"libraries of them: shapewright tune {job} -o DIR --measured {file}",
    ]
    document = {
        "file": str(file),
        "job": str(job),
        "records": found.records,
        "failed": found.failed,
        "targets": [target.to_json() for target in found.targets],
        "others": list(found.others),
    }
    emit(document, json_output, "\n".join(lines))


COMMANDS = (bundle,)
