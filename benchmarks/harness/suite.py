"""Suite files: workloads over shape variables, the shapes that a search may see, the shapes that are timed.

    name: ...
    shape_vars: {T: {min: 1, max: 128}}
    tune: [{T: 5}, {T: 24, weight: 2.0}]
    test: [{T: 1}, {T: 5}]
    workloads:
      - {name: qkv, op: dense, args: {m: 16*T, n: 2304, k: 768}, dtype: float32}
      - {name: scaled, program: "y[i, j] = x[i, j] * s[i]", extents: {i: T, j: 64}}

``suites/operators.yaml`` has the operators of ``benchmarks.operators`` in a form of its own, and
``suites/published.yaml`` those of others' tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.calls import DoesNotApply
from benchmarks.harness.remote import limit_threads
from benchmarks.harness.results import options_of
from tuner.errors import InvalidInput
from tuner.program.catalogue import OPS
from tuner.program.job.build import workload_from_json
from tuner.program.job.documents import read_yaml
from tuner.program.job.shape_fields import parse_instances, parse_shape_vars
from tuner.program.job.task import SearchTask
from tuner.program.language.part import Part, part_of
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target, native

FIELDS = {"name", "source", "shape_vars", "tune", "test", "workloads"}
Args = Mapping[str, Any]
FILE, PUBLISHED = (
    yaml.safe_load((Path(__file__).parents[1] / "suites" / name).read_text())
    for name in ("operators.yaml", "published.yaml")
)
OPERATORS: Mapping[str, Mapping[str, Any]] = FILE["operators"]
"""What the file says of each operator, by name."""
KNOWN: Mapping[str, Mapping[str, Any]] = OPERATORS | PUBLISHED["operators"]
"""Those of both files."""


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


# -- files of suites --------------------------------------------------------------------------------------------------
def suite_parser(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """The options every benchmark over a suite has, and more, as ``options_of`` takes them."""
    parser = options_of(doc, threads=1, seed=0, workload=str, **options)
    parser.add_argument("suite", type=Path)
    return parser


def suite_here(
    options: argparse.Namespace, target_here: Callable[[], Target] = native
) -> tuple[dict[str, Any], list[Benchmark]]:
    """The protocol of the run (the suite, the threads, this machine, the seed) and the workloads that are asked for.

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
    return {"suite": name, "threads": options.threads, "target": target.fingerprint, "seed": options.seed}, chosen


def read_suite(path: Path, target: Target, threads: int) -> tuple[str, list[Benchmark]]:
    """The suite's name and its benchmarks. Raises InvalidInput naming the field that is wrong."""
    data, fields = read_yaml(path.read_bytes()), f"fields: {', '.join(sorted(FIELDS))}"
    if not isinstance(data, Mapping) or not {"workloads", "tune", "test"} <= set(data):
        raise InvalidInput(str(path), "is not a suite", fields)
    if unknown := sorted(set(data) - FIELDS):
        raise InvalidInput(unknown[0], "is not a field of a suite", fields)
    shape_vars = parse_shape_vars(data.get("shape_vars"))
    tune, test = parse_instances(data["tune"]), parse_instances(data["test"]) or []
    benchmarks = []
    for index, item in enumerate(data["workloads"]):
        try:
            workload = workload_from_json(item)
            task = SearchTask(workload, shape_vars=shape_vars, instances=tune, target=target, threads=threads)
        except InvalidInput as error:
            raise error.within(f"workloads[{index}]") from None
        name = str(item.get("name", workload.key))
        benchmarks.append(Benchmark(name, task, tuple(instance.shape for instance in test)))
    return str(data.get("name", path.stem)), benchmarks


# -- operators --------------------------------------------------------------------------------------------------------
def named(workload: Workload) -> tuple[str, Args]:
    """The workload's name among operators, as ``dense`` or ``dense+bias+gelu``, and its args with all settings."""
    data = workload.to_json()
    programs = (name for name, told in KNOWN.items() if told.get("program") == data.get("program", ""))
    op = str(data.get("op") or next(programs, ""))
    defaults = {key: setting.default for key, setting in OPS[op].settings.items()} if op in OPS else {}
    return "+".join([op, *data.get("epilogue", ())]), defaults | data.get("args", {})


def is_fused(name: str) -> bool:
    return "after" in OPERATORS.get(name, {})


def names_of(names: Sequence[str]) -> list[str]:
    """The operators' names, with ``all``, ``fused``, ``default`` and published families spelled out, each once."""
    families = {"all": list(OPERATORS), "fused": list(filter(is_fused, OPERATORS)), "default": FILE["default"]}
    families |= PUBLISHED["families"]
    families["published"] = [each for family in PUBLISHED["families"].values() for each in family]
    return list(dict.fromkeys(each for name in names for each in families.get(name, [name])))


def benchmarks_of(name: str, target: Target, threads: int, timed: Sequence[int] | None = None) -> list[Benchmark]:
    """A benchmark for each size of an operator or, by its name, of one of its layers; timed at these values of T, those
    of its range, or at its own where none is.

    Raises InvalidInput for a name that is none of these.
    """
    layers = {layer: of for of, told in KNOWN.items() for layer in told.get("layers", ())}
    operator = layers.get(name, name)
    if operator not in KNOWN:
        known = ", ".join(sorted({*KNOWN, *layers, *PUBLISHED["families"], "all", "fused", "published"}))
        raise InvalidInput("op", f"{name!r} is no operator, program or family of this benchmark", f"one of: {known}")
    told = KNOWN[operator]
    values = (FILE["values"] | PUBLISHED["values"])[told.get("values", "usual")]
    tuned, variable = tuple(values["tune"]), ShapeVar("T", range(1, values["tune"][-1] + 1))
    chosen = [value for value in timed or () if value <= tuned[-1]] or values["test"]
    sizes = told.get("layers") or {_label(name, each, told["sizes"]): each for each in told["sizes"]}

    def task(size: Mapping[str, Any]) -> SearchTask:
        data = {field: value for field, value in told.items() if field not in ("sizes", "layers", "values", "after")}
        workload = workload_from_json({**data, "extents" if "program" in told else "args": size})
        return SearchTask(workload, shape_vars=(variable,), instances=tuned, target=target, threads=threads)

    shapes = tuple({"T": value} for value in chosen)
    return [
        Benchmark(label, task(each), shapes, operator) for label, each in sizes.items() if name in (operator, label)
    ]


def parts_of(benchmark: Benchmark) -> list[Benchmark]:
    """What a program is in parts, each a program of its own, in the order in which they run: a fused operator up to
    where its file cuts it, and the rest; another one in the pieces that theory expects to be fastest.

    Raises DoesNotApply where a rule takes the program whole.
    """
    from tuner.schedule import rules_of  # noqa: PLC0415 - TVM, once the threads are limited
    from tuner.schedule.cut.rule import Cut  # noqa: PLC0415

    task = benchmark.task
    if is_fused(benchmark.operator):
        computed = [stage.tensor for stage in task.workload.program.stages]
        end = computed.index(OPERATORS[benchmark.operator]["after"]) + 1
        parts = [part_of(task.workload, stages) for stages in (range(end), range(end, len(computed)))]
    elif cut := next((rule for rule in rules_of(task) if isinstance(rule, Cut)), None):
        parts = list(cut.parts(task.workload))
    else:
        raise DoesNotApply("a rule takes it whole")
    return [replace(benchmark, name=f"{benchmark.name}: {part.program.outputs[0]}", task=alone(task, part))
            for part in parts]  # fmt: skip


def alone(task: SearchTask, part: Part) -> SearchTask:
    """The task of a part as a program of its own, whose axes, tensors and shapes are those of the whole."""
    data = {
        "program": str(part.program), "outputs": list(part.program.outputs), "constant": list(part.constants),
        "extents": {name: str(dim) for name, dim in part.extents}, "dtype": dict(part.dtypes),
        "padded": dict(part.padding),
        "shapes": {each.name: [str(dim.substituted(part.symbol_exprs)) for dim in each.dims] for each in part.inputs},
    }  # fmt: skip
    return task.part(workload_from_json(data))


def _label(name: str, sizes: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """The name, with the sizes where there are others."""
    shape = ", ".join(key if value is True else str(value) for key, value in sizes.items())
    return f"{name} [{shape}]" if len(among) > 1 else name
