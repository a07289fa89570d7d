"""MetaSchedule's JSONDatabase as hints: kernels of ours with the tile sizes of its traces, to be tried first.

A record is of a static shape; it hints at a workload whose operands have that shape for some sizes of its symbols. Of
its trace the perfect tiles count: the inner ones of the output's rows and columns make the register tile, that of the
sum the chunk of k. Its latency is of other code, measured otherwise: it ranks hints and trains nothing. Needs no TVM.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.records import MeasureResult, TuningRecord
from tuner.schedule import NoMatch, Rule, rules_of
from tuner.schedule.space import MicroKernel
from tuner.search.reuse import HINT
from tuner.storage.jsonl import SharedRecord

MAX_LINE = 4 << 20
MAX_RECORDS = 200_000
MAX_HINTS = 16
"""Kernels for each shape, of its fastest records."""
TILED = ("mr", "nv", "mb", "kc")
"""Axes of a space that tile sizes say something about."""
ROLES = ("m", "n", "k")
SAMPLE, SPATIAL, SUMMED = "SamplePerfectTile", 4, 2
"""The instruction, and into how many loops it splits those of the output and those of the sum (SSRSRS)."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """What counts of a record: the shapes of the operands, its seconds, and the tiles in the order of the loops."""

    shapes: tuple[tuple[int, ...], ...]
    seconds: float
    spatial: tuple[tuple[int, ...], ...]
    summed: tuple[tuple[int, ...], ...]


def hints_of(path: Path, tasks: Sequence[SearchTask]) -> Iterator[SharedRecord]:
    """Hints for the tasks, whose targets are known, from the tuning records of a JSONDatabase.

    Raises InvalidInput on a line that is no such record.
    """
    with path.open("rb") as file:
        records = list(_records(path.name, iter(lambda: file.readline(MAX_LINE + 1), b"")))
    records.sort(key=lambda record: record.seconds)
    for task in tasks:
        yield from _hints(records, task)


def _records(name: str, lines: Iterable[bytes]) -> Iterator[Tiled]:
    """The records that succeeded, in the order of the file."""
    for number, line in enumerate(lines, 1):
        field = f"{name}:{number}"
        if len(line) > MAX_LINE or number > MAX_RECORDS:
            problem = "is too long" if len(line) > MAX_LINE else "is one record too many"
            raise InvalidInput(field, problem, f"lines of {MAX_LINE} bytes, {MAX_RECORDS} of them, at most")
        try:
            _, ((instructions, decisions), seconds, _, operands) = json.loads(line)
            record = Tiled(
                tuple(tuple(map(int, shape)) for _, _, shape in operands),
                sum(map(float, seconds or [math.inf])) / max(1, len(seconds or ())),
                tuple(_tiles(instructions, decisions, SPATIAL)),
                tuple(_tiles(instructions, decisions, SUMMED)),
            )
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidInput(field, f"is no record ({error})", "a directory of MetaSchedule's JSONDatabase") from None
        if record.seconds < 1e9:  # what MetaSchedule notes for a candidate that failed
            yield record


def _tiles(instructions: Sequence[Any], decisions: Sequence[Any], loops: int) -> Iterator[tuple[int, ...]]:
    for index, decision in decisions:
        if instructions[index][0] == SAMPLE and len(decision) == loops:
            yield tuple(map(int, decision))


def _hints(records: Sequence[Tiled], task: SearchTask) -> Iterator[SharedRecord]:
    given: dict[WorkloadInstance, set[MicroKernel]] = {}
    for record in records:
        dims = _dims(task, record.shapes)
        if dims is None:
            continue
        instance = WorkloadInstance.of(dims)
        kernels = given.setdefault(instance, set())
        for kernel in _kernels(task, record, dims):
            if kernel not in kernels and len(kernels) < MAX_HINTS:
                kernels.add(kernel)
                yield _hint(task, kernel, instance, record.seconds)


def _dims(task: SearchTask, shapes: Sequence[Sequence[int]]) -> Mapping[str, int] | None:
    """The sizes of the task's symbols at which its operands have these shapes; None if there are none."""
    operands, dims = task.workload.operands, dict[str, int]()
    if [len(each.dims) for each in operands] != [len(shape) for shape in shapes]:
        return None
    for operand, shape in zip(operands, shapes, strict=True):
        for dim, size in zip(operand.dims, shape, strict=True):
            if str(dim) in task.workload.symbols:
                dims.setdefault(str(dim), size)
    if set(dims) != set(task.workload.symbols):
        return None
    fits = all(each.shape(dims) == tuple(shape) for each, shape in zip(operands, shapes, strict=True))
    return dims if fits else None


def _kernels(task: SearchTask, record: Tiled, dims: Mapping[str, int]) -> Iterator[MicroKernel]:
    """Kernels of each rule that tiles one axis for each role: the innermost tiles, and those with the loops around."""
    for rule in rules_of(task):
        tiles = _tiles_by_role(task, rule, record, dims)
        if tiles is None:
            continue
        (*_, m_outer, m), (*_, n_outer, n), (k_outer, k) = tiles
        chunk = k if k_outer > 1 else 0
        for rows, columns, around in ((m, n, m_outer), (m * m_outer, n * n_outer, 1)):
            lanes = task.known_target.hardware.lanes()
            kernel = _nearest(task, rule, {"mr": rows, "nv": -(-columns // lanes), "mb": around, "kc": chunk})
            if kernel is not None:
                yield kernel


def _tiles_by_role(
    task: SearchTask, rule: Rule, record: Tiled, dims: Mapping[str, int]
) -> list[tuple[int, ...]] | None:
    """The tiles of m, n and k; None where the rule has no such roles, or the trace tiles something else."""
    roles = rule.match(task.workload, task.known_target)
    if isinstance(roles, NoMatch) or len(record.spatial) < 2 or len(record.summed) != 1:
        return None
    axes = {role: [axis for axis, its in roles.items() if its == role] for role in ROLES}
    if any(len(each) != 1 for each in axes.values()):
        return None
    sizes = task.workload.axis_sizes(dims)
    tiles = [*record.spatial[-2:], *record.summed]
    wanted = [sizes[axes[role][0]] for role in ROLES]
    return tiles if [math.prod(tile) for tile in tiles] == wanted else None


def _nearest(task: SearchTask, rule: Rule, wanted: Mapping[str, int]) -> MicroKernel | None:
    """The safe kernel with the choices nearest to those wanted, of fewer vectors where registers run out."""
    space = rule.space(task)
    axes = {axis.name: axis.choices for axis in space.axes}
    if not set(TILED) <= set(axes):
        return None
    values = dict(rule.default_kernel(task).values)
    values |= {name: min(axes[name], key=lambda choice: _distance(choice, wanted[name])) for name in TILED}
    for vectors in sorted((each for each in axes["nv"] if each <= values["nv"]), reverse=True):
        if (kernel := space.legal(values | {"nv": vectors})) is not None:
            return kernel
    return None


def _distance(choice: int, wanted: int) -> float:
    """The distance of sizes as ratios; 0 stands for the whole extent, and is near to nothing else."""
    if not choice or not wanted:
        return 0.0 if choice == wanted else math.inf
    return abs(math.log(choice / wanted))


def _hint(task: SearchTask, kernel: MicroKernel, instance: WorkloadInstance, seconds: float) -> SharedRecord:
    workload, target = task.workload, task.known_target
    result = MeasureResult(kernel, instance, seconds)
    record = TuningRecord(workload.key, target.fingerprint, task.threads, HINT, result)
    provenance: JsonObject = {"kind": HINT}
    return SharedRecord(workload.canonical, target, record, provenance)
