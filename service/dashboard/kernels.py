"""Micro-kernels as the pages show them: those of a library, and one in full."""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.dashboard import code
from service.dashboard.code import Assembly, Listing
from service.figures.searches import library_of
from tuner.figures.view import SearchView
from tuner.library.package import kernel_scripts
from tuner.records import MeasureResult, Phase, settled_latency_s
from tuner.schedule import rule_of
from tuner.schedule.space import MicroKernel
from tuner.storage import Job, NotFound, SearchTaskRow
from tuner.storage.sql import ClientStorage
from tuner.storage.trials import TrialLine, TrialQuery

MAX_OWN = 2000
"""Trials of one kernel that its page looks at."""


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """A kernel of a library, and the number of shapes of the range that it serves."""

    id: str
    name: str
    shapes: int
    safe: bool


@dataclass(frozen=True, slots=True)
class Timing:
    """The latencies at one instance, of the kernel and of the best known one, in seconds."""

    shape: str
    weight: float
    readings: int
    latency_s: float | None
    predicted_s: float | None
    best_s: float | None
    best_id: str | None

    @property
    def ratio(self) -> float | None:
        return self.latency_s / self.best_s if self.latency_s and self.best_s else None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A micro-kernel in full. ``axes``: name, value, what it means. ``script`` is its TensorIR and
    ``assembly`` what it runs, if a library has it."""

    id: str
    rule: str
    in_library: bool
    first_round: int
    axes: tuple[tuple[str, int, str], ...]
    failures: tuple[TrialLine, ...]
    script: Listing | None
    assembly: Assembly | None


def chosen(storage: ClientStorage, job: Job, row: SearchTaskRow) -> list[ChosenKernel]:
    """The kernels of the library, in its order; none before it is built."""
    artifact = library_of(storage, job, row)
    if artifact is None:
        return []
    dispatch: dict[str, Any] = dict(artifact.dispatch)
    served = [line["kernel"] for line in dispatch["table"]]
    safe = dispatch["safe_kernel"]
    return [
        ChosenKernel(each["id"], MicroKernel.from_json(each["kernel"]).shown, served.count(index), index == safe)
        for index, each in enumerate(dispatch["kernels"])
    ]


def kernel_of(storage: ClientStorage, job: Job, row: SearchTaskRow, kernel_id: str) -> KernelFacts:
    """What its own trials and the library say of it, without those of others, which may be a hundred thousand. Raises
    NotFound if no trial of the search and no kernel of its library has that id."""
    found = storage.find_trials(row.id, TrialQuery(kernel=kernel_id, limit=MAX_OWN)).items
    own = [trial for trial in found if trial.kernel_id == kernel_id]
    artifact = library_of(storage, job, row)
    in_library = {each["id"]: each["kernel"] for each in artifact.dispatch["kernels"]} if artifact else {}
    if not own and kernel_id not in in_library:
        raise NotFound(f"job {job.id} has tried no kernel {kernel_id!r}")
    kernel = own[0].kernel if own else MicroKernel.from_json(in_library[kernel_id])
    digest = artifact.digest if artifact and kernel_id in in_library else None
    return KernelFacts(
        id=kernel_id,
        rule=f"{kernel.rule} {kernel.rule_version}",
        in_library=kernel_id in in_library,
        first_round=min((trial.round for trial in own), default=0),
        axes=_axes(row, kernel),
        failures=tuple(trial for trial in own if trial.error_kind is not None),
        script=_script(storage, digest, kernel_id) if digest else None,
        assembly=code.assembly(storage, digest, kernel_id) if digest else None,
    )


def _axes(row: SearchTaskRow, kernel: MicroKernel) -> tuple[tuple[str, int, str], ...]:
    """Name, value and description of each axis, sorted by name, with added axes that the kernel's values leave out."""
    space, values = rule_of(kernel).space(row.task), dict(kernel.values)
    axes = {axis.name: (axis.shown, axis.doc) for axis in space.axes}
    # One of a file may lack an axis of its rule: it is shown as it is.
    with suppress(KeyError):
        values |= space.values_of(kernel)
    shown = ((*axes.get(name, (name, "")), value) for name, value in sorted(values.items()))
    return tuple((name, value, doc) for name, doc, value in shown)


def timings(view: SearchView, kernel_id: str) -> list[Timing]:
    """Of a kernel at every instance of the search."""
    readings, predicted = defaultdict(list), defaultdict(list)
    for result in _own(view, kernel_id):
        if result.latency_s is not None:
            readings[result.instance.values].append((result.latency_s, result.phase is Phase.FINAL))
        if result.predicted_s is not None:
            predicted[result.instance.values].append(result.predicted_s)
    columns = view.columns
    best, best_s = (column.tolist() for column in columns.fastest)
    lines = []
    # The instances of the task are the first of the columns'.
    for index, instance in enumerate(view.task.instances):
        timed, expected = readings[instance.values], predicted.get(instance.values)
        lines.append(
            Timing(
                shape=str(instance) or "its only shape",
                weight=instance.weight,
                readings=len(timed),
                latency_s=settled_latency_s(timed)[0] if timed else None,
                predicted_s=statistics.median(expected) if expected else None,
                best_s=best_s[index] if best[index] >= 0 else None,
                best_id=columns.kernels[best[index]].id if best[index] >= 0 else None,
            )
        )
    return lines


def _own(view: SearchView, kernel_id: str) -> list[MeasureResult]:
    """The results of one kernel, found by its index: there may be a hundred thousand of others."""
    columns = view.columns
    index = next((index for index, kernel in enumerate(columns.kernels) if kernel.id == kernel_id), -1)
    return [view.results[at] for at in np.flatnonzero(columns.kernel == index).tolist()]


def _script(storage: ClientStorage, digest: str, kernel_id: str) -> Listing | None:
    text = kernel_scripts(storage.artifact_files(digest)).get(kernel_id)
    return code.script(text) if text is not None else None
