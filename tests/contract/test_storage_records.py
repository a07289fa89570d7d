"""What every Storage promises about results, events and what is asked of them. Runs on each database."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.contract.samples import best_at, job_spec, kernel, leased, many_tasks, results, seqs, take
from tuner.errors import InvalidInput
from tuner.program.language.workload import WorkloadInstance
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, Phase
from tuner.schedule.space import MicroKernel
from tuner.storage import NewEvent, NotFound
from tuner.storage.sql import Storage

FULL = MeasureResult(
    kernel=kernel(1),
    instance=WorkloadInstance.of({"T": 5}, weight=2.5),
    latency_s=1.25e-5,
    samples_s=(1.2e-5, 1.25e-5, 1.3e-5),
    build_s=0.5,
    run_s=0.125,
    predicted_s=2e-5,
    round=3,
    phase=Phase.FINAL,
    attempt=2,
    anchor_s=3e-6,
    device="rack-7:local",
)
FAILED = MeasureResult(
    kernel=kernel(2), instance=WorkloadInstance.of({"T": 128}), error_kind=ErrorKind.CRASH, error="SIGSEGV at 0x0\nä"
)


# -- results ----------------------------------------------------------------------------------------------------------
def test_results_come_back_as_they_were(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0]

    storage.append_results(lease, task.id, [FULL, FAILED])

    records = storage.list_trials(lease.job.id)
    assert [record.result for record in records] == [FULL, FAILED]
    first, second = records
    assert 0 < first.seq < second.seq
    assert (first.workload_key, first.target_fingerprint, first.threads) == (
        task.workload_key,
        task.target_fingerprint,
        task.task.threads,
    )
    assert (first.protocol, first.provenance) == (PROTOCOL, "measured")
    assert (first.job_id, first.search_task_id) == (lease.job.id, task.id)
    assert first.created_at >= lease.job.created_at
    assert storage.records_of_task(task.id) == records


def test_a_batch_sent_twice_doubles_nothing(storage: Storage) -> None:
    lease = leased(storage)
    batch = results(256)
    events = [NewEvent("trials", {"count": 256})]

    for _ in range(2):
        storage.append_results(lease, lease.tasks[0].id, batch, events, spent_s=3.0, summary={"trials": 256})

    assert [record.result for record in storage.list_trials(lease.job.id)] == batch
    job = storage.get_job(lease.job.id)
    assert (job.trials, job.summary) == (256, {"trials": 256})
    assert storage.search_tasks(job.id)[0].spent_s == 3.0
    assert [event.kind for event in storage.list_events(job.id)] == ["state", "state", "trials"]


def test_a_batch_sent_in_part_before_adds_the_rest_and_keeps_what_is_there(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0].id
    storage.append_results(lease, task, results(2))

    storage.append_results(lease, task, results(4, latency_s=99.0), [NewEvent("trials", {})])

    assert [record.result.latency_s for record in storage.list_trials(lease.job.id)] == [1.0, 0.5, 99.0, 99.0]
    assert storage.get_job(lease.job.id).trials == 4
    assert seqs(storage, lease.job.id) == [1, 2, 3]


def test_instance_attempt_and_task_each_make_a_trial_another(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    (one,) = results(1)

    for task in lease.tasks:
        batch = [one, replace(one, attempt=1), *results(1, t=6), one]
        storage.append_results(lease, task.id, batch)

    assert storage.get_job(lease.job.id).trials == 9
    assert [len(storage.records_of_task(task.id)) for task in lease.tasks] == [3, 3, 3]


def test_results_of_another_jobs_task_are_refused_whole(storage: Storage) -> None:
    other = leased(storage)
    lease = leased(storage)

    with pytest.raises(NotFound, match=str(other.tasks[0].id)):
        storage.append_results(lease, other.tasks[0].id, results(1), [NewEvent("log", {})])

    assert storage.list_trials(other.job.id) == ()
    assert seqs(storage, lease.job.id) == [1, 2]


def test_figures_that_json_lacks_are_stored_without_harm(storage: Storage) -> None:
    lease = leased(storage)
    odd = replace(
        FULL, latency_s=math.nan, samples_s=(1.0, math.inf), build_s=math.nan, run_s=math.inf, predicted_s=-math.inf
    )
    figures = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": True, "f": "NaN"}

    storage.append_results(lease, lease.tasks[0].id, [odd], [NewEvent("progress", figures)], summary=figures)

    (record,) = storage.list_trials(lease.job.id)
    assert (record.result.latency_s, record.result.ok, record.result.error_kind) == (None, False, ErrorKind.DEVICE)
    assert (record.result.samples_s, record.result.predicted_s) == ((1.0,), None)
    assert (record.result.build_s, record.result.run_s) == (0.0, 0.0)
    kept = {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": True, "f": "NaN"}
    assert storage.get_job(lease.job.id).summary == kept
    assert storage.list_events(lease.job.id)[-1].data == kept
    assert best_at(storage, record.workload_key, record.target_fingerprint, "m=80") is None


def test_whatever_a_crashing_candidate_says_can_be_stored(storage: Storage) -> None:
    lease = leased(storage)
    said = "\0\udcff%s %(x)s ' \" \\ 💥"

    storage.append_results(lease, lease.tasks[0].id, [replace(FAILED, error=said)], [NewEvent("log", {"text": said})])

    (record,) = storage.list_trials(lease.job.id)
    assert record.result.error == "\ufffd?%s %(x)s ' \" \\ 💥"
    # Half a surrogate pair is stored, and no answer could carry it.
    assert storage.list_events(lease.job.id)[-1].data == {"text": said.replace("\udcff", "\ufffd")}


def test_trials_are_read_on_from_the_last_one_seen(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    first, second, _ = lease.tasks
    for start in range(0, 6, 2):
        storage.append_results(lease, first.id, results(2, start))
        storage.append_results(lease, second.id, results(1, start))

    seen = list(storage.list_trials(lease.job.id, limit=4))
    while more := storage.list_trials(lease.job.id, after=seen[-1].seq, limit=4):
        seen += more

    assert [record.seq for record in seen] == sorted({record.seq for record in seen})
    assert [record.search_task_id for record in seen] == [first.id, first.id, second.id] * 3
    of_second = storage.list_trials(lease.job.id, search_task_id=second.id)
    assert list(of_second) == [record for record in seen if record.search_task_id == second.id]
    assert storage.list_trials(lease.job.id, search_task_id=second.id, after=of_second[0].seq) == of_second[1:]


# -- events -----------------------------------------------------------------------------------------------------------
def test_events_are_numbered_without_gaps_in_the_order_given(storage: Storage) -> None:
    lease = leased(storage)

    storage.append_events(lease, [NewEvent("log", {"line": line}) for line in range(3)])
    storage.append_results(lease, lease.tasks[0].id, results(1), [NewEvent("trials", {"line": 3})])
    storage.append_events(lease, [])

    events = storage.list_events(lease.job.id, after=2)
    assert [(event.seq, event.kind, event.data["line"]) for event in events] == [
        (3, "log", 0),
        (4, "log", 1),
        (5, "log", 2),
        (6, "trials", 3),
    ]
    assert seqs(storage, lease.job.id) == [1, 2, 3, 4, 5, 6]
    assert storage.list_events(lease.job.id, after=3, limit=2) == events[1:3]
    assert storage.list_events(lease.job.id, after=6) == ()
    assert [event.created_at for event in events] == sorted(event.created_at for event in events)


def test_each_job_counts_its_own_events(storage: Storage) -> None:
    first, second = leased(storage), leased(storage)
    storage.append_events(first, [NewEvent("log", {})])

    assert (seqs(storage, first.job.id), seqs(storage, second.job.id)) == ([1, 2, 3], [1, 2])


# -- what the records know --------------------------------------------------------------------------------------------
def test_records_of_a_workload_are_those_of_every_job_on_this_target(storage: Storage) -> None:
    for start in (0, 5):
        lease = leased(storage)
        storage.append_results(lease, lease.tasks[0].id, [*results(2, start), replace(FAILED, attempt=start)])
    other = leased(storage, job_spec(k=128))
    storage.append_results(other, other.tasks[0].id, results(1))
    elsewhere = leased(storage, job_spec(target={"kind": "llvm", "mcpu": "znver4", "num-cores": 2}))
    storage.append_results(elsewhere, elsewhere.tasks[0].id, results(1))
    wide = leased(storage, job_spec(threads=2))
    storage.append_results(wide, wide.tasks[0].id, results(1))
    place = (lease.tasks[0].workload_key, lease.tasks[0].target_fingerprint)

    records = storage.prior_records(*place, 1)

    assert [record.result.kernel for record in records] == [kernel(n) for n in (0, 1, 2, 5, 6, 2)]
    assert [record.seq for record in records] == sorted(record.seq for record in records)
    assert len({record.job_id for record in records}) == 2
    assert wide.job.id not in {record.job_id for record in records}
    # A kernel that is known to be wrong is that with any number of threads.
    of_two = storage.prior_records(*place, 2)
    assert [record.job_id for record in of_two if record.result.latency_s is not None] == [wide.job.id]


def test_records_of_a_target_are_the_newest_that_ran_with_their_workloads(storage: Storage) -> None:
    specs = [job_spec(), job_spec(k=128)]
    for spec in specs:
        lease = leased(storage, spec)
        storage.append_results(lease, lease.tasks[0].id, [*results(2), FAILED])
    other = replace(results(1)[0], kernel=MicroKernel("gemv", 1, (("unroll", 2),)))
    storage.append_results(lease, lease.tasks[0].id, [other])
    target = lease.tasks[0].target_fingerprint

    result = storage.records_of_target(target, 1, "x86_contraction")

    workloads = [spec.tasks[0].workload.canonical for spec in specs]
    assert [workload for workload, _ in result] == [workloads[1], workloads[1], workloads[0], workloads[0]]
    assert [record.result.kernel for _, record in result] == [kernel(1), kernel(0)] * 2
    assert storage.records_of_target(target, 1, "x86_contraction", limit=1) == result[:1]
    assert len(storage.records_of_target(target, 1, "gemv")) == 1
    assert storage.records_of_target(target, 2, "gemv") == ()
    assert storage.records_of_target("llvm-other-0", 1, "gemv") == ()


def test_a_policy_finds_its_own_records_after_a_workers_death(storage: Storage) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(3))
    storage.release_job(lease)

    again = take(storage, "w2")

    assert [record.result for record in storage.records_of_task(again.tasks[0].id)] == results(3)
    assert storage.records_of_task(10**6) == ()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(storage: Storage, limit: int) -> None:
    job = leased(storage).job
    for ask in (
        lambda: storage.list_jobs(limit=limit),
        lambda: storage.list_events(job.id, limit=limit),
        lambda: storage.list_trials(job.id, limit=limit),
        lambda: storage.list_workloads(limit=limit),
    ):
        with pytest.raises(InvalidInput, match="limit"):
            ask()
