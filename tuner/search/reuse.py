"""What a search starts from: kernels and readings of earlier ones, which decide nothing until they are measured here,
but where nothing is to be measured.

The best known kernels are verified and timed again before anything else; the cost model is trained on all readings; a
kernel that computed wrongly or crashed on this target is not tried again. Readings of other workloads, and of related
targets, are priors of the cost model alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tuner.library.dispatcher import log_distance
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target import Target
from tuner.records import DISQUALIFYING, PROTOCOLS, MeasureResult, TuningRecord, protocol_of
from tuner.schedule.space import MicroKernel, UnionSpace
from tuner.search import finalize
from tuner.search.cost_model import MAX_WARM_PAIRS, CostModel, WarmRecord
from tuner.search.observations import Measured, ShapeKey, at_reference_speed, latency_table, reference_anchor_s
from tuner.search.summary import Reused
from tuner.storage.jsonl import SharedRecord

MEASURED, SHARED = "measured", "shared"
"""The provenance of a record of a device of this database, and of one that came with a file. The kernels of whatever
was not measured here are candidates, and nothing more."""
HINT = "metaschedule"
"""The protocol of a record that is no measurement of ours: its kernel is tried early, at the instance nearest to its
own, and its latency means nothing."""
MAX_HINTS = 8
"""Hints that are tried."""
MAX_SHARED = 100_000
"""Records of the workload that are kept of a file, the last ones."""
EXTRA_KERNELS = 4
"""Known kernels that are timed beside the best set, and as many again of another packed layout."""
NEAR = 1.05
"""Extra kernels are timed where they are known to be within this ratio of the best."""
INSTANCES_PER_EXTRA = 2
TOP = 8
"""The number of fastest kernels at each instance that the set is chosen from."""
KNOWN_WEIGHT, WARM_WEIGHT, RELATED_WEIGHT = 0.6, 0.3, 0.1
"""How much the cost model makes of a pair of the workload, of another workload, and of a related target, beside 1 for a
pair of the search itself."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Records that a search may start from, instances in the symbols of their workloads.

    ``records``: of the task's workload on its target with as many threads, failed ones included. ``others``: of other
    workloads there, newest first, each with its workload in canonical form. ``related``: of targets that ``is_related``
    to it.
    """

    records: Sequence[TuningRecord] = ()
    others: Sequence[tuple[JsonObject, TuningRecord]] = ()
    related: Sequence[tuple[JsonObject, Target, TuningRecord]] = ()

    def __add__(self, more: Knowledge) -> Knowledge:
        return Knowledge((*self.records, *more.records), (*self.others, *more.others), (*self.related, *more.related))


NOTHING = Knowledge()


def is_related(target: Target, other: Target) -> bool:
    """Whether kernels do alike on two targets: the same instructions and registers, other caches or number of cores."""
    one, two = target.hardware, other.hardware
    same = (set(one.features), one.vector_bytes, one.vector_registers, one.fma_per_cycle)
    alike = same == (set(two.features), two.vector_bytes, two.vector_registers, two.fma_per_cycle)
    alike = alike and (target.kind, target.gpu and target.mcpu) == (other.kind, other.gpu and other.mcpu)
    return alike and target.fingerprint != other.fingerprint


class Reuse:
    """Knowledge as one search uses it. ``task`` has the instances that are searched for."""

    def __init__(self, task: SearchTask, space: UnionSpace, knowledge: Knowledge) -> None:
        self._task = task
        current = [each for each in knowledge.records if each.protocol in PROTOCOLS]
        usable = {kernel for kernel in {each.result.kernel for each in current} if _is_usable(space, kernel)}
        known = [each for each in current if each.result.kernel in usable]
        self.wrong = frozenset(each.result.kernel for each in known if _condemns(each))
        """Kernels that are not tried again: what is wrong is so whatever the caches hold."""
        self._valid = [each for each in known if _is_comparable(each, task)]
        timed = [each for each in self._valid if each.result.ok and each.result.kernel not in self.wrong]
        own = [each for each in timed if each.provenance == MEASURED]
        self.timed = frozenset(each.result.kernel for each in own)
        """Kernels whose latencies are known."""
        imported = [each for each in timed if each.result.kernel not in self.timed]
        self._anchor_s = reference_anchor_s(each.result for each in timed)
        results = at_reference_speed([each.result for each in (*own, *imported)], self._anchor_s)
        self._measured = Measured(_in_variables(task, results))
        self._kernels = list(dict.fromkeys(result.kernel for result in results))
        self._hints = self._hinted(space, knowledge.records) + self._succeeding(space, current)
        self.warm = self._warm(Measured(results), knowledge)
        """What the cost model is trained on before the search begins."""
        self.facts = _facts(task, timed, knowledge)

    @cached_property
    def results(self) -> list[MeasureResult]:
        """All that was measured of the task, failures too, but for times of kernels that were wrong."""
        results = [each.result for each in self._valid]
        return _in_variables(self._task, [each for each in results if not (each.ok and each.kernel in self.wrong)])

    def picks(self, model: CostModel) -> list[tuple[MicroKernel, list[int]]]:
        """What to time first: of the best known set each kernel at the instances that it serves, before it what is
        known to be faster there, then alternatives where they are known to be nearly as good; then hints, and what an
        earlier release's best kernels have become. Instances by index."""
        return [*(self._best(model) if self._kernels else ()), *self._hints]

    def _best(self, model: CostModel) -> list[tuple[MicroKernel, list[int]]]:
        task = self._task
        table = latency_table(task, model, self._measured, self._kernels, [each.shape for each in task.instances])
        rows = sorted({int(row) for order in table.argsort(axis=0)[:TOP] for row in order})
        pool = [self._kernels[row] for row in rows]
        best = finalize.choose_set(task, model, self._measured, pool, task.max_kernels)
        chosen = finalize.finalists(task, model, self._measured, pool, best, EXTRA_KERNELS)
        latency = table[[self._kernels.index(kernel) for kernel in chosen]]
        serves = latency[: len(best)].argmin(axis=0)
        picks = [(kernel, np.flatnonzero(serves == row).tolist()) for row, kernel in enumerate(best)]
        picks.sort(key=lambda pick: -len(pick[1]))
        picks[:0] = fastest = self._known_fastest([best[row] for row in serves])
        known = {(kernel, index) for kernel, indices in fastest for index in indices}
        near = latency <= NEAR * latency.min(axis=0)
        weights = np.array([instance.weight for instance in task.instances])
        for row in range(len(best), len(chosen)):
            # Where most time is spent first.
            order = (-weights * latency[row]).argsort(kind="stable")
            here = [int(index) for index in order if near[row, index]][:INSTANCES_PER_EXTRA]
            indices = [index for index in here if (chosen[row], index) not in known]
            picks.append((chosen[row], sorted(indices)))
        return [(kernel, indices) for kernel, indices in picks if indices]

    def _known_fastest(self, serving: Sequence[MicroKernel]) -> list[tuple[MicroKernel, list[int]]]:
        """The fastest measured kernel at each instance for which the model expects more of the one that is serving:
        what is known must not be lost to what is expected."""
        picks: dict[MicroKernel, list[int]] = {}
        for index, (kernel, instance) in enumerate(zip(serving, self._task.instances, strict=True)):
            times = {own: time for own, time in self._measured.latencies_at(instance).items() if own in self.timed}
            fastest = min(times, key=lambda own: (times[own], own.id), default=kernel)
            if fastest != kernel and times[fastest] < times.get(kernel, math.inf):
                picks.setdefault(fastest, []).append(index)
        return list(picks.items())

    def _hinted(self, space: UnionSpace, records: Sequence[TuningRecord]) -> list[tuple[MicroKernel, list[int]]]:
        """Kernels of hints that nobody has measured, each at the instance nearest to its shape."""
        dims = [self._task.workload.dims(each.shape) for each in self._task.instances]
        picks: dict[MicroKernel, list[int]] = {}
        for record in records:
            kernel = record.result.kernel
            if record.protocol != HINT or kernel in self._kernels or kernel in self.wrong or kernel in picks:
                continue
            if _is_usable(space, kernel) and len(picks) < MAX_HINTS:
                shape = dict(record.result.instance.values)
                picks[kernel] = [min(range(len(dims)), key=lambda at: log_distance(shape, dims[at]))]
        return list(picks.items())

    def _succeeding(self, space: UnionSpace, records: Sequence[TuningRecord]) -> list[tuple[MicroKernel, list[int]]]:
        """Kernels that an earlier release found and this one writes in another form: the fastest at each instance, as
        that form, which nobody has measured."""
        task = self._task
        forms = {kernel: _form_of_today(space, kernel) for kernel in {each.result.kernel for each in records}}
        timed = [each.result for each in records if each.result.ok and _is_comparable(each, task)]
        past = _in_variables(task, (result for result in timed if forms[result.kernel] not in (None, result.kernel)))
        picks: dict[MicroKernel, list[int]] = {}
        for index, instance in enumerate(task.instances):
            own = [result for result in past if result.instance.values == instance.values]
            best = min(own, key=lambda result: result.latency_s or math.inf, default=None)
            form = None if best is None else forms[best.kernel]
            if form is not None and form not in (*self._kernels, *self.wrong):
                picks.setdefault(form, []).append(index)
        return list(picks.items())

    def _warm(self, known: Measured, knowledge: Knowledge) -> tuple[WarmRecord, ...]:
        """The medians of the workload, in random order in case they are too many, then the records of others."""
        workload = self._task.workload.canonical
        own = [
            WarmRecord(workload, self._record(kernel, shape, latency_s), KNOWN_WEIGHT)
            for kernel in known.kernels
            for shape, latency_s in known.latencies_of(kernel).items()
        ]
        order = np.random.default_rng(0).permutation(len(own))
        others = [WarmRecord(*each, WARM_WEIGHT) for each in knowledge.others if _is_comparable(each[1], self._task)]
        related = [
            WarmRecord(canonical, record, RELATED_WEIGHT, target)
            for canonical, target, record in knowledge.related
            if _is_comparable(record, self._task)
        ]
        return (*(own[index] for index in order), *others, *related)

    def _record(self, kernel: MicroKernel, shape: ShapeKey, latency_s: float) -> TuningRecord:
        task, result = self._task, MeasureResult(kernel, WorkloadInstance(shape), latency_s, anchor_s=self._anchor_s)
        place = task.workload.key, task.known_target.fingerprint, task.threads
        return TuningRecord(*place, protocol_of(task.cache), result)


def shared_knowledge(shared: Iterable[SharedRecord], task: SearchTask) -> Knowledge:
    """What records of a file, or of another database, say of a task whose target is known."""
    target, records = task.known_target, deque[TuningRecord](maxlen=MAX_SHARED)
    others = deque[tuple[JsonObject, TuningRecord]](maxlen=MAX_WARM_PAIRS)
    related = deque[tuple[JsonObject, Target, TuningRecord]](maxlen=MAX_WARM_PAIRS)
    for each in shared:
        record = replace(each.record, provenance=SHARED)
        if record.threads != task.threads:
            continue
        if record.target_fingerprint != target.fingerprint:
            if record.result.ok and is_related(target, each.target):
                related.append((each.workload, each.target, record))
        elif record.workload_key == task.workload.key:
            records.append(record)
        elif record.result.ok:
            others.append((each.workload, record))
    return Knowledge(tuple(records), tuple(reversed(others)), tuple(related))


def _is_usable(space: UnionSpace, kernel: MicroKernel) -> bool:
    """Whether the task can use a kernel as it stands: of the same version of a rule, and legal for it."""
    return _form_of_today(space, kernel) == kernel


def _form_of_today(space: UnionSpace, kernel: MicroKernel) -> MicroKernel | None:
    """The kernel as this release writes it; None for one of another version of a rule, or that is not legal."""
    if not space.has_rule_of(kernel):
        return None
    own = space.space_of(kernel)
    return own.legal(own.values_of(kernel)) if own.has_axes_of(kernel) else None


def _is_comparable(record: TuningRecord, task: SearchTask) -> bool:
    """Whether it was measured as this version measures the task."""
    return record.protocol == protocol_of(task.cache)


def _condemns(record: TuningRecord) -> bool:
    return record.result.error_kind in DISQUALIFYING and record.provenance == MEASURED


def _in_variables(task: SearchTask, results: Iterable[MeasureResult]) -> list[MeasureResult]:
    """The results whose shapes the task can name, in its variables."""
    named: dict[ShapeKey, WorkloadInstance] = {}
    for shape in (*task.shapes(), *(instance.shape for instance in task.instances)):
        named[tuple(sorted(task.workload.dims(shape).items()))] = WorkloadInstance.of(shape)
    entries = ((result, named.get(result.instance.values)) for result in results)
    return [replace(result, instance=instance) for result, instance in entries if instance is not None]


def _facts(task: SearchTask, timed: Sequence[TuningRecord], knowledge: Knowledge) -> Reused | None:
    related = [(target, record) for _, target, record in knowledge.related if _is_comparable(record, task)]
    if not timed and not related:
        return None
    return Reused(
        records=len(timed),
        kernels=len({each.result.kernel for each in timed}),
        jobs=len({each.job_id for each in timed}),
        related_targets=len({target.fingerprint for target, _ in related}),
        related_records=len(related),
    )
