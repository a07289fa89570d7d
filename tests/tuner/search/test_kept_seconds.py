"""A search keeps its seconds whatever its parts take, verifies what it hands out, and says how far it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from tests import searching
from tests.fakes import TASK
from tests.searching import known, make_quick, records
from tests.shares import diagonal
from tuner.library.dispatcher import Dispatcher
from tuner.program.job.budget_plan import verify_work
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.records import ErrorKind, Phase
from tuner.search.forecast import SAMPLE_WORK, Forecast
from tuner.search.tuning import Tuned
from tuner.search.verification import verified_at

Bench = partial(searching.Bench, code=b"object")
LATE_S = 3.0
LATE_SHARE = 0.05
LARGEST = TASK.workload.work({"m": 128})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def served(tuned: Tuned) -> Dispatcher:
    return Dispatcher.from_json(tuned.dispatch)


def verified(bench: searching.Bench) -> list[int]:
    return [point["m"] for dims in bench.runner.verified for point in dims]


def assert_verified(bench: searching.Bench, tuned: Tuned) -> None:
    """The floor was verified, of this very library."""
    floor = {dims["m"] for dims in verified_at(served(tuned)).floor}
    assert floor <= set(verified(bench))


# (build, link, run, verify at the largest shape) in seconds
SPEEDS = {
    "quick": (0.1, 0.3, 0.05, 0.05),
    "slow to verify": (0.3, 1.0, 0.1, 1.0),
    "slow to build": (1.5, 2.0, 0.3, 0.3),
    "slow to run and verify": (0.2, 0.3, 1.0, 3.0),
}


@pytest.mark.parametrize(("speeds", "seconds"), diagonal(SPEEDS, [15, 60], every=4))
def test_a_search_keeps_its_seconds(speeds: str, seconds: int) -> None:
    build_s, link_s, run_s, verify_s = SPEEDS[speeds]
    bench = Bench(build_s, run_s)
    bench.builder.link_s, bench.runner.verify_rate = link_s, LARGEST / verify_s
    began_s = bench.clock()
    tuned = bench.tune(seconds=seconds)
    assert bench.clock() - began_s <= seconds + max(LATE_S, LATE_SHARE * seconds)
    assert tuned.summary.trials > 0
    assert_verified(bench, tuned)


def test_a_search_on_a_machine_that_becomes_busy_keeps_its_seconds() -> None:
    bench = Bench(0.2, 0.1)
    bench.runner.verify_rate = LARGEST / 0.5

    def twice_as_slow(build: Callable[..., object]) -> Callable[..., object]:
        def slow(*args: object) -> object:
            began_s = bench.clock()
            result = build(*args)
            if began_s > 1020:
                bench.clock.now_s += bench.clock() - began_s
            return result

        return slow

    for part, names in ((bench.builder, ("build", "library")), (bench.runner, ("run", "verify"))):
        for name in names:
            setattr(part, name, twice_as_slow(getattr(part, name)))
    began_s = bench.clock()
    tuned = bench.tune(seconds=60)
    assert bench.clock() - began_s <= 66
    assert_verified(bench, tuned)


def test_what_each_shape_adds_to_a_verification_is_not_taken_for_work() -> None:
    """Sending and loading the library takes ten times as long as what a small shape computes."""
    shape_s, largest_s = 0.1, 0.5
    forecast = Forecast(TASK, cast(Any, None), cast(Any, None))
    work = TASK.workload.work
    for size in (1, 16):
        forecast.verified([{"m": size}], shape_s + largest_s * work({"m": size}) / LARGEST)
    assert forecast.verify_s([{"m": 128}]) == pytest.approx(shape_s + largest_s, rel=0.25)
    assert forecast.verify_s([{"m": 1}] * 10) == pytest.approx(10 * shape_s, rel=0.25)


def test_where_shapes_are_huge_the_rate_is_learned_from_the_sample() -> None:
    """One of SAMPLE_WORK operations is hundreds of times smaller than the largest."""
    rows, sample, most = ShapeVar("T", (1, 750, 2**17)), 750, 2**17
    task = SearchTask("dense", {"m": "T", "n": 1024, "k": 1024}, (rows,), target=TASK.target)
    forecast, rate = Forecast(task, cast(Any, None), cast(Any, None)), 2e10
    work = partial(verify_work, task.workload)
    assert 0.5 * SAMPLE_WORK < work({"m": sample}) <= SAMPLE_WORK < 0.05 * work({"m": most})
    for m in (1, sample):
        forecast.verified([{"m": m}], 0.1 + work({"m": m}) / rate)
    assert forecast.verify_s([{"m": most}]) == pytest.approx(0.1 + work({"m": most}) / rate, rel=0.25)


def test_a_default_that_is_wrong_is_verified_at_no_further_shape() -> None:
    """Before the trials, where the time of a verification is learned."""
    bench = Bench(0.1, 0.1)
    verify, asked = bench.runner.verify, list[str]()

    def wrong_at_first(task: Any, build: Any, dims: Any, *rest: Any) -> Any:
        asked.append(str(build.kernel))
        result = verify(task, build, dims, *rest)
        return [(dims[0], "1e9 off")] if len(asked) == 1 else result

    bench.runner.verify = wrong_at_first  # type: ignore[method-assign, assignment]
    bench.tune(seconds=15)
    assert asked[0] not in asked[1:]


def test_where_no_time_is_left_the_floor_is_verified_all_the_same() -> None:
    bench = Bench(0.1, 0.1)
    bench.runner.verify_rate = LARGEST / 0.2
    tuned = bench.tune(seconds=20, spent_s=19.9)
    assert_verified(bench, tuned)
    assert len(verified(bench)) < len(verified_at(served(tuned)).all)
    assert any("the seconds are over" in event.data.get("message", "") for event in bench.recorder.events)


def test_each_kernel_is_verified_at_a_shape_that_is_none_of_the_range() -> None:
    tuned = Bench().tune(60)
    dispatcher = served(tuned)
    floor = verified_at(dispatcher).floor
    by_kernel = {index: {d["m"] for d in floor if dispatcher.index_for(d) == index} for index in range(99)}
    for index in range(len(dispatcher.kernels)):
        assert by_kernel[index]
    largest = max(range(len(dispatcher.kernels)), key=lambda index: max(by_kernel[index], default=0))
    assert len(by_kernel[largest]) > 1


def test_a_library_for_which_there_is_no_time_is_of_fewer_kernels() -> None:
    whole, bench = Bench(), Bench(build_s=5.0)
    before = len(served(whole.tune(0)).kernels)
    assert before > 2
    began_s = bench.clock()
    tuned = bench.tune(trials=0, seconds=12)
    assert 1 <= len(served(tuned).kernels) <= 2
    assert bench.clock() - began_s <= 15
    assert_verified(bench, tuned)


def test_builds_that_take_longer_than_expected_end_with_what_is_built() -> None:
    """Nothing was built before, so nobody knows: the first one says."""
    bench = Bench(build_s=8.0)
    began_s = bench.clock()
    tuned = bench.tune(trials=0, seconds=10)
    assert len(bench.builder.built) == len(served(tuned).kernels) == 1
    assert bench.clock() - began_s <= 13


def test_a_library_is_linked_from_what_was_built_for_trials() -> None:
    bench = Bench()
    bench.tune(60)
    assert len(bench.builder.built) == len(set(bench.builder.built))
    assert bench.builder.built


def test_a_search_taken_up_again_builds_what_its_library_needs() -> None:
    first = Bench(build_s=0.1, run_s=0.1)
    first.tune(60)
    again = Bench(build_s=0.1, run_s=0.1)
    tuned = again.tune(60, past=records([r for r in first.results if r.phase is not Phase.FINAL]))
    assert set(served(tuned).kernels) <= set(again.builder.built)


def test_a_kernel_that_cannot_be_built_is_left_out_of_the_library() -> None:
    first = served(Bench().tune(0)).kernels[0]
    bench = Bench()
    bench.builder.broken = lambda kernel: kernel == first
    tuned = bench.tune(0)
    assert first not in served(tuned).kernels
    (result,) = [each for each in bench.results if not each.ok]
    assert (result.kernel, result.error_kind) == (first, ErrorKind.BUILD)


def test_a_cancelled_search_verifies_the_floor_within_its_time() -> None:
    bench = Bench(0.1, 0.1)
    bench.runner.verify_rate = LARGEST / 1.0
    asked = itertools.count()
    began: list[float] = []

    def should_finish() -> bool:
        if next(asked) > 60 and not began:
            began.append(bench.clock())
        return bool(began)

    tuned = bench.tune(1000, should_finish=should_finish)
    assert bench.clock() - began[0] <= 30
    assert_verified(bench, tuned)


# -- what is seen of it -----------------------------------------------------------------------------------------------
@pytest.mark.soak
def test_phases_move() -> None:
    bench = Bench(build_s=0.1, run_s=0.1)
    bench.runner.verify_rate = LARGEST / 0.5
    tuned = bench.tune(seconds=60)
    assert bench.recorder.summaries[0].activity == "planning"
    building = [each.activity for each in bench.recorder.progress("build")]
    count = known(tuned.summary.kernels)
    assert building[-1] == f"building {count} of {count}"
    verifying = [known(each.step) for each in bench.recorder.progress("verify")]
    assert verifying[0] == 0
    assert len(verifying) > 3
    assert verifying == sorted(set(verifying))
    timing = [(known(each.step), known(each.steps)) for each in bench.recorder.progress("select")]
    assert all(step <= steps for step, steps in timing)
    assert timing[0][0] < timing[-1][1]
    assert (tuned.summary.activity, tuned.summary.steps) == ("done", None)


def test_building_is_told_kernel_by_kernel() -> None:
    bench = Bench(build_s=1.0)
    count = int(known(bench.tune(0).summary.kernels))
    told = [each.activity for each in bench.recorder.progress("build")]
    assert told == [f"building {done} of {count}" for done in range(count + 1)]


def test_the_time_of_a_verification_is_learned_before_the_end() -> None:
    bench = Bench(build_s=0.1, run_s=0.1)
    bench.runner.verify_rate = LARGEST / 1.0
    bench.tune(seconds=20)
    first, *_ = bench.runner.verified
    assert len(first) == 1
    assert TASK.workload.work(first[0]) <= LARGEST
    unlimited = Bench()
    unlimited.tune(4)
    assert len(unlimited.runner.verified[0]) > 1


@pytest.mark.soak
def test_a_wrong_default_is_found_out_before_the_end() -> None:
    bench = Bench(build_s=0.1, run_s=0.1)
    bench.runner.wrong = lambda dims: "wrong" if len(bench.runner.verified) == 1 else None
    tuned = bench.tune(seconds=30)
    wrong = [each for each in bench.results if each.error_kind is ErrorKind.WRONG]
    assert len(wrong) == 1
    assert wrong[0].kernel not in served(tuned).kernels


# -- shapes that are slow to verify -----------------------------------------------------------------------------------
def test_large_weights_are_forecast_before_anything_was_verified() -> None:
    """A few rows of them are a few operations, and gigabytes that are drawn, packed and compared."""
    rows = ShapeVar("T", range(1, 65))
    large = SearchTask("dense", {"m": rows, "n": 8192, "k": 8192}, (rows,), target=TASK.target)
    small = SearchTask("dense", {"m": rows, "n": 256, "k": 256}, (rows,), target=TASK.target)
    forecasts = [Forecast(task, cast(Any, None), cast(Any, None)) for task in (large, small)]
    assert forecasts[0].verify_s([{"m": 1}]) > 1.0 > 10 * forecasts[1].verify_s([{"m": 1}])


@pytest.mark.parametrize("trials", [None, 0])
def test_a_floor_that_takes_long_is_verified_as_far_as_the_seconds_go(trials: int | None) -> None:
    """Each shape takes seconds, however small it is; what was not timed is verified once all the same."""
    bench, shape_s, seconds = Bench(0.1, 0.1), 4.0, 20.0
    verify = bench.runner.verify

    def slow(task: Any, build: Any, dims: Any, *rest: Any) -> Any:
        bench.clock.now_s += shape_s * len(dims)
        return verify(task, build, dims, *rest)

    bench.runner.verify = slow  # type: ignore[method-assign, assignment]
    began_s = bench.clock()
    tuned = bench.tune(trials, seconds)
    assert bench.clock() - began_s <= 1.1 * seconds + shape_s
    dispatcher = served(tuned)
    at = verified_at(dispatcher, set() if trials == 0 else set(dispatcher.kernels))
    # The tree may do without a kernel of the set.
    wanted = {row.kernel for row in dispatcher.table} if trials == 0 else set()
    assert at.least == len(wanted)
    done = bench.runner.verified if trials == 0 else bench.runner.verified[2:]
    assert {dispatcher.index_for(dims) for each in done for dims in each} >= wanted
    count = sum(map(len, done))
    assert count < len(at.floor)
    said = [event.data.get("message", "") for event in bench.recorder.events]
    assert f"verified at {count} of {len(at.all)} shapes: the seconds are over" in said


def test_of_the_floor_the_smallest_shape_of_each_kernel_comes_first_and_then_the_least_work() -> None:
    dispatcher = served(Bench().tune(60))
    fresh, known = verified_at(dispatcher), verified_at(dispatcher, dispatcher.kernels)
    assert (fresh.least, known.least) == (len(dispatcher.kernels), 0)
    assert {dispatcher.index_for(dims) for dims in fresh.floor[: fresh.least]} == set(range(fresh.least))
    assert sorted(map(str, fresh.floor)) == sorted(map(str, known.floor))
    works = [TASK.workload.work(dims) for dims in known.floor]
    assert works == sorted(works)
