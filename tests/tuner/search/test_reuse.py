"""What a search makes of the records of earlier ones, on a synthetic device."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes import TASK, latency_s
from tests.searching import Bench, in_symbols, known, make_quick, records
from tests.shares import chosen, diagonal, every
from tuner.library.package import dispatcher_of
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import DISQUALIFYING, ErrorKind, MeasureResult, Phase, TuningRecord, protocol_of
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import POLICIES
from tuner.search.reuse import NOTHING, Knowledge, Reuse, is_related, shared_knowledge
from tuner.search.tuning import Cancelled, VerificationFailed
from tuner.storage.jsonl import SharedRecord

TRIALS = 80
SPACE = space_of(TASK)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture(scope="module")
def first() -> tuple[list[MeasureResult], float]:
    """The results of a first job, and the objective of its library."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        bench = Bench()
        tuned = bench.tune(TRIALS)
    return bench.results, known(tuned.summary.library_objective_s)


def best_after(results: Sequence[MeasureResult]) -> list[float]:
    """The weighted time of all instances with the best kernels so far, after each trial; infinite at first."""
    best: dict[tuple[tuple[str, int], ...], float] = {}
    entries = []
    for result in results:
        values = result.instance.values
        if result.latency_s is not None:
            best[values] = min(result.latency_s, best.get(values, float("inf")))
        times = [instance.weight * best.get(instance.values, float("inf")) for instance in TASK.instances]
        entries.append(sum(times))
    return entries


# -- what it saves ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", chosen(["evolutionary", "theory"], POLICIES))
def test_the_second_of_two_equal_jobs_is_as_good_as_the_firsts_end_within_a_tenth(
    first: tuple[list[MeasureResult], float], policy: str
) -> None:
    results, end_s = first
    bench = Bench()
    tuned = bench.tune(TRIALS, policy=policy, knowledge=Knowledge(in_symbols(results)))
    after = best_after(bench.results)
    assert next(count for count, best_s in enumerate(after, 1) if best_s <= end_s * 1.001) <= TRIALS / 10
    assert known(tuned.summary.library_objective_s) <= end_s * 1.001
    # From the start the figures say so: there is a best before there is a default.
    (start, *_) = [summary for summary in bench.recorder.progress("known") if summary.objective_s is not None]
    assert known(start.objective_s) <= end_s * 1.001
    assert start.default_objective_s is None


def test_the_default_is_theorys_whatever_is_known(first: tuple[list[MeasureResult], float]) -> None:
    def default(bench: Bench) -> set[tuple[MicroKernel, WorkloadInstance]]:
        return {(result.kernel, result.instance) for result in bench.results if result.is_theory}

    alone, again = Bench(), Bench()
    tuned = [alone.tune(60), again.tune(60, knowledge=Knowledge(in_symbols(first[0])))]
    assert default(alone) == default(again)
    assert tuned[0].summary.default_objective_s == tuned[1].summary.default_objective_s
    assert known(tuned[1].summary.speedup_vs_default) >= known(tuned[0].summary.speedup_vs_default) * 0.999


def test_what_was_reused_is_said_once_at_the_start_and_in_every_summary(
    first: tuple[list[MeasureResult], float],
) -> None:
    results = in_symbols(first[0])
    jobs = [replace(record, job_id=f"j-{number % 3}") for number, record in enumerate(results)]
    bench = Bench()
    tuned = bench.tune(40, knowledge=Knowledge(jobs))
    (event,) = [event for event in bench.recorder.events if event.kind == "reused"]
    kernels = len({result.kernel for result in first[0]})
    assert event.data | {"related_targets": 0, "related_records": 0} == event.data
    assert (event.data["records"], event.data["kernels"], event.data["jobs"]) == (len(results), kernels, 3)
    assert all(summary.reused == tuned.summary.reused for summary in bench.recorder.summaries)
    messages = [event.data["message"] for event in bench.recorder.events if event.kind == "log"]
    assert f"{len(results)} records of {kernels} kernels by 3 jobs reused" in messages
    assert Bench().tune(1).summary.reused is None


def test_known_kernels_take_no_more_than_half_of_a_small_budget(first: tuple[list[MeasureResult], float]) -> None:
    for trials in (1, 6, 12):
        bench = Bench()
        bench.tune(trials, knowledge=Knowledge(in_symbols(first[0])))
        repeated = [result for result in bench.results if result.phase is Phase.KNOWN]
        assert 0 < len(repeated) <= (trials + 1) // 2
        assert len(bench.results) <= trials
    bench = Bench(build_s=1.0, run_s=1.0)
    bench.tune(seconds=20, knowledge=Knowledge(in_symbols(first[0])))
    assert {Phase.KNOWN, Phase.THEORY} <= {result.phase for result in bench.results}


@pytest.mark.soak
def test_no_more_kernels_are_repeated_than_a_set_and_its_alternatives(
    first: tuple[list[MeasureResult], float],
) -> None:
    bench = Bench()
    bench.tune(150, knowledge=Knowledge(in_symbols(first[0])))
    repeated = [(result.kernel, result.instance) for result in bench.results if result.phase is Phase.KNOWN]
    assert len(repeated) == len(set(repeated))
    assert len({kernel for kernel, _ in repeated}) <= TASK.max_kernels + 2 * 4


# -- what decides, and what does not ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("policy", "kind"), diagonal(POLICIES, DISQUALIFYING, every=7))
def test_a_kernel_that_was_found_wrong_is_not_tried_again(
    first: tuple[list[MeasureResult], float], policy: str, kind: ErrorKind
) -> None:
    results, _ = first
    best = min(results, key=lambda result: result.latency_s or 1.0).kernel
    condemned = MeasureResult(best, TASK.instances[0], error_kind=kind, error="on purpose")
    bench = Bench()
    bench.tune(60, policy=policy, knowledge=Knowledge(in_symbols([*results, condemned])))
    assert best not in {result.kernel for result in bench.results}
    assert best not in bench.builder.built


@pytest.mark.parametrize("kind", every(3, sorted(set(ErrorKind) - set(DISQUALIFYING))))
def test_a_kernel_that_failed_for_another_reason_is_not_condemned(
    first: tuple[list[MeasureResult], float], kind: ErrorKind
) -> None:
    failed = [MeasureResult(result.kernel, result.instance, error_kind=kind) for result in first[0]]
    bench = Bench()
    bench.tune(40, knowledge=Knowledge(in_symbols([*first[0], *failed])))
    repeated = {result.kernel for result in bench.results if result.phase is Phase.KNOWN}
    assert repeated
    assert repeated <= {result.kernel for result in first[0]}


def test_what_was_not_measured_here_condemns_nothing_and_is_measured_before_it_counts(
    first: tuple[list[MeasureResult], float],
) -> None:
    results, _ = first
    best = min(results, key=lambda result: result.latency_s or 1.0).kernel
    slow = max(results, key=lambda result: result.latency_s or 0.0)
    claims = [
        MeasureResult(best, TASK.instances[0], error_kind=ErrorKind.WRONG, error="they say"),
        # A lie: it takes no time at all anywhere.
        *(MeasureResult(slow.kernel, instance, 1e-12) for instance in TASK.instances),
    ]
    bench = Bench()
    shared = in_symbols(claims, provenance="shared")
    tuned = bench.tune(TRIALS, knowledge=Knowledge([*in_symbols(results), *shared]))
    reuse = Reuse(TASK, SPACE, Knowledge([*in_symbols(results), *shared]))
    assert reuse.wrong == frozenset()
    assert known(tuned.summary.library_objective_s) <= first[1] * 1.001
    measured = {(r.kernel, r.instance.values): r.latency_s for r in bench.results}
    assert all(latency is None or latency > 1e-9 for latency in measured.values())


def test_a_kernel_that_was_wrong_is_wrong_whatever_the_caches_held(first: tuple[list[MeasureResult], float]) -> None:
    results, _ = first
    wrong = replace(results[0], latency_s=None, error_kind=ErrorKind.WRONG, error="off by one")
    reuse = Reuse(TASK, SPACE, Knowledge(in_symbols([wrong], protocol=protocol_of(Cache.STREAMED))))
    assert reuse.wrong == {wrong.kernel}
    assert reuse.timed == frozenset()


def test_records_that_cannot_be_compared_are_passed_over(first: tuple[list[MeasureResult], float]) -> None:
    results, _ = first
    old_rule = [replace(each, kernel=replace(each.kernel, rule_version=99)) for each in results]
    odd = [replace(each, kernel=replace(each.kernel, values=(("x", 1),))) for each in results]
    useless = [*in_symbols(results, protocol="v0"), *in_symbols(old_rule), *in_symbols(odd)]
    reuse = Reuse(TASK, SPACE, Knowledge(useless))
    assert (reuse.facts, reuse.warm, reuse.wrong, reuse.timed) == (None, (), frozenset(), frozenset())
    assert reuse.picks(PairCostModel(TASK)) == []


def test_random_records_keep_every_rule_of_a_search() -> None:
    rng = random.Random(0)

    def drawn(kernel: MicroKernel) -> MeasureResult:
        instance = rng.choice(TASK.instances)
        if rng.random() < 0.3:
            return MeasureResult(kernel, instance, error_kind=rng.choice(list(ErrorKind)))
        return MeasureResult(kernel, instance, rng.uniform(1e-7, 1e-3), anchor_s=rng.choice([None, 2e-6]))

    for seed in range(3):
        draw = np.random.default_rng(seed)
        results = [drawn(kernel) for kernel in [SPACE.sample(draw) for _ in range(12)] for _ in range(3)]
        bench, wrong = Bench(), {r.kernel for r in results if r.error_kind in DISQUALIFYING}
        tuned = bench.tune(20, knowledge=Knowledge(in_symbols(results)))
        assert len(bench.results) <= 20
        assert wrong.isdisjoint(result.kernel for result in bench.results)
        for result in bench.results:
            assert result.latency_s == pytest.approx(latency_s(TASK, result.kernel, result.instance.shape))
        assert known(tuned.summary.objective_s) <= known(tuned.summary.default_objective_s) * 1.0001


# -- names, speeds and other targets ----------------------------------------------------------------------------------
def test_a_job_of_other_variables_and_another_range_reuses_them_too(first: tuple[list[MeasureResult], float]) -> None:
    rows = ShapeVar("S", range(1, 65))
    task = SearchTask("dense", {"m": 2 * rows, "n": 96, "k": 32}, (rows,), [12, 64], target=TASK.target, max_kernels=4)
    assert task.workload.key == TASK.workload.key
    bench = Bench()
    bench.tune(40, task=task, knowledge=Knowledge(in_symbols(first[0])))
    repeated = [result for result in bench.results if result.phase is Phase.KNOWN]
    assert {result.instance.shape["S"] for result in repeated} >= {12, 64}
    # S=12 and S=64 are T=24 and T=128, which the first job measured: its best ones there come first.
    best = {t: min(r.latency_s for r in first[0] if r.latency_s and r.instance.shape == {"T": t}) for t in (24, 128)}
    results = {s: min(known(r.latency_s) for r in repeated if r.instance.shape == {"S": s}) for s in (12, 64)}
    assert results[12] == pytest.approx(best[24], rel=0.05)
    assert results[64] == pytest.approx(best[128], rel=0.05)


def test_what_an_earlier_release_found_is_timed_first_in_the_form_of_today(
    first: tuple[list[MeasureResult], float],
) -> None:
    # Kernels of wide panels have no such axis; no search draws them any more.
    def wide(result: MeasureResult) -> MeasureResult:
        kernel = result.kernel
        values = tuple((name, value) for name, value in kernel.values if name != "panel")
        return replace(result, kernel=replace(kernel, values=values))

    of_today = [each for each in first[0] if each.ok and each.kernel["nv"] > 1]
    past = [wide(each) for each in of_today]
    assert not {each.kernel for each in past} & {each.kernel for each in of_today}
    bench = Bench()
    bench.tune(40, knowledge=Knowledge(in_symbols(past)))
    known_ones = [(each.kernel, each.instance) for each in bench.results if each.phase is Phase.KNOWN]
    for instance in TASK.instances:
        fastest = min((each for each in of_today if each.instance == instance), key=lambda each: known(each.latency_s))
        assert (fastest.kernel, instance) in known_ones


def test_records_of_a_slower_hour_are_taken_to_the_speed_of_this_one(
    first: tuple[list[MeasureResult], float],
) -> None:
    slow = [
        replace(r, latency_s=2 * known(r.latency_s), anchor_s=2 * known(r.anchor_s)) if r.ok else r for r in first[0]
    ]
    benches = Bench(), Bench()
    for bench, result in zip(benches, (first[0], slow), strict=True):
        bench.tune(30, knowledge=Knowledge(in_symbols(result)))
    # Later ones are the model's, whose logarithms are rounded at another place.
    one, other = ([(r.kernel, r.instance) for r in bench.results if r.phase is Phase.KNOWN] for bench in benches)
    assert one == other
    assert one


def test_related_targets_are_priors_and_are_named_as_such(first: tuple[list[MeasureResult], float]) -> None:
    target = TASK.known_target
    more_cores = replace(target, hardware=replace(target.hardware, cores=64, l2_bytes=2**22))
    assert is_related(target, more_cores)
    assert not is_related(target, target)
    other_isa = replace(target, hardware=replace(target.hardware, features=("avx2",)))
    assert not is_related(target, other_isa)
    results = in_symbols(first[0], target_fingerprint=more_cores.fingerprint)
    related = [(TASK.workload.canonical, more_cores, record) for record in results]
    reuse = Reuse(TASK, SPACE, Knowledge(related=related))
    assert (reuse.wrong, reuse.timed, reuse.picks(PairCostModel(TASK))) == (frozenset(), frozenset(), [])
    assert len(reuse.warm) == len(related)
    assert {each.target for each in reuse.warm} == {more_cores}
    assert PairCostModel(TASK, warm=reuse.warm).pairs > 0
    bench = Bench()
    tuned = bench.tune(20, knowledge=Knowledge(related=related))
    assert not any(result.phase is Phase.KNOWN for result in bench.results)
    assert tuned.summary.reused is not None and tuned.summary.reused.related_targets == 1
    messages = [event.data["message"] for event in bench.recorder.events if event.kind == "log"]
    assert f"{len(related)} records of 1 related target used as priors" in messages


def test_records_of_a_file_are_sorted_by_what_they_say_of_the_task(first: tuple[list[MeasureResult], float]) -> None:
    target = TASK.known_target
    related = replace(target, hardware=replace(target.hardware, cores=64))
    foreign = replace(target, hardware=replace(target.hardware, features=("avx2",)))
    own = in_symbols(first[0][:4])

    def shared(record: TuningRecord, on: Any = target, **fields: Any) -> SharedRecord:
        return SharedRecord(TASK.workload.canonical, on, replace(record, target_fingerprint=on.fingerprint, **fields))

    result = shared_knowledge(
        [
            *map(shared, own),
            shared(own[0], workload_key="wl-other"),
            shared(own[0], related),
            shared(own[0], foreign),
            shared(own[0], threads=2),
        ],
        TASK,
    )
    assert [record.result for record in result.records] == [record.result for record in own]
    assert {record.provenance for record in result.records} == {"shared"}
    assert [record.workload_key for _, record in result.others] == ["wl-other"]
    assert [other for _, other, _ in result.related] == [related]
    assert shared_knowledge([], TASK) == NOTHING


def test_where_nothing_is_to_be_measured_the_library_is_chosen_by_what_is_known(
    first: tuple[list[MeasureResult], float],
) -> None:
    """Also by records of a file; what failed there is not chosen."""
    spoilt = first[0][0].kernel
    results = [replace(each, latency_s=None, error_kind=ErrorKind.CRASH) if each.kernel == spoilt else each
               for each in first[0]]  # fmt: skip
    for provenance in ("measured", "shared"):
        bench, own = Bench(), in_symbols(results, provenance=provenance)
        tuned = bench.tune(trials=0, knowledge=Knowledge(tuple(own)))
        assert not bench.results and not bench.runner.ran
        assert bench.runner.verified, "here it is verified"
        dispatcher = dispatcher_of(tuned.files, tuned.manifest)
        assert spoilt not in dispatcher.kernels
        assert set(dispatcher.kernels) <= {each.kernel for each in results}
        messages = [event.data["message"] for event in bench.recorder.events if event.kind == "log"]
        assert any(f"by {len(results)} earlier measurements" in each for each in messages)
        ours = [latency_s(TASK, dispatcher.kernel_for(at.shape), at.shape) for at in TASK.instances]
        best = best_after([each for each in results if each.kernel != spoilt])[-1]
        assert sum(at.weight * taken for at, taken in zip(TASK.instances, ours, strict=True)) <= 1.02 * best


def test_where_all_that_is_known_failed_no_library_is_chosen_by_it(first: tuple[list[MeasureResult], float]) -> None:
    failures = [replace(each, latency_s=None, error_kind=ErrorKind.CRASH) for each in first[0]]
    with pytest.raises(VerificationFailed, match="all that was measured failed"):
        Bench().tune(trials=0, knowledge=Knowledge(tuple(in_symbols(failures, provenance="shared"))))


# -- resumption and cancellation --------------------------------------------------------------------------------------
def identities(results: Sequence[MeasureResult]) -> list[tuple[str, str, int]]:
    return [(result.kernel.id, str(result.instance), result.attempt) for result in results]


@pytest.mark.parametrize("after", every(3, [30, 1, 6]))
def test_a_search_that_reuses_goes_on_without_loss_or_repetition(
    first: tuple[list[MeasureResult], float], after: int
) -> None:
    knowledge = Knowledge(in_symbols(first[0]))
    one, whole = Bench(), Bench()
    with pytest.raises(Cancelled):
        one.tune(60, knowledge=knowledge, should_stop=lambda: len(one.runner.ran) >= after)
    second = Bench()
    tuned = second.tune(60, knowledge=knowledge, past=records(one.results))
    together = one.results + second.results
    assert len(together) <= 60
    assert len(set(identities(together))) == len(together)
    assert tuned.summary.trials == len(together)
    for key, attempts in itertools.groupby(sorted(identities(together)), key=lambda row: row[:2]):
        result = [attempt for *_, attempt in attempts]
        assert result == list(range(len(result))), key
    # The known kernels are timed once in all, as by a search that nobody interrupted.
    whole.tune(60, knowledge=knowledge)
    repeated = [
        [(r.kernel, r.instance) for r in results if r.phase is Phase.KNOWN] for results in (together, whole.results)
    ]
    assert sorted(map(str, repeated[0])) == sorted(map(str, repeated[1]))
    theory = [(r.kernel, r.instance) for r in together if r.phase is Phase.THEORY]
    assert {instance for _, instance in theory} >= set(TASK.instances)
    said = [event for bench in (one, second) for event in bench.recorder.events if event.kind == "reused"]
    assert len(said) == 1


def test_a_search_that_is_cancelled_leaves_the_best_library_of_what_it_measured() -> None:
    bench = Bench()
    tuned = bench.tune(1000, should_finish=lambda: len(bench.runner.ran) >= 60)
    assert tuned.summary.ended_by == "cancelled"
    assert bench.runner.verified
    assert len(bench.results) < 60 + 4 * len(TASK.instances)
    assert known(tuned.summary.objective_s) <= known(tuned.summary.default_objective_s)
    assert f"{len(bench.results)} of 1000 trials" in tuned.summary.trials_text
    assert tuned.summary.trials_text.endswith(", cancelled")


def test_a_search_that_is_cancelled_before_every_instance_has_a_time_leaves_nothing() -> None:
    bench = Bench()
    with pytest.raises(Cancelled):
        bench.tune(1000, should_finish=lambda: True)
    assert bench.results == []
    assert bench.runner.verified == []


def test_a_library_that_takes_too_long_to_verify_is_given_up() -> None:
    bench = Bench()
    verify = bench.runner.verify

    def slow(*args: Any) -> Any:
        bench.clock.now_s += 40.0
        return verify(*args)

    bench.runner.verify = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(Cancelled):
        bench.tune(1000, should_finish=lambda: len(bench.runner.ran) >= 60)


def test_a_library_that_is_wrong_at_the_end_of_a_cancelled_search_is_not_handed_out() -> None:
    bench = Bench()
    bench.runner.wrong = lambda dims: "wrong" if dims["m"] == 128 else None
    with pytest.raises(Cancelled):
        bench.tune(1000, should_finish=lambda: len(bench.runner.ran) >= 60)


# -- why it ended -----------------------------------------------------------------------------------------------------
def test_a_search_says_why_it_ended() -> None:
    assert Bench().tune(30).summary.ended_by == "trials"
    bench = Bench(build_s=1.0, run_s=0.5)
    ended = bench.tune(trials=1000, seconds=30).summary
    assert ended.ended_by == "seconds"
    assert ended.trials_text.startswith(f"{ended.trials} of 1000 trials, out of time (of 30 s: ")
    assert all(summary.ended_by is None for summary in bench.recorder.progress("search"))
    kept = Bench(build_s=1.0, run_s=0.5)
    assert kept.tune(seconds=60, after_s=20.0).summary.elapsed_s <= 45
