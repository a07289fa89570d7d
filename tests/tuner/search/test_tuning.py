"""The tuning loop, on a synthetic device: budgets, stops, resumption, verification, and what it tells as it goes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pytest

from tests.fakes import TASK, latency_s
from tests.searching import Bench, known, make_quick, records
from tests.shares import every
from tuner.errors import InvalidInput
from tuner.library import codegen, package
from tuner.library.dispatcher import Dispatcher, Tree, choose
from tuner.measure import BuilderLost, BuildResult, DeviceLost
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule import estimate_s, extents_of, layout_group
from tuner.schedule.space import MicroKernel
from tuner.search.finalists import CONTESTED_RATIO, TIE_RATIO
from tuner.search.pipeline import FASTEST_READINGS
from tuner.search.policy import POLICIES, TheorySettings
from tuner.search.policy.evolutionary import EvolutionarySearch, EvolutionSettings
from tuner.search.trials import Trials
from tuner.search.tuning import Cancelled, VerificationFailed
from tuner.search.verdict import DEFAULT, FinalComparison, within


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def identities(results: list[MeasureResult]) -> list[tuple[str, str, int]]:
    return [(result.kernel.id, str(result.instance), result.attempt) for result in results]


# -- budgets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trials", [1, 2, 24, 60])
def test_no_more_than_the_budgeted_trials_are_run(trials: int) -> None:
    bench = Bench()
    tuned = bench.tune(trials)
    assert len(bench.results) == len(bench.runner.ran) <= trials
    assert len(bench.results) >= 0.6 * trials
    assert tuned.summary.trials == len(bench.results)
    searched = set(Phase) - {Phase.KNOWN}
    phases = {1: {Phase.THEORY}, 2: {Phase.THEORY}, 24: searched, 60: searched}
    assert {result.phase for result in bench.results} == phases[trials]


def test_without_trials_the_library_is_the_one_of_theory() -> None:
    bench = Bench()
    tuned = bench.tune(0)
    assert bench.runner.ran == []
    assert set(bench.builder.built) == set(Dispatcher.from_json(tuned.dispatch).kernels)
    assert bench.runner.verified
    assert bench.runner.compared == []
    assert 1 <= known(tuned.summary.kernels) <= TASK.max_kernels
    unknown = ("objective_s", "speedup_vs_default", "speedup_vs_numpy")
    assert [getattr(tuned.summary, name) for name in ("trials", *unknown)] == [0, None, None, None]
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    assert all(row.measured_latency_s is None for row in dispatcher.table)
    assert dispatcher.kernels == Dispatcher.from_json(Bench().tune(0).dispatch).kernels


def test_the_search_ends_when_its_seconds_are_over() -> None:
    bench = Bench(build_s=1.0, run_s=0.5)
    started = bench.clock()
    bench.tune(seconds=60)
    assert 40 <= bench.clock() - started <= 70
    assert bench.recorder.spent_s == sorted(bench.recorder.spent_s)
    assert bench.recorder.spent_s[-1] <= 70


def test_a_budget_of_a_moment_ends_after_one_batch() -> None:
    bench = Bench(build_s=1.0)
    assert known(bench.tune(seconds=0.001).summary.kernels) >= 1
    assert len(bench.builder.built) <= 4


def test_seconds_spent_before_count() -> None:
    bench = Bench(build_s=1.0, run_s=0.5)
    started = bench.clock()
    bench.tune(seconds=60, spent_s=50.0)
    assert bench.clock() - started <= 20
    assert min(bench.recorder.spent_s) >= 50.0


@pytest.mark.soak
def test_both_budgets_hold() -> None:
    bench = Bench(build_s=1.0)
    bench.tune(trials=1000, seconds=20)
    assert bench.clock.now_s <= 1000 + 20 + 5
    bench = Bench(build_s=1.0)
    bench.tune(trials=10, seconds=1000)
    assert len(bench.results) <= 10


@pytest.mark.soak
def test_no_more_of_the_seconds_is_kept_than_the_end_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever is expected of candidates: only the seconds end it.
    settings = EvolutionSettings(16, generations=1, theory=TheorySettings(20), max_idle_rounds=1000)
    monkeypatch.setitem(POLICIES, "evolutionary", partial(EvolutionarySearch, settings=settings))
    bench = Bench(build_s=0.4, run_s=0.2)
    started = bench.clock()
    bench.tune(seconds=100)
    assert bench.recorder.progress("search")[-1].elapsed_s > 75
    # How many kernels the library is built of is known only when they have been chosen.
    assert bench.clock() - started <= 100 + bench.builder.build_s


def test_the_next_round_is_thought_out_beside_the_last_measurements() -> None:
    apart, beside = Bench(build_s=0.01), Bench(build_s=0.01)
    apart.tune(60)
    tuned = beside.tune(60, parallel_builds=1)
    assert len(beside.results) <= 60
    assert known(tuned.summary.speedup_vs_default) >= 1.0
    assert identities(apart.results) != identities(beside.results)
    again = Bench(build_s=0.01)
    again.tune(60, parallel_builds=1)
    assert identities(again.results) == identities(beside.results)
    searched = [(r.round, r.kernel) for r in beside.results if r.phase is not Phase.FINAL and r.attempt == 0]
    assert len({kernel for _, kernel in searched}) == len(set(searched))


def test_a_search_that_can_gain_nothing_ends_early_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvolutionSettings(16, generations=1, theory=TheorySettings(20), max_idle_rounds=1, least_gain=0.1)
    monkeypatch.setitem(POLICIES, "evolutionary", partial(EvolutionarySearch, settings=settings))
    task = SearchTask("dense", {"m": 4, "n": 16, "k": 4}, target=TASK.target)
    bench = Bench()
    bench.runner.time = lambda task, kernel, shape: 1e-6
    bench.tune(trials=5000, task=task)
    assert len(bench.results) < 1000
    logs = [event.data["message"] for event in bench.recorder.events if event.kind == "log"]
    assert any("ends early" in message for message in logs)


SEEDS = 3


# -- what it finds ----------------------------------------------------------------------------------------------------
def test_the_result_is_better_than_the_default_and_its_table_says_what_was_measured() -> None:
    searches = [Bench().tune(80, seed=seed) for seed in range(SEEDS)]
    # One search may find little, and which one it is the CPU decides, on which NumPy and XGBoost round in their own
    # ways.
    assert median(known(tuned.summary.speedup_vs_default) for tuned in searches) > 1.03
    tuned = searches[0]
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    assert len(dispatcher.kernels) <= TASK.max_kernels
    assert len({layout_group(TASK, kernel) for kernel in dispatcher.kernels}) == 1
    assert [dict(row.shape)["T"] for row in dispatcher.table] == list(range(1, 129))
    measured = {dict(row.shape)["T"] for row in dispatcher.table if row.measured_latency_s is not None}
    assert measured <= {instance.shape["T"] for instance in TASK.instances}
    assert measured
    for t in (0, 129, 10_000):
        assert dispatcher.kernel_for({"T": t}) == dispatcher.kernels[dispatcher.default_kernel]


@pytest.mark.soak
def test_the_same_seed_gives_the_same_library() -> None:
    one, other = (Bench().tune(40, seed=3) for _ in range(2))
    assert one.manifest["digest"] == other.manifest["digest"]
    assert one.summary == other.summary


@pytest.mark.soak
def test_a_device_whose_clock_drifts_gives_the_library_that_a_steady_one_gives() -> None:
    steady, drifting = Bench(), Bench()
    # Powers of two leave no rounding behind.
    drifting.runner.slowdown = lambda trials: 2.0 if trials % 60 > 30 else 1.0
    results = [bench.tune(trials=120) for bench in (steady, drifting)]
    assert results[0].dispatch["kernels"] == results[1].dispatch["kernels"]
    assert max(result.latency_s or 0 for result in drifting.results) > max(r.latency_s or 0 for r in steady.results)


def test_the_least_shape_of_the_range_is_searched_for_and_not_reported_as_asked_for() -> None:
    var = ShapeVar("T", range(1, 129))
    task = SearchTask("dense", {"m": "16*T", "n": 48, "k": 64}, (var,), [64, 128], target=TASK.target)
    bench = Bench()
    tuned = bench.tune(60, task=task)
    measured = {result.instance.shape["T"] for result in bench.results}
    assert measured == {1, 64, 128}
    assert 1 in {result.instance.shape["T"] for result in bench.results if result.phase is Phase.FINAL}
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    assert dispatcher.task == task
    assert dispatcher.table[0].measured_latency_s is not None
    served = sum(row.measured_latency_s or 0.0 for row in dispatcher.table if row.shape["T"] in (64, 128))
    assert known(tuned.summary.objective_s) <= served


def test_finalists_are_timed_side_by_side_at_one_instance_after_the_other_and_what_is_close_again() -> None:
    # Of these the finalists leave some for what is close.
    bench, budget = Bench(), 230
    bench.tune(trials=budget, policy="random")
    final = [result for result in bench.results if result.phase is Phase.FINAL]
    pairs = [(result.kernel, result.instance) for result in final]
    count = next((at for at, pair in enumerate(pairs) if pair in pairs[:at]), len(pairs))
    first, second = final[:count], final[count:]
    before = {(result.kernel, result.instance): result.latency_s or 0.0 for result in bench.results[: -len(final)]}
    fastest = {i: min(time for (_, instance), time in before.items() if instance == i) for i in TASK.instances}
    assert all(before[pair] <= CONTESTED_RATIO * fastest[pair[1]] for pair in pairs[:count] if pair in before)
    for results in (first, second):
        places = [TASK.instances.index(result.instance) for result in results]
        assert places == sorted(places)
    best = {i: min(r.latency_s or 0.0 for r in first if r.instance == i) for i in {r.instance for r in first}}
    close = {(r.kernel, r.instance) for r in first if r.latency_s and r.latency_s <= TIE_RATIO * best[r.instance]}
    several = {(k, i) for k, i in close if sum(i == other for _, other in close) > 1}
    again = {(result.kernel, result.instance) for result in second}
    # Where the budget is used up, it may have been enough for just these.
    assert again == several if len(bench.results) < budget else again <= several
    assert again


@pytest.mark.parametrize("trials", every(3, [16, 18, 24]))
def test_where_there_is_no_time_for_the_whole_best_set_none_of_it_is_left_out(trials: int) -> None:
    theory = Dispatcher.from_json(Bench().tune(0).dispatch)
    own = {i.values: theory.kernels[theory.index_for(TASK.workload.dims(i.shape))] for i in TASK.instances}
    bench = Bench()

    def time_s(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        """Each kernel of theory is three times as fast as any other where theory runs it."""
        expected = float(estimate_s(task, [kernel], extents_of(task.workload, [shape]))[0, 0])
        return (1.0 if own[tuple(shape.items())] == kernel else 3.0) * expected

    bench.runner.time = time_s
    tuned = Dispatcher.from_json(bench.tune(trials).dispatch)
    final = [result for result in bench.results if result.phase is Phase.FINAL]
    assert len(final) < len(tuned.kernels) * len(TASK.instances), "there is time for all of them"
    fast = {
        (result.kernel, result.instance) for result in bench.results if own[result.instance.values] == result.kernel
    }
    several = {
        i for i in TASK.instances if len({result.kernel for result in bench.results if result.instance == i}) > 1
    }
    decided = [(kernel, instance) for kernel, instance in fast if instance in several]
    assert decided
    assert all(tuned.kernels[tuned.index_for(TASK.workload.dims(i.shape))] == kernel for kernel, i in decided)


def test_kernels_of_theory_that_there_was_no_budget_for_stand_beside_what_was_measured() -> None:
    theory = Dispatcher.from_json(Bench().tune(0).dispatch)
    bench = Bench()
    tuned = Dispatcher.from_json(bench.tune(2).dispatch)
    assert len({result.kernel for result in bench.results}) == 1
    assert len(tuned.kernels) > 1
    assert set(tuned.kernels) <= set(theory.kernels)


def test_files_belong_together() -> None:
    tuned = Bench().tune(10, job_id="j-1")
    assert package.check_files(tuned.files) == tuned.manifest
    assert json.loads(tuned.files[package.DISPATCH]) == json.loads(json.dumps(tuned.dispatch))
    assert (tuned.manifest["job_id"], tuned.manifest["workload_key"]) == ("j-1", TASK.workload.key)


def test_a_workload_of_fixed_size_is_tuned_too() -> None:
    task = SearchTask("matmul", {"m": 33, "n": 48, "k": 16}, target=TASK.target)
    bench = Bench()
    tuned = bench.tune(12, task=task)
    assert Dispatcher.from_json(tuned.dispatch).kernel_for({})
    assert bench.runner.verified == [[{}]]


def test_empty_shapes_may_be_part_of_the_range() -> None:
    rows = ShapeVar("T", range(0, 33))
    task = SearchTask("dense", {"m": rows, "n": 96, "k": 32}, (rows,), instances=[0, 8, 32], target=TASK.target)
    bench = Bench()
    tuned = bench.tune(40, task=task)
    assert len(Dispatcher.from_json(tuned.dispatch).table) == 33


def test_two_dims_and_instances_without_weight() -> None:
    t, s = ShapeVar("T", range(1, 65)), ShapeVar("S", range(1, 33))
    instances = [{"T": 1, "S": 1}, {"T": 64, "S": 32}, {"T": 9, "S": 30}]
    task = SearchTask("matmul", {"m": t, "n": 4 * s, "k": 16}, (t, s), instances, [0, 3, 1], TASK.target)
    bench = Bench()
    tuned = bench.tune(30, task=task)
    dispatcher = Dispatcher.from_json(tuned.dispatch)
    assert dispatcher.task == task
    for shape in ({"T": 65, "S": 1}, {"T": 1, "S": 33}, {"T": 0, "S": 0}):
        assert dispatcher.kernel_for(shape) == dispatcher.kernels[dispatcher.default_kernel]
    assert {tuple(dims) for dims in bench.runner.verified[0]} == {("m", "n")}


# -- stops and resumption ---------------------------------------------------------------------------------------------
def test_a_stop_is_noticed_soon_and_what_was_measured_is_recorded() -> None:
    bench = Bench()
    with pytest.raises(Cancelled):
        bench.tune(1000, should_stop=lambda: len(bench.runner.ran) >= 12)
    assert len(bench.results) == len(bench.runner.ran) < 12 + 4 * len(TASK.instances)


def test_a_stop_before_the_first_trial_runs_nothing() -> None:
    bench = Bench()
    with pytest.raises(Cancelled):
        bench.tune(10, should_stop=lambda: True)
    assert bench.runner.ran == []


@pytest.mark.parametrize("after", every(3, [14, 1, 30]))
def test_a_search_goes_on_from_its_records_without_loss_or_repetition(after: int) -> None:
    first = Bench()
    with pytest.raises(Cancelled):
        first.tune(60, should_stop=lambda: len(first.runner.ran) >= after)
    second = Bench()
    tuned = second.tune(60, past=records(first.results))
    together = first.results + second.results
    assert len(together) <= 60
    assert len(set(identities(together))) == len(together)
    assert tuned.summary.trials == len(together)
    for key, attempts in itertools.groupby(sorted(identities(together)), key=lambda row: row[:2]):
        result = [attempt for *_, attempt in attempts]
        assert result == list(range(len(result))), key


def test_the_default_is_completed_by_the_worker_that_takes_the_search_over() -> None:
    first = Bench()
    with pytest.raises(Cancelled):
        first.tune(60, should_stop=lambda: len(first.runner.ran) >= 1)
    past, second = first.results[:1], Bench()
    tuned = second.tune(60, past=records(past))
    theory = [result for result in past + second.results if result.is_theory]
    assert {result.instance for result in theory} == set(TASK.instances)
    assert {result.round for result in theory} == {0, 1}
    assert known(tuned.summary.speedup_vs_default) >= 1


def test_the_default_of_records_without_its_phase_is_not_measured_again() -> None:
    first = Bench()
    with pytest.raises(Cancelled):
        first.tune(60, should_stop=lambda: len(first.runner.ran) >= 40)
    old = [replace(r, phase=Phase.SEARCH) if r.phase is Phase.THEORY else r for r in first.results]
    assert old != first.results
    second = Bench()
    second.tune(60, past=records(old))
    assert not any(result.is_theory for result in second.results)


def test_records_that_fill_the_budget_leave_only_the_build() -> None:
    first = Bench()
    first.tune(24)
    second = Bench()
    tuned = second.tune(len(first.results), past=records(first.results))
    assert second.runner.ran == []
    assert tuned.summary.trials == len(first.results)


def test_a_lost_device_ends_the_search_with_its_results_recorded() -> None:
    bench = Bench()
    run = bench.runner.run

    def lost(task: SearchTask, requests: Any, interrupted: Any = None) -> list[MeasureResult]:
        if len(bench.runner.ran) > 10:
            raise DeviceLost("gone")
        return run(task, requests)

    bench.runner.run = lost  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        bench.tune(200)
    assert len(bench.results) == len(bench.runner.ran) > 10


# -- failures ---------------------------------------------------------------------------------------------------------
def test_kernels_that_fail_are_recorded_and_never_chosen() -> None:
    bench = Bench()
    bench.builder.broken = lambda kernel: kernel["ku"] == 2
    bench.runner.crashes = lambda kernel: kernel["tail"] == 1
    tuned = bench.tune(80)
    failed = [result for result in bench.results if not result.ok]
    assert failed
    assert all(result.error for result in failed)
    assert tuned.summary.failed == len(failed)
    for kernel in Dispatcher.from_json(tuned.dispatch).kernels:
        assert kernel["ku"] != 2
        assert kernel["tail"] == 0


def test_a_kernel_that_fails_verification_is_excluded_and_the_rest_chosen_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    rejected: list[MicroKernel] = []

    def wrong(dims: Mapping[str, int]) -> str | None:
        if len(chosen) == 1 and dims["m"] == 61:
            return "3 of 96 elements are wrong, at m=61"
        return None

    bench.runner.wrong = wrong
    chosen: list[list[MicroKernel]] = []

    def spy(task: SearchTask, kernels: Sequence[MicroKernel], tree: Tree) -> tuple[Any, Tree]:
        chosen.append(list(kernels))
        rejected.append(kernels[choose(tree, {"m": 61})])
        return kernels, tree

    monkeypatch.setattr(codegen, "module_of", spy)
    tuned = bench.tune(40)
    assert len(chosen) == 2
    assert rejected[0] in chosen[0]
    record = next(result for result in bench.results if result.kernel == rejected[0] and not result.ok)
    assert (record.error_kind, record.phase) == (ErrorKind.WRONG, Phase.FINAL)
    assert rejected[0] not in chosen[1]
    assert list(Dispatcher.from_json(tuned.dispatch).kernels) == chosen[1]
    assert any("at m=61" in event.data.get("message", "") for event in bench.recorder.events)


Compared = list[Dispatcher]


def in_turns(monkeypatch: pytest.MonkeyPatch, *answers: tuple[float, Callable[[int], float]]) -> Compared:
    """What is compared at the end. ``answers``, the last one again and again: the ratio to theory's kernels, and the
    time of the library over theirs by m."""
    compared: Compared = []

    def compare(context: object, trials: Trials, dispatcher: Dispatcher, binary: bytes) -> FinalComparison:
        ratio, over = answers[min(len(compared), len(answers) - 1)]
        compared.append(dispatcher)
        times = {}
        for instance in TASK.instances:
            default = trials.default_at(instance)
            assert default is not None
            seconds = latency_s(TASK, default, instance.shape)
            times[str(instance)] = {"library": over(instance.shape["T"]) * seconds, "default": seconds}
        return FinalComparison(1e-3, (within(DEFAULT, ratio, 0.03),), times, 15)

    monkeypatch.setattr("tuner.search.final_set.compare_at_the_end", compare)
    return compared


@pytest.mark.parametrize("ratio", [0.9, 0.985, 0.995], ids=["slower", "within noise", "equal"])
def test_a_library_that_is_slower_than_theorys_kernels_gives_way_to_them(
    monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    """Readings of the search said otherwise; turns decide."""
    compared = in_turns(monkeypatch, (ratio, lambda m: 2.0), (1.0, lambda m: 1.0))
    bench = Bench()
    kernels = set(Dispatcher.from_json(bench.tune(60).dispatch).kernels)
    theory = {result.kernel for result in bench.results if result.phase is Phase.THEORY}
    is_slower = ratio < 0.99
    assert len(compared) == 1 + is_slower
    assert not set(compared[0].kernels) <= theory
    assert kernels == set(compared[-1].kernels)
    assert (kernels <= theory) is is_slower
    said = [str(event.data.get("message")) for event in bench.recorder.events]
    assert any("chosen of its kernels and theory's" in message for message in said) is is_slower


def test_kernels_of_a_slower_library_are_kept_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = in_turns(monkeypatch, (0.9, lambda m: 0.5 if m == 128 else 2.0), (1.0, lambda m: 1.0))
    bench = Bench()
    bench.tune(60)
    first, last = compared
    theory = {result.kernel for result in bench.results if result.phase is Phase.THEORY}
    assert last.kernel_for({"T": 128}) == first.kernel_for({"T": 128})
    others = [last.kernel_for(each.shape) for each in TASK.instances if each.shape["T"] != 128]
    assert set(others) <= theory


def test_where_both_together_are_slower_theorys_kernels_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = in_turns(monkeypatch, (0.9, lambda m: 0.5 if m == 128 else 2.0))
    bench = Bench()
    kernels = set(Dispatcher.from_json(bench.tune(60).dispatch).kernels)
    assert len(compared) == 3
    assert kernels <= {result.kernel for result in bench.results if result.phase is Phase.THEORY}
    said = [str(event.data.get("message")) for event in bench.recorder.events]
    assert any("chosen of theory's alone" in message for message in said)


def test_when_every_library_is_wrong_the_search_fails_and_says_so() -> None:
    bench = Bench()
    bench.runner.wrong = lambda dims: "wrong" if dims["m"] == 128 else None
    with pytest.raises(VerificationFailed, match=r"sets of kernels .* wrong"):
        bench.tune(60)
    assert len(bench.results) > 0


def test_when_every_kernel_fails_the_search_fails_within_its_budget() -> None:
    bench = Bench()
    bench.runner.crashes = lambda kernel: True
    bench.runner.wrong = lambda dims: "the device's process died"
    with pytest.raises(VerificationFailed, match=r"dense.* failed"):
        bench.tune(30)
    assert len(bench.results) <= 30
    assert not any(result.ok for result in bench.results)


def test_a_machine_that_can_build_nothing_leaves_the_search_to_another_attempt() -> None:
    """Its kernels are not to blame, and were tried again."""
    bench = Bench()
    build = bench.builder._build

    def full(kernel: MicroKernel) -> BuildResult:
        return replace(build(kernel), binary=None, error_kind=ErrorKind.MACHINE, error="no space left")

    bench.builder._build = full  # type: ignore[method-assign]
    with pytest.raises(BuilderLost, match=r"no library .* can be built .* no space left"):
        bench.tune(30)
    assert {result.error_kind for result in bench.results} == {ErrorKind.MACHINE}
    assert len(bench.builder.built) > len(set(bench.builder.built))


def test_when_theory_fails_the_search_goes_on_to_what_works() -> None:
    bench = Bench()
    bench.runner.crashes = lambda kernel: kernel in bench.builder.built[:4]
    tuned = bench.tune(80)
    crashed = set(bench.builder.built[:4])
    assert not any(result.ok for result in bench.results if result.kernel in crashed)
    assert crashed.isdisjoint(Dispatcher.from_json(tuned.dispatch).kernels)


def test_the_verified_shapes_are_inside_the_range_and_beyond() -> None:
    bench = Bench()
    bench.tune(0)
    rows = [dims["m"] for shapes in bench.runner.verified for dims in shapes]
    assert len(set(rows)) == len(rows)
    assert {0, 1, 2, 7, 24, 61, 128, 129} <= set(rows)
    assert len(rows) > 25


@pytest.mark.parametrize("policy", ["unheard-of", ""])
def test_a_policy_that_is_not_known_is_refused(policy: str) -> None:
    with pytest.raises(InvalidInput, match="evolutionary, random") as refused:
        Bench().tune(1, policy=policy)
    assert refused.value.field == "policy"


@pytest.mark.parametrize("policy", every(3, POLICIES))
def test_every_policy_gives_a_library_that_is_no_slower_than_the_default(policy: str) -> None:
    bench = Bench()
    tuned = bench.tune(60, policy=policy)
    assert len(bench.results) <= 60
    assert known(tuned.summary.library_objective_s) <= known(tuned.summary.default_objective_s)


def test_a_workload_that_no_rule_takes_is_refused() -> None:
    task = TASK.on(replace(TASK.known_target, kind="metal"))
    with pytest.raises(InvalidInput, match="no schedule rule takes"):
        Bench().tune(1, task=task)


# -- what it tells ----------------------------------------------------------------------------------------------------
def _never_falls(values: list[Any], by: Callable[[Any, Any], bool] = lambda one, other: one <= other) -> bool:
    return all(by(one, other) for one, other in itertools.pairwise(values))


def test_events_and_summaries_only_ever_grow() -> None:
    bench = Bench(build_s=0.1, run_s=0.1)
    tuned = bench.tune(60)
    summaries = [*bench.recorder.summaries, tuned.summary]
    for name in ("trials", "failed", "elapsed_s"):
        assert _never_falls([getattr(summary, name) for summary in summaries]), name
    trials = [event.data for event in bench.recorder.events if event.kind == "trials"]
    assert sum(data["count"] for data in trials) == len(bench.results)
    assert sum(data["failed"] for data in trials) == sum(not result.ok for result in bench.results)
    phases = [summary.phase for summary in summaries]
    order = [phase for phase, _ in itertools.groupby(phases)]
    assert order == ["plan", "theory", "search", "select", "build", "verify", "compare", "done"]
    speedups = [summary.speedup_vs_default for summary in summaries if summary.phase == "search"]
    assert all(speedup is not None and speedup >= 1 for speedup in speedups)
    assert _never_falls(speedups, lambda one, other: one <= other + 1e-9)
    json.dumps([summary.to_json() for summary in summaries], allow_nan=False)


def test_results_carry_what_was_expected_and_when() -> None:
    bench = Bench()
    bench.tune(60)
    assert all(result.predicted_s and result.predicted_s > 0 for result in bench.results)
    assert _never_falls([result.round for result in bench.results])
    search = [result for result in bench.results if result.phase is not Phase.FINAL]
    assert {result.attempt for result in search} <= set(range(FASTEST_READINGS))
    assert any(result.attempt == 1 for result in bench.results if result.phase is Phase.FINAL)
    assert len(bench.builder.built) == len(set(bench.builder.built))


def test_on_several_devices_no_reading_is_taken_for_another() -> None:
    bench = Bench()
    bench.runner.devices = 4
    tuned = bench.tune(trials=60)
    named = Counter((result.kernel, result.instance.values, result.attempt) for result in bench.results)
    assert set(named.values()) == {1}
    assert len(bench.results) <= 60
    assert tuned.summary.trials == len(bench.results)
