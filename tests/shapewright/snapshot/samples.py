"""Libraries to put into snapshots, with text in place of machine code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shapewright.download import write
from tests.serving import small_dispatcher
from tuner.library.dispatcher import TableRow
from tuner.library.package import LibraryFiles, package
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask

JOB: dict[str, Any] = {
    "name": "small",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 64, "k": 32}},
    "shape_vars": {"T": {"min": 1, "max": 16}},
    "instances": [{"T": 5}, {"T": 16}],
    "target": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
    "budget": {"trials": 4},
}


def job(n: int = 64, **fields: Any) -> dict[str, Any]:
    return {**JOB, "workload": {"op": "dense", "args": {"m": "16*T", "n": n, "k": 32}}, **fields}


def task(n: int = 64, **fields: Any) -> SearchTask:
    return parse_job(job(n, **fields)).tasks[0]


def made(of: SearchTask, code: str, seconds: float | None = 1e-4) -> LibraryFiles:
    """A library that took ``seconds`` wherever it was measured; None was only predicted."""
    rows = tuple(TableRow(each.shape, 0, seconds or 1e-4, seconds) for each in of.instances)
    return package(replace(small_dispatcher(of), table=rows), code.encode(), "{}", {"tvm": "0"}, "job-1")


def pulled(directory: Path, of: SearchTask, code: str = "code", seconds: float | None = 1e-4) -> Path:
    """Its files, as `pull` writes them."""
    write(made(of, code, seconds).files, directory)
    return directory
