"""The pair cost model's own: warm start from other workloads, and axes as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.fakes import TASK, latency_s
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, TuningRecord, protocol_of
from tuner.schedule import extents_of, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel, WarmRecord
from tuner.search.cost_model.pair_model import _similar_task

S = ShapeVar("S", range(1, 65))
OTHER = SearchTask("dense", {"m": 4 * S, "n": 160, "k": 48}, (S,), target=TASK.target)
SPACE = space_of(TASK)


def kernels(count: int, seed: int) -> list[MicroKernel]:
    rng = np.random.default_rng(seed)
    return [SPACE.sample(rng) for _ in range(count)]


def record(result: MeasureResult) -> WarmRecord:
    fingerprint = TASK.target.fingerprint if TASK.target else ""
    results = TuningRecord(OTHER.workload.key, fingerprint, 1, PROTOCOL, result)
    return WarmRecord(OTHER.workload.to_json(), results, 0.3)


def warm_records() -> list[WarmRecord]:
    return [
        record(MeasureResult(kernel, WorkloadInstance.of({"S": s}), latency_s(OTHER, kernel, {"S": s})))
        for kernel in kernels(60, 0)
        for s in (2, 15, 64)
    ]


def test_records_of_another_workload_make_the_start_better_than_theory() -> None:
    result, shapes = kernels(60, 9), [{"T": t} for t in (3, 24, 100)]
    real = np.array([[latency_s(TASK, kernel, shape) for shape in shapes] for kernel in result])

    def error(model: PairCostModel) -> float:
        miss = np.log(model.predict(result, shapes).latency_s / real)
        return float(np.abs(miss - np.median(miss)).mean())

    warm = PairCostModel(TASK, warm=warm_records())
    assert warm.pairs == 180
    assert error(warm) < 0.75 * error(PairCostModel(TASK))


def test_records_that_say_nothing_about_this_rule_are_passed_over() -> None:
    kernel, instance = kernels(1, 0)[0], WorkloadInstance.of({"S": 8})
    other_rule = MicroKernel("other", kernel.rule_version, kernel.values)
    older = MicroKernel(kernel.rule, kernel.rule_version - 1, kernel.values)
    useless = [
        record(MeasureResult(kernel, instance, error_kind=ErrorKind.CRASH)),
        record(MeasureResult(other_rule, instance, 1e-6)),
        record(MeasureResult(older, instance, 1e-6)),
    ]
    assert PairCostModel(TASK, warm=useless).pairs == 0
    assert PairCostModel(TASK, warm=[*useless, record(MeasureResult(kernel, instance, 1e-6))]).pairs == 1


def test_records_of_kernels_with_other_axes_are_passed_over() -> None:
    """As a file of a newer release may hold them: their features are longer than those of others."""
    known = warm_records()[:30]
    newer = [
        record(replace(each.record.result, kernel=replace(kernel, values=(*kernel.values, ("newer", 4)))))
        for each in known
        if (kernel := each.record.result.kernel)
    ]
    lacking = [
        record(replace(each.record.result, kernel=replace(kernel, values=kernel.values[1:])))
        for each in known
        if (kernel := each.record.result.kernel)
    ]
    model = PairCostModel(TASK, warm=[*newer[:15], *known, *lacking, *newer[15:]])
    assert model.pairs == len(known) == 30
    assert np.isfinite(model.predict(kernels(4, 9), [{"T": 24}]).latency_s).all()


def test_extents_are_arrays_over_the_shapes() -> None:
    result = extents_of(OTHER.workload, [{"S": 1}, {"S": 5}])
    assert {axis: values.tolist() for axis, values in result.items()} == {"m": [4, 20], "n": [160, 160], "k": [48, 48]}


def test_a_record_has_the_features_of_its_own_protocol() -> None:
    kernel = kernels(1, 0)[0]
    warm = record(MeasureResult(kernel, WorkloadInstance.of({"S": 8}), 1e-6))
    streamed = replace(warm, record=replace(warm.record, protocol=protocol_of(Cache.STREAMED)))
    similar = [_similar_task(each, TASK) for each in (warm, streamed)]
    assert [each and each.task.cache for each in similar] == [Cache.WARM, Cache.STREAMED]
