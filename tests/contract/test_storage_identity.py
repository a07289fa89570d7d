"""What every Storage promises about jobs that compute the same: they share a workload and its records, each in its own
words. Runs on each database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.contract.samples import best_at, job_spec, leased, results
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.job.jobspec import JobSpec
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.storage.sql import Storage


def dense(m: str | int, name: str = "T", *instances: int, **fields: Any) -> JobSpec:
    """A job of ``job_spec``'s workload with another expression for its one dynamic extent."""
    workload = {"op": "dense", "args": {"m": m, "n": 256, "k": 64}}
    shapes = [{name: value} for value in instances or (5, 128)]
    return job_spec(workload=workload, shape_vars={name: {"min": 1, "max": 128}}, instances=shapes, **fields)


def at(instance: WorkloadInstance, **fields: Any) -> MeasureResult:
    return replace(results(1, **fields)[0], instance=instance)


def test_jobs_that_compute_the_same_share_the_workload_and_its_best_kernel(storage: Storage) -> None:
    sixteen, eight, plain = (
        leased(storage, spec) for spec in (dense("16*T"), dense("8*S", "S"), dense("M", "M", 80, 128))
    )
    for lease, shape, latency_s in ((sixteen, {"T": 5}, 3.0), (eight, {"S": 10}, 1.0), (plain, {"M": 80}, 2.0)):
        result = at(WorkloadInstance.of(shape), latency_s=latency_s)
        storage.append_results(lease, lease.tasks[0].id, [result])

    (row,) = storage.list_workloads().items
    assert (row.jobs, row.records) == (3, 3)
    target = sixteen.tasks[0].target_fingerprint
    best = best_at(storage, row.key, target, "m=80")
    assert best is not None
    # One kernel, measured by all three: the median, and the job of the newest reading.
    assert (best.latency_s, best.readings, best.job_id) == (2.0, 3, plain.job.id)
    shared = storage.prior_records(row.key, target, 1)
    assert [record.result.instance.shape for record in shared] == [{"m": 80}] * 3


def test_each_job_gets_its_records_in_its_own_variables(storage: Storage) -> None:
    one, other = leased(storage, dense("16*T")), leased(storage, dense("8*S", "S", 10, 16))
    for lease in (one, other):
        instances = lease.tasks[0].task.with_least_shape().instances
        assert len(instances) == 3
        batch = [at(instance, start=number) for number, instance in enumerate(instances)]
        storage.append_results(lease, lease.tasks[0].id, batch)

        assert [record.result for record in storage.records_of_task(lease.tasks[0].id)] == batch
        assert [record.result for record in storage.list_trials(lease.job.id)] == batch


def test_a_record_of_no_instance_of_the_job_is_given_in_symbols(storage: Storage) -> None:
    lease = leased(storage, dense("16*T"))

    storage.append_results(lease, lease.tasks[0].id, [at(WorkloadInstance.of({"T": 6}, 2.0))])

    (record,) = storage.records_of_task(lease.tasks[0].id)
    assert record.result.instance == WorkloadInstance.of({"m": 96}, 2.0)


@pytest.mark.parametrize("shape", [{}, {"S": 5}, {"T": 5, "S": 5}])
def test_a_result_of_other_variables_is_refused_whole(storage: Storage, shape: dict[str, int]) -> None:
    lease = leased(storage, dense("16*T"))

    with pytest.raises(InvalidInput, match="give T") as caught:
        storage.append_results(lease, lease.tasks[0].id, [*results(1), at(WorkloadInstance.of(shape))])

    assert caught.value.field == "shape"
    assert storage.list_trials(lease.job.id) == ()


def test_instances_of_the_same_sizes_are_one_and_lose_nothing(storage: Storage) -> None:
    spec = dense("T//2", "T", 4, 5, 9)
    lease = leased(storage, spec)
    task = lease.tasks[0]
    assert [(result.shape, result.weight) for result in task.task.instances] == [({"T": 4}, 2.0), ({"T": 9}, 1.0)]

    batch = [at(instance) for instance in task.task.instances]
    storage.append_results(lease, task.id, batch)

    assert [record.result for record in storage.records_of_task(task.id)] == batch


def test_a_workload_without_dynamic_extents_has_one_instance_without_values(storage: Storage) -> None:
    workload = {"op": "dense", "args": {"m": 16, "n": 256, "k": 64}}
    lease = leased(storage, job_spec(workload=workload, shape_vars={}, instances=[{}]))
    task = lease.tasks[0]

    storage.append_results(lease, task.id, [at(WorkloadInstance.of({}))])

    assert [record.result.instance.shape for record in storage.records_of_task(task.id)] == [{}]
    best = best_at(storage, task.workload_key, task.target_fingerprint, "")
    assert best is not None
    assert best.instance == ""


def test_a_workload_is_stored_in_canonical_form_under_its_first_label(storage: Storage) -> None:
    first, second = dense("16*T"), dense("8*S", "S")
    for spec in (first, second):
        storage.create_job(spec)
    workload = first.tasks[0].workload

    row = storage.get_workload(workload.key)

    assert (row.workload, row.label) == (workload.canonical, str(workload))
    again = workload_from_json(row.workload)
    assert (again.key, again.symbols) == (row.key, workload.symbols)


def test_the_workload_of_a_targets_record_takes_the_records_symbols(storage: Storage) -> None:
    workload = {"op": "batch_matmul_nt", "args": {"b": "B", "m": "T", "n": "T", "k": 16}}
    shape_vars = {"B": {"min": 1, "max": 4}, "T": {"min": 1, "max": 64}}
    spec = job_spec(workload=workload, shape_vars=shape_vars, instances=[{"B": 2, "T": 40}])
    lease = leased(storage, spec)
    storage.append_results(lease, lease.tasks[0].id, [at(WorkloadInstance.of({"B": 2, "T": 40}))])

    ((stored, record),) = storage.records_of_target(lease.tasks[0].target_fingerprint, 1, "x86_contraction")

    result = workload_from_json(stored)
    assert result.variables == set(record.result.instance.shape)
    assert result.dims(record.result.instance.shape) == {"m": 2, "n": 40}
