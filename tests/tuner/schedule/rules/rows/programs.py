"""Programs that the tests of row reductions share."""

from __future__ import annotations

from typing import Any

from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

SOFTMAX = "top[m] = max(n) x[m, n]\ne[m, n] = exp(x[m, n] - top[m])\nz[m] = sum(n) e[m, n]\nout[m, n] = e[m, n] / z[m]"
LOG_SOFTMAX = "top[m] = max(n) x[m, n]\nz[m] = sum(n) exp(x[m, n] - top[m])\nout[m, n] = x[m, n] - top[m] - log(z[m])"


def workload(text: str, **fields: Any) -> Workload:
    """A program over m = T and n = S, unless ``extents`` says otherwise."""
    return workload_from_json({"program": text, "extents": {"m": "T", "n": "S"}, **fields})


def operator(name: str, dtype: object = "float32", **args: Any) -> Workload:
    return make_workload(name, args, dtype)


def task_of(which: Workload, threads: int = 1, target: Target | None = None) -> SearchTask:
    variables = tuple(ShapeVar(name, range(1, 65)) for name in sorted(which.variables))
    return SearchTask(which, shape_vars=variables, target=target or native(), threads=threads)
