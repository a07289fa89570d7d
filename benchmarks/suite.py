"""Suite files: workloads over shape variables, the shapes that a search may see, the shapes that are timed.

    name: ...
    shape_vars: {T: {min: 1, max: 128}}
    tune: [{T: 5}, {T: 24, weight: 2.0}]
    test: [{T: 1}, {T: 5}]
    workloads:
      - {name: qkv, op: dense, args: {m: 16*T, n: 2304, k: 768}, dtype: float32}
      - {name: scaled, program: "y[i, j] = x[i, j] * s[i]", extents: {i: T, j: 64}}
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import limit_threads
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.job.documents import read_yaml
from tuner.program.job.task import SearchTask, parse_instances, parse_shape_vars
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native

FIELDS = {"name", "source", "shape_vars", "tune", "test", "workloads"}


@dataclass(frozen=True)
class Benchmark:
    """One workload of a suite: what is tuned, and the shapes to time (each with whether the search saw it)."""

    name: str
    task: SearchTask
    test: tuple[dict[str, int], ...]
    operator: str = ""
    """What it is one size of, in the benchmark of operators."""

    def tuned_on(self, shape: Mapping[str, int]) -> bool:
        return any(instance.shape == dict(shape) for instance in self.task.instances)


def suite_parser(doc: str | None) -> argparse.ArgumentParser:
    """The options every benchmark over a suite has. ``doc``: the module's text; its first line says what it does."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--workload", help="only this one of the suite")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metaschedule-dir", type=Path, help="where its results are kept (a cache)")
    parser.add_argument("--json", type=Path, required=True)
    return parser


def suite_here(
    options: argparse.Namespace, target_here: Callable[[], Target] = native
) -> tuple[str, Target, list[Benchmark]]:
    """The name of the suite of ``suite_parser``'s options, this machine, and the workloads that are asked for.

    Limits the threads of libraries first. Ends the process with exit code 2, and says why, where the suite cannot be
    read, has no such workload, or the machine is not such a target.
    """
    limit_threads(options.threads)
    try:
        target = target_here()
        name, benchmarks = read_suite(options.suite, target, options.threads)
        chosen = [each for each in benchmarks if options.workload in (None, each.name)]
        if not chosen:
            names = ", ".join(each.name for each in benchmarks)
            raise InvalidInput("workload", f"{name} has none called {options.workload!r}", f"one of: {names}")
    except (InvalidInput, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    return name, target, chosen


def read_suite(path: Path, target: Target, threads: int) -> tuple[str, list[Benchmark]]:
    """The suite's name and its benchmarks. Raises InvalidInput naming the field that is wrong."""
    data = read_yaml(path.read_bytes())
    if not isinstance(data, Mapping) or not {"workloads", "tune", "test"} <= set(data):
        raise InvalidInput(str(path), "is not a suite", f"fields: {', '.join(sorted(FIELDS))}")
    unknown = sorted(set(data) - FIELDS)
    if unknown:
        raise InvalidInput(unknown[0], "is not a field of a suite", f"fields: {', '.join(sorted(FIELDS))}")
    shape_vars = parse_shape_vars(data.get("shape_vars"))
    tune, test = parse_instances(data["tune"]), parse_instances(data["test"]) or []
    benchmarks = []
    for index, item in enumerate(data["workloads"]):
        try:
            workload = workload_from_json(item)
            task = SearchTask(workload, shape_vars=shape_vars, instances=tune, target=target, threads=threads)
        except InvalidInput as error:
            raise error.within(f"workloads[{index}]") from None
        benchmarks.append(Benchmark(_name(item, workload), task, tuple(instance.shape for instance in test)))
    return str(data.get("name", path.stem)), benchmarks


def _name(item: Mapping[str, Any], workload: Workload) -> str:
    return str(item.get("name", workload.key))
