"""``python -m benchmarks.gpu --bundle DIR`` packs a job's candidates for a GPU host; ``--import DIR`` reads what came
back as records.

On the host, which needs Python, NumPy and NVIDIA's driver: ``python DIR/run.py --seconds 300``.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

from tuner.bundle.candidates import CHOICES, OTHERS
from tuner.bundle.form import JOB, RECORDS, RUNNER
from tuner.bundle.importing import import_results
from tuner.bundle.writing import job_for, write_bundle
from tuner.errors import ShapewrightError
from tuner.measure.builders.local import LocalBuilder
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job

DIETCODE = Path(__file__).parent / "jobs" / "dietcode.yaml"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Ends the process where the command line will not do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="a new folder, or a bundle to write again")
    parser.add_argument("--job", type=Path, default=DIETCODE, help="what is searched; DietCode's suites if left out")
    parser.add_argument("--arch", action="append", default=[], metavar="SM", help="in place of the job's targets")
    parser.add_argument("--choices", type=int, default=CHOICES, help="kernels of theory for each workload and target")
    parser.add_argument("--others", type=int, default=OTHERS, help="kernels unlike those, and one another")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--import", dest="results", type=Path, metavar="DIR", help="a bundle with the host's results")
    options = parser.parse_args(argv)
    if options.bundle is None and options.results is None:
        parser.error("give --bundle DIR or --import DIR")
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    try:
        if options.bundle is not None:
            pack(options)
        if options.results is not None:
            read_back(options.results)
    except ShapewrightError as error:
        sys.exit(str(error))


def pack(options: argparse.Namespace) -> None:
    began_s = time.monotonic()
    document = job_for(parse_job(read_yaml(options.job.read_bytes())).source, options.arch)
    with closing(LocalBuilder()) as builder:
        given = {"choices": options.choices, "others": options.others, "seed": options.seed}
        made = write_bundle(options.bundle, document, builder, **given)
    spent_s = time.monotonic() - began_s
    print(f"{made.candidates} candidates, {made.left_out} left out, {made.size / 1e6:.1f} MB, {spent_s:.0f} s")
    print(f"copy {options.bundle} to the GPU's machine, and run: python {options.bundle.name}/{RUNNER} --seconds S")


def read_back(folder: Path) -> None:
    found = import_results(folder)
    for name in found.others:
        print(f"{name} is none of the job's targets: its records, and {folder / JOB}, are for what it is")
    print(f"{found.records} records, {found.failed} of them failures, in {folder / RECORDS}, of:")
    print(*found.targets, sep="\n")
    print(f"libraries of them: shapewright tune {folder / JOB} -o DIR --measured {folder / RECORDS}")


if __name__ == "__main__":
    main()
