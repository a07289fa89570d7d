"""What every Storage promises about the best kernel of a shape: decided by all readings, within one scope. Runs on each
database."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.samples import best_at, job_spec, kernel, leased, many_tasks, results
from tuner.program.job.build import workload_from_json
from tuner.program.language.instance import program_key
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, MeasureResult, Phase, settled_latency_s, speed_correction
from tuner.schedule.registry import RULES
from tuner.storage import KernelLatency, Lease, LookupScope, NotFound
from tuner.storage.sql import Storage

OTHER = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}


def reading(number: int, latency_s: float | None, attempt: int = 0, t: int = 5, **fields: Any) -> MeasureResult:
    instance = WorkloadInstance.of({"T": t})
    return MeasureResult(kernel(number), instance, latency_s, attempt=attempt, **fields)


def scope_of(lease: Lease, job_id: str | None = None) -> LookupScope:
    task = lease.tasks[0]
    return LookupScope(task.workload_key, task.target_fingerprint, task.task.threads, job_id)


def best(storage: Storage, lease: Lease, instance: str = "m=80", job_id: str | None = None) -> KernelLatency | None:
    (known,) = storage.look_up([(scope_of(lease, job_id), instance)])
    return known.best


# -- median, not luck -------------------------------------------------------------------------------------------------
def test_the_best_kernel_has_the_least_median(storage: Storage) -> None:
    lease = leased(storage)
    lucky = [reading(1, seconds, attempt) for attempt, seconds in enumerate((9.0, 1.0, 8.0))]
    steady = [reading(2, seconds, attempt) for attempt, seconds in enumerate((3.0, 4.0, 2.0))]
    storage.append_results(lease, lease.tasks[0].id, [*lucky, *steady])

    result = best(storage, lease)

    assert result is not None
    assert (result.kernel_id, result.latency_s, result.readings) == (kernel(2).id, 3.0, 3)
    assert (result.instance, result.job_id) == ("m=80", lease.job.id)
    assert storage.kernels([result.kernel_id]) == {result.kernel_id: kernel(2)}
    assert best(storage, lease, "m=112") is None


def test_readings_of_the_side_by_side_timing_outweigh_others(storage: Storage) -> None:
    lease = leased(storage)
    search = [reading(1, seconds, attempt) for attempt, seconds in enumerate((1.0, 1.0, 1.0))]
    final = [reading(1, seconds, 3 + n, phase=Phase.FINAL) for n, seconds in enumerate((2.0, 4.0))]
    storage.append_results(lease, lease.tasks[0].id, search)
    storage.append_results(lease, lease.tasks[0].id, final)

    result = best(storage, lease)

    assert result is not None
    assert (result.latency_s, result.readings) == (3.0, 2)


def test_readings_are_compared_at_the_speed_of_the_targets_first(storage: Storage) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, [reading(1, 1.0, anchor_s=2e-3)])
    # The device runs at half the speed now.
    storage.append_results(lease, lease.tasks[0].id, [reading(2, 1.5, anchor_s=4e-3)])

    result = best(storage, lease)

    assert result is not None
    assert (result.kernel_id, result.latency_s) == (kernel(2).id, 0.75)


Batches = Sequence[Sequence[MeasureResult]]


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    """Readings of a few kernels at a few instances, in batches, some of which are sent twice."""
    seconds = st.sampled_from([None, 1.0, 2.0, 3.0, 5.0, 8.0])
    made: list[MeasureResult] = []
    attempts: dict[tuple[int, int], int] = {}
    for number, t, latency_s, phase, anchor in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from([5, 128]),
                seconds,
                st.sampled_from([Phase.SEARCH, Phase.FINAL]),
                st.sampled_from([None, 1e-3, 1.5e-3, 9e-3]),
            ),
            max_size=20,
        )
    ):
        attempt = attempts[number, t] = attempts.get((number, t), -1) + 1
        kind = None if latency_s else ErrorKind.RUN_TIMEOUT
        made.append(reading(number, latency_s, attempt, t, phase=phase, anchor_s=anchor, error_kind=kind))
    cuts = sorted(draw(st.lists(st.integers(0, len(made)), max_size=4)))
    parts = [made[low:high] for low, high in itertools.pairwise([0, *cuts, len(made)])]
    repeated = draw(st.lists(st.sampled_from(parts), max_size=2))
    return [*parts, *repeated]


def plainly(found: Sequence[MeasureResult]) -> Mapping[tuple[str, str], tuple[float, int]]:
    """The latency and the number of readings of each (instance, kernel), computed from the records."""
    reference_s = next((one.anchor_s for one in found if one.ok and one.anchor_s), None)
    readings: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for one in found:
        if one.latency_s is not None:
            at_one_speed = one.latency_s * speed_correction(one.anchor_s, reference_s)
            pair = (f"m={16 * one.instance.shape['T']}", one.kernel.id)
            readings.setdefault(pair, []).append((at_one_speed, one.phase is Phase.FINAL))
    return {pair: settled_latency_s(each) for pair, each in readings.items()}


# One database for all examples: each has a workload and a target of its own.
NUMBERS = itertools.count(1)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=batches(), twice=st.booleans())
def test_what_is_known_is_what_the_records_say(storage: Storage, sent: Batches, twice: bool) -> None:
    number = next(NUMBERS)
    spec = job_spec(k=number, target={**OTHER, "num-cores": number})
    jobs = [leased(storage, spec) for _ in range(1 + twice)]
    for lease in jobs:
        for batch in sent:
            storage.append_results(lease, lease.tasks[0].id, batch)

    expected = plainly([each.result for lease in jobs for each in storage.records_of_task(lease.tasks[0].id)])

    scope = scope_of(jobs[0])
    pairs = [(instance, each.id) for instance in ("m=80", "m=2048") for each in map(kernel, range(3))]
    known = storage.latencies([(scope, *pair) for pair in pairs])
    result = {pair: (each.latency_s, each.readings) for pair, each in zip(pairs, known, strict=True) if each}
    assert result == expected
    for instance in ("m=80", "m=2048"):
        fastest = best(storage, jobs[0], instance)
        there = [latency_s for (at, _), (latency_s, _) in expected.items() if at == instance]
        assert (fastest.latency_s if fastest else None) == min(there, default=None)


def test_jobs_that_measure_the_same_at_once_lose_no_reading(storage: Storage) -> None:
    leases = [leased(storage) for _ in range(4)]

    def measure(lease: Lease) -> None:
        for attempt in range(5):
            storage.append_results(lease, lease.tasks[0].id, [reading(1, 1.0 + attempt, attempt)])

    with ThreadPoolExecutor(len(leases)) as pool:
        list(pool.map(measure, leases))

    result = best(storage, leases[0])
    assert result is not None
    assert (result.latency_s, result.readings) == (3.0, 20)


def test_a_batch_that_is_sent_twice_changes_nothing(storage: Storage) -> None:
    lease = leased(storage)
    batch = [reading(1, 1.0), reading(1, 3.0, 1), reading(2, None, error_kind=ErrorKind.CRASH)]
    storage.append_results(lease, lease.tasks[0].id, batch)
    before = best(storage, lease)

    # The same trials with other figures: what is stored stays.
    storage.append_results(lease, lease.tasks[0].id, [replace(one, latency_s=9.0, error_kind=None) for one in batch])

    assert best(storage, lease) == before
    assert before is not None
    assert (before.latency_s, before.readings) == (2.0, 2)


# -- condemned, or not ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [ErrorKind.WRONG, ErrorKind.CRASH])
@pytest.mark.parametrize("failed_first", [False, True])
def test_a_kernel_found_wrong_anywhere_is_the_best_of_nothing(
    storage: Storage, kind: ErrorKind, failed_first: bool
) -> None:
    lease = leased(storage)
    trials = [reading(1, 1.0), reading(2, 2.0), reading(1, None, t=6, error_kind=kind)]
    for one in reversed(trials) if failed_first else trials:
        storage.append_results(lease, lease.tasks[0].id, [one])
    # In a job of its own.
    storage.append_results(later := leased(storage), later.tasks[0].id, [reading(1, 0.5)])

    result = best(storage, lease)

    assert result is not None
    assert result.kernel_id == kernel(2).id


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if kind not in (ErrorKind.WRONG, ErrorKind.CRASH)])
def test_other_failures_condemn_no_kernel(storage: Storage, kind: ErrorKind) -> None:
    lease = leased(storage)
    storage.append_results(
        lease, lease.tasks[0].id, [reading(1, None, error_kind=kind), reading(1, 1.0, 1), reading(2, 2.0)]
    )

    result = best(storage, lease)

    assert result is not None
    assert result.kernel_id == kernel(1).id


def test_a_kernel_is_condemned_on_its_target_and_for_its_workload_alone(storage: Storage) -> None:
    failing = leased(storage)
    others = [leased(storage, job_spec(target=OTHER)), leased(storage, job_spec(k=128))]
    storage.append_results(failing, failing.tasks[0].id, [reading(1, None, error_kind=ErrorKind.WRONG)])

    for lease in (failing, *others):
        storage.append_results(lease, lease.tasks[0].id, [reading(1, 1.0, 1)])

    assert best(storage, failing) is None
    assert all(best(storage, lease) for lease in others)


# -- what is never crossed --------------------------------------------------------------------------------------------
def test_targets_threads_and_workloads_are_never_crossed(storage: Storage) -> None:
    specs = [job_spec(), job_spec(target=OTHER), job_spec(threads=2), job_spec(k=128)]
    leases = [leased(storage, spec) for spec in specs]
    for number, lease in enumerate(leases):
        storage.append_results(lease, lease.tasks[0].id, [reading(number, 4.0 - number)])

    result = [best(storage, lease) for lease in leases]

    assert [each and each.kernel_id for each in result] == [kernel(number).id for number in range(4)]
    assert [each and each.latency_s for each in result] == [4.0, 3.0, 2.0, 1.0]
    key, target = leases[0].tasks[0].workload_key, leases[0].tasks[0].target_fingerprint
    assert best_at(storage, key, target, "m=80", threads=3) is None
    assert best_at(storage, key, "llvm-other-0", "m=80") is None
    assert best_at(storage, "wl-0", target, "m=80") is None


def test_kernels_of_a_rule_version_that_this_code_lacks_are_passed_over(storage: Storage) -> None:
    lease = leased(storage)
    old = replace(kernel(1), rule_version=RULES[0].version + 1)
    unknown = replace(kernel(1), rule="gemv")
    trials = [replace(reading(1, 1.0), kernel=each) for each in (old, unknown)]
    storage.append_results(lease, lease.tasks[0].id, trials)
    assert best(storage, lease) is None

    storage.append_results(lease, lease.tasks[0].id, [reading(2, 9.0)])

    result = best(storage, lease)
    assert result is not None
    assert result.kernel_id == kernel(2).id


def test_a_job_answers_from_what_it_measured_itself(storage: Storage) -> None:
    first, second = leased(storage), leased(storage)
    storage.append_results(first, first.tasks[0].id, [reading(1, 1.0)])
    storage.append_results(second, second.tasks[0].id, [reading(2, 2.0)])

    result = [best(storage, first, job_id=job) for job in (None, first.job.id, second.job.id, "job-none")]

    assert [each and each.kernel_id for each in result] == [kernel(1).id, kernel(1).id, kernel(2).id, None]
    # Asked at once, too.
    asked = [(scope_of(first, job), "m=80") for job in (None, first.job.id, second.job.id, "job-none")]
    assert [known.best for known in storage.look_up(asked)] == result


# -- near by ----------------------------------------------------------------------------------------------------------
def test_measured_instances_are_each_named_once(storage: Storage) -> None:
    lease, other = leased(storage), leased(storage, job_spec(threads=2))
    trials = [reading(number, 1.0, t=t) for number in range(3) for t in (5, 6, 128)]
    storage.append_results(lease, lease.tasks[0].id, [*trials, reading(1, None, t=9, error_kind=ErrorKind.BUILD)])
    storage.append_results(other, other.tasks[0].id, [reading(1, 1.0, t=7)])
    nowhere = replace(scope_of(lease), target_fingerprint="llvm-other-0")

    result = storage.measured_instances([scope_of(lease), nowhere, scope_of(other)])

    assert [sorted(each) for each in result] == [["m=2048", "m=80", "m=96"], [], ["m=112"]]
    assert storage.measured_instances([]) == ()


def test_many_questions_are_answered_in_their_order(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    storage.append_results(lease, lease.tasks[0].id, [reading(1, 1.0), reading(2, 2.0, t=6)])
    scope = scope_of(lease)
    asked = [(scope, "m=96"), (scope, "m=1"), (scope, "m=80"), (replace(scope, workload_key="wl-0"), "m=80")] * 250

    result = storage.look_up(asked)

    names = [each.best and each.best.kernel_id for each in result]
    assert names == [kernel(2).id, None, kernel(1).id, None] * 250
    assert storage.look_up([]) == ()


def test_best_kernels_are_those_of_a_look_up(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    storage.append_results(lease, lease.tasks[0].id, [reading(1, 1.0), reading(2, 2.0), reading(2, 2.0, t=6)])
    scope = scope_of(lease)
    asked = [(scope, "m=96"), (scope, "m=1"), (scope, "m=80"), (replace(scope, threads=2), "m=80")]

    assert storage.best_kernels(asked) == tuple(each.best for each in storage.look_up(asked))
    assert storage.best_kernels([]) == ()


def test_reads_of_one_view_answer_as_others_do_and_views_may_nest(storage: Storage) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(1))
    scope = scope_of(lease)
    alone = (storage.newest_tasks([scope]), storage.measured_instances([scope]))

    with storage.one_view():
        with storage.one_view():
            inside = (storage.newest_tasks([scope]), storage.measured_instances([scope]))
        assert (storage.newest_tasks([scope]), storage.measured_instances([scope])) == inside == alone
        with pytest.raises(NotFound):
            storage.get_job("job-none")
        assert storage.measured_instances([scope]) == alone[1]

    storage.append_results(lease, lease.tasks[0].id, [reading(9, 1.0, t=7)])
    assert "m=112" in storage.measured_instances([scope])[0]


# -- search tasks, and workloads of the same program ------------------------------------------------------------------
def test_the_newest_task_is_that_of_the_newest_library_or_else_the_newest(storage: Storage) -> None:
    leases = [leased(storage) for _ in range(3)]
    elsewhere = leased(storage, job_spec(target=OTHER))
    scope = scope_of(leases[0])
    anywhere = replace(scope, target_fingerprint=None)
    (newest, any_target) = storage.newest_tasks([scope, anywhere])
    assert (newest and newest.number) == leases[2].tasks[0].id
    assert (any_target and any_target.number) == elsewhere.tasks[0].id

    storage.save_library(leases[1], leases[1].tasks[0].id, {"library.so": b""}, {"digest": "d1"}, {"table": []})

    asked = [scope, anywhere, replace(scope, job_id=leases[0].job.id), replace(scope, threads=2)]
    numbers = [task and task.number for task in storage.newest_tasks(asked)]
    assert numbers == [leases[1].tasks[0].id, leases[1].tasks[0].id, leases[0].tasks[0].id, None]
    assert storage.tasks([leases[0].tasks[0].id]) == {leases[0].tasks[0].id: leases[0].tasks[0].task}
    (known,) = storage.look_up([(scope, "m=80")])
    assert [(library.digest, library.job_id) for library in known.libraries] == [("d1", leases[1].job.id)]
    assert storage.dispatch_tables([known.libraries[0].number]) == {known.libraries[0].number: {"table": []}}


def test_workloads_of_the_same_program_are_found_whatever_their_extents(storage: Storage) -> None:
    specs = [job_spec(), job_spec(k=128), job_spec(workload={"op": "dense", "args": {"m": 8, "n": "16*T", "k": 8}})]
    other = job_spec(workload={"op": "matmul", "args": {"m": "T", "n": 8, "k": 8}})
    for spec in (*specs, other):
        storage.create_job(spec)
    static = workload_from_json({"op": "dense", "args": {"m": 592, "n": 256, "k": 64}})

    result = storage.workloads_like(program_key(static.canonical), 50)

    assert [form.key for form in result] == [spec.tasks[0].workload.key for spec in specs][::-1]
    assert result[-1].workload == specs[0].tasks[0].workload.canonical
    assert len(storage.workloads_like(program_key(static.canonical), 2)) == 2
    key = specs[0].tasks[0].workload.key
    assert storage.workload_forms([key, "wl-0"]) == {key: result[-1]}


@pytest.mark.parametrize("name", ["", "\0", "\udcff", "'; DROP TABLE targets", "💥", "%"])
def test_any_text_may_be_asked_about(storage: Storage, name: str) -> None:
    storage.append_results(lease := leased(storage), lease.tasks[0].id, results(1))
    scope = LookupScope(name, name, 1, name)

    assert best_at(storage, name, name, name, 1, name) is None
    assert storage.latencies([(scope, name, name)]) == (None,)
    assert storage.measured_instances([scope]) == ((),)
    assert storage.newest_tasks([scope]) == (None,)
    assert storage.kernels([name]) == {}
    assert storage.workload_forms([name]) == {}
