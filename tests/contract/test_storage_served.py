"""What every Storage promises about which library is served. Runs on each database."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.samples import job_spec, leased, many_tasks
from tests.contract.served_samples import Saved, found_wrong, new_library, served, symbols, won
from tuner.errors import InvalidInput
from tuner.library.choice import NOISE, covers
from tuner.library.dispatcher import Dispatcher
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import Target
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.storage import AliasQuery, Comparison, Conflict, Lease, LeaseLost, LibraryQuery, NotFound, PromotionOrder
from tuner.storage.sql import Storage

OTHER = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 4})
# Each example uses a workload of its own, so that the database may stay.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
_workloads = itertools.count(1)


# -- soundness --------------------------------------------------------------------------------------------------------
def test_a_library_with_a_kernel_that_is_found_wrong_is_withdrawn(storage: Storage) -> None:
    old = new_library(storage, measured_s={1: 2e-3, 128: 2e-3})
    new = new_library(storage, measured_s={1: 1e-3, 128: 1e-3}, comparison=won(old))
    kept = new_library(storage, measured_s={1: 5e-4, 128: 5e-4}, comparison=won(new, ratio=0.9))
    assert served(storage, new) == new.digest

    kernel = found_wrong(storage, new)

    # What the wrong one replaced, and what it was wrongly preferred to, are served again.
    assert served(storage, new) == kept.digest
    assert storage.served(LibraryQuery(new.key, digest=new.digest)).library.wrong_kernel == kernel
    found_wrong(storage, kept)
    assert served(storage, new) == old.digest
    listed = {row.digest: row.wrong_kernel is not None for row in storage.list_libraries(LibraryQuery(new.key)).items}
    assert listed == {old.digest: False, new.digest: True, kept.digest: True}

    found_wrong(storage, old)
    with pytest.raises(NotFound, match=r"was withdrawn: its kernel \w+ was found wrong"):
        storage.serve(LibraryQuery(new.key))
    with pytest.raises(Conflict, match="was withdrawn"):
        storage.promote(AliasQuery(new.key, "production"), new.digest, PromotionOrder("ada"))


def test_what_replaced_the_best_is_served_though_it_was_hardly_measured_itself(storage: Storage) -> None:
    best = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    other = new_library(storage, measured_s={1: 2e-3, 128: 2e-3})
    better = new_library(storage, predicted_s={1: 9e-4, 128: 9e-4}, comparison=won(best))

    assert served(storage, best) == better.digest
    assert served(storage, other, 1, 64, 1) == better.digest


# -- coverage ---------------------------------------------------------------------------------------------------------
def test_what_is_served_covers_the_range_that_is_asked_for(storage: Storage) -> None:
    wide = new_library(storage, 1, 128, measured_s={1: 2e-3, 16: 2e-3})
    small = new_library(storage, 1, 16, measured_s={1: 1e-3, 16: 1e-3})

    assert served(storage, wide, 1, 16) == small.digest
    assert served(storage, wide, 1, 17) == wide.digest
    with pytest.raises(NotFound, match=r"covers m=16\.\.2064:16; covered: m=16\.\.256:16, m=16\.\.2048:16"):
        served(storage, wide, 1, 129)


def test_steps_cover_themselves_and_coarser_ones_and_every_size_covers_steps(storage: Storage) -> None:
    ends: dict[str, Any] = {"instances": [{"T": 8}, {"T": 128}]}
    stepped = new_library(storage, shape_vars={"T": {"min": 8, "max": 128, "step": 8}}, measured_s={8: 1e-3}, **ends)
    asked = {"every": range(128, 2049, 16), "own": range(128, 2049, 128), "coarser": range(256, 2049, 256)}
    with pytest.raises(NotFound, match=r"covers m=128\.\.2048:16; covered: m=128\.\.2048:128"):
        storage.serve(LibraryQuery(stepped.key, ranges={"m": asked["every"]}))

    every = new_library(storage, 1, 128, measured_s={8: 2e-3})
    found = {name: storage.serve(LibraryQuery(every.key, ranges={"m": span})).digest for name, span in asked.items()}

    assert found == {"every": every.digest, "own": stepped.digest, "coarser": stepped.digest}
    assert storage.serve(LibraryQuery(every.key, ranges={"m": (130, 2047)})).digest == stepped.digest, "ends alone"
    assert served(storage, every) == every.digest, "the widest"
    powers = {"T": {"min": 8, "max": 128, "powers_of": 2}}
    listed = new_library(storage, measured_s={8: 5e-4}, comparison=won(stepped), shape_vars=powers, **ends)
    assert storage.serve(LibraryQuery(every.key, ranges={"m": asked["own"]})).digest == stepped.digest
    assert storage.serve(LibraryQuery(every.key, ranges=listed.ranges)).digest == listed.digest


def test_without_a_range_it_is_the_best_of_the_widest(storage: Storage) -> None:
    small = new_library(storage, 1, 16, measured_s={1: 1e-3, 16: 1e-3})
    new_library(storage, 1, 128, measured_s={1: 3e-3, 128: 3e-3})
    better = new_library(storage, 1, 128, measured_s={1: 2e-3, 128: 2e-3})

    assert served(storage, small) == better.digest


def test_ranges_of_other_symbols_are_refused(storage: Storage) -> None:
    saved = new_library(storage)

    with pytest.raises(InvalidInput, match="symbols are m") as caught:
        storage.serve(LibraryQuery(saved.key, ranges={"n": (1, 2)}))
    assert caught.value.field == "range"


def test_threads_and_targets_are_never_crossed(storage: Storage) -> None:
    one = new_library(storage)
    four = new_library(storage, threads=4)

    assert served(storage, one) == one.digest
    assert storage.serve(LibraryQuery(one.key, threads=4)).digest == four.digest
    with pytest.raises(NotFound, match=r"with 2 threads: 1 thread: m=16\.\.2048:16; 4 threads: m=16"):
        storage.serve(LibraryQuery(one.key, threads=2))
    elsewhere = new_library(storage, threads=2, target=OTHER.to_json())
    assert storage.serve(LibraryQuery(one.key)).digest == elsewhere.digest, "of the newest target the only number"
    assert storage.serve(LibraryQuery(one.key, one.target)).digest == one.digest
    assert storage.incumbent(one.key, OTHER.fingerprint, 1, one.ranges) is None


def test_a_workload_of_fixed_sizes_has_libraries_too(storage: Storage) -> None:
    held = leased(storage, many_tasks())
    spec = job_spec(workload={"op": "dense", "args": {"m": 5, "n": 8, "k": 8}}, shape_vars={}, instances=[{}])
    storage.release_job(held)
    storage.request_cancel(held.job.id)
    fixed = leased(storage, spec)
    row = fixed.tasks[0]
    storage.save_library(fixed, row.id, {"library.so": b"so"}, {"digest": "a"}, {})

    result = storage.served(LibraryQuery(row.workload_key))

    assert (result.library.digest, result.ranges, result.expected_s, result.alternatives) == ("a", {}, None, ())


# -- by what is measured ----------------------------------------------------------------------------------------------
def test_the_best_is_decided_at_the_callers_instances(storage: Storage) -> None:
    first = new_library(storage, measured_s={1: 1e-3, 64: 9e-3, 128: 9e-3})
    second = new_library(storage, measured_s={1: 2e-3, 64: 7e-3, 128: 7e-3})

    assert served(storage, first, 1, 128, 1) == first.digest
    assert served(storage, first, 1, 128, 64, 128) == second.digest
    assert served(storage, first, 1, 128) == second.digest, "at the instances of the searches"


def test_a_difference_within_noise_leaves_the_older_one(storage: Storage) -> None:
    first = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    new_library(storage, measured_s={1: 0.99e-3, 128: 0.99e-3})

    assert served(storage, first) == first.digest


def test_readings_are_compared_at_one_speed_and_by_their_median(storage: Storage) -> None:
    """The second library's kernel seems faster only because the device was faster then, and by one lucky reading."""
    first = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    second = new_library(storage, measured_s={1: 2e-3, 128: 2e-3})
    held = leased(storage)
    (its,) = Dispatcher.from_json(storage.serve(LibraryQuery(first.key, digest=second.digest)).dispatch).kernels
    _append(storage, held, its, {1: (0.8e-3, 0.5e-6), 128: (0.8e-3, 0.5e-6)}, attempt=0)
    _append(storage, held, its, {1: (1e-6, 1e-6), 128: (2e-3, 1e-6)}, attempt=1)

    result = storage.served(LibraryQuery(first.key))

    assert result.library.digest == first.digest
    assert (result.points, result.measured) == (2, 2)
    assert result.expected_s == pytest.approx(1e-3)
    (other,) = result.alternatives
    assert (other.library.digest, other.timed_in_turns) == (second.digest, False)
    assert other.ratio == pytest.approx(1.8)


def _append(
    storage: Storage, held: Lease, kernel: MicroKernel, times: dict[int, tuple[float, float]], attempt: int
) -> None:
    """Readings by T: the latency, and what the anchor took then."""
    results = [
        MeasureResult(kernel, WorkloadInstance.of({"T": t}), latency_s=latency_s, anchor_s=anchor_s, attempt=attempt)
        for t, (latency_s, anchor_s) in times.items()
    ]
    storage.append_results(held, held.tasks[0].id, results)


def test_where_nothing_was_measured_the_tables_predict(storage: Storage) -> None:
    new_library(storage, predicted_s={1: 2e-3, 128: 2e-3})
    better = new_library(storage, predicted_s={1: 1e-3, 128: 1e-3})

    result = storage.served(LibraryQuery(better.key))

    assert (result.library.digest, result.measured) == (better.digest, 0)
    assert result.expected_s == pytest.approx(1e-3)


def test_a_hopeful_prediction_gains_nothing_over_a_measurement(storage: Storage) -> None:
    """A quick try: one instance measured, no better there; the rest is what its untrained model believes."""
    good = new_library(storage, measured_s={1: 1e-3, 128: 5e-3})
    new_library(storage, measured_s={1: 1.1e-3}, predicted_s={1: 1e-4, 128: 1e-4})

    assert served(storage, good) == good.digest


def test_what_cannot_be_compared_leaves_the_older_one(storage: Storage) -> None:
    first = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    other = new_library(storage, predicted_s={1: 1e-6, 128: 1e-6}, manifest={"protocol": "v0"})

    result = storage.served(LibraryQuery(first.key))

    assert result.library.digest == first.digest
    assert [(each.library.digest, each.ratio) for each in result.alternatives] == [(other.digest, None)]


def test_a_table_that_cannot_be_read_does_no_harm(storage: Storage) -> None:
    saved = new_library(storage)
    held = leased(storage)
    storage.save_library(held, held.tasks[0].id, {"library.so": b""}, {"digest": "odd"}, {"format": 7})

    assert served(storage, saved) == saved.digest
    assert storage.serve(LibraryQuery(saved.key, digest="odd")).digest == "odd"


# -- replacing --------------------------------------------------------------------------------------------------------
def test_a_library_that_covers_as_much_and_wins_replaces_the_other(storage: Storage) -> None:
    old = new_library(storage, 1, 64, measured_s={1: 1e-3, 64: 1e-3})
    new = new_library(storage, 1, 128, comparison=won(old))

    assert served(storage, old, 1, 64) == new.digest
    rows = {row.digest: row for row in storage.list_libraries(LibraryQuery(old.key)).items}
    assert (rows[old.digest].superseded_by, rows[new.digest].superseded_by) == (new.digest, None)
    assert rows[new.digest].comparison == {
        "against": old.digest,
        "ratio": 1.2,
        "noise": 0.02,
        "verified": True,
        "verdict": "replaces",
    }
    assert served(storage, old) == new.digest
    assert storage.serve(LibraryQuery(old.key, job_id=old.job_id)).digest == old.digest
    (other,) = storage.served(LibraryQuery(old.key, ranges=old.ranges)).alternatives
    assert (other.library.digest, other.ratio, other.timed_in_turns) == (old.digest, 1.2, True)


@pytest.mark.parametrize(
    "lost",
    [
        {"ratio": 0.9},
        {"ratio": 1.01},
        {"verified": False},
        {"ratio": math.nan},
        {"ratio": math.inf},
        {"noise": -5.0},
        {"noise": math.nan},
    ],
)
def test_one_that_does_not_win_is_kept_and_reached_by_job_or_digest(storage: Storage, lost: dict[str, float]) -> None:
    old = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    # However fast its recorded latencies are.
    new = new_library(storage, 1, 64, measured_s={1: 1e-6, 64: 1e-6}, comparison=won(old, **lost))

    assert served(storage, old, 1, 64) == old.digest
    for query in (LibraryQuery(old.key, job_id=new.job_id), LibraryQuery(old.key, digest=new.digest)):
        assert storage.serve(query).digest == new.digest
    (row, _) = storage.list_libraries(LibraryQuery(old.key)).items
    assert (row.digest, row.superseded_by) == (new.digest, old.digest)
    assert row.comparison is not None and row.comparison["verdict"] == "kept"


def test_one_that_wins_but_covers_less_is_served_for_what_it_covers(storage: Storage) -> None:
    wide = new_library(storage, measured_s={1: 1e-3, 16: 1e-3, 128: 9e-3})
    small = new_library(storage, 1, 16, measured_s={1: 9e-3, 16: 9e-3}, comparison=won(wide))

    assert served(storage, wide, 1, 16) == small.digest, "what was timed in turns outweighs what is recorded"
    assert served(storage, wide, 1, 128) == wide.digest


def test_one_that_loses_but_covers_more_is_served_for_the_rest(storage: Storage) -> None:
    small = new_library(storage, 1, 16, measured_s={1: 1e-3, 16: 1e-3})
    wide = new_library(storage, 1, 128, measured_s={1: 1e-6, 16: 1e-6}, comparison=won(small, ratio=0.8))

    assert served(storage, small, 1, 16) == small.digest
    assert served(storage, small, 1, 128) == wide.digest


def test_of_two_that_beat_the_same_library_neither_replaces_the_other(storage: Storage) -> None:
    old = new_library(storage)
    first = new_library(storage, comparison=won(old, ratio=1.5), measured_s={1: 1e-3, 128: 1e-3})
    second = new_library(storage, comparison=won(old, ratio=1.6), measured_s={1: 2e-3, 128: 2e-3})

    rows = {row.digest: row for row in storage.list_libraries(LibraryQuery(old.key)).items}

    assert [rows[each.digest].superseded_by for each in (old, first, second)] == [first.digest, None, None]
    assert served(storage, old) == first.digest


def test_a_comparison_with_what_is_not_there_decides_nothing(storage: Storage) -> None:
    old = new_library(storage, measured_s={1: 1e-3, 128: 1e-3})
    elsewhere = new_library(storage, k=128)
    for against in ("0" * 64, elsewhere.digest):
        new = new_library(storage, comparison=Comparison(against, 9.0, 0.01, True), measured_s={1: 2e-3, 128: 2e-3})
        assert served(storage, old) == old.digest
        assert storage.serve(LibraryQuery(old.key, digest=new.digest)).digest == new.digest


def test_a_library_sent_twice_is_compared_once(storage: Storage) -> None:
    old = new_library(storage)
    held = leased(storage)
    task = held.tasks[0]
    for comparison in (won(old), won(old, ratio=0.5)):
        storage.save_library(held, task.id, {"library.so": b"x"}, {"digest": "n"}, {}, comparison=comparison)

    assert served(storage, old) == "n"
    (event,) = [event for event in storage.list_events(held.job.id) if event.kind == "library"]
    assert event.data["comparison"]["verdict"] == "replaces"


def test_the_library_of_a_cancelled_search_leaves_its_task_open(storage: Storage) -> None:
    held = leased(storage)
    for digest, done in (("a", False), ("b", True)):
        storage.save_library(held, held.tasks[0].id, {"library.so": b"x"}, {"digest": digest}, {}, done=done)
        assert storage.search_tasks(held.job.id)[0].done is done
    assert [row.digest for _, row in storage.libraries_of_job(held.job.id)] == ["b"]


def test_a_lost_lease_replaces_nothing(storage: Storage) -> None:
    old = new_library(storage)
    held = leased(storage)
    storage.release_job(held)

    with pytest.raises(LeaseLost):
        storage.save_library(held, held.tasks[0].id, {"a": b"x"}, {"digest": "n"}, {}, comparison=won(old))

    assert served(storage, old) == old.digest


def test_the_incumbent_is_what_is_served_for_these_ranges(storage: Storage) -> None:
    old = new_library(storage, 1, 64)

    result = storage.incumbent(old.key, old.target, 1, symbols(2, 60))

    assert result == storage.latest_artifact(old.key)
    assert storage.incumbent(old.key, old.target, 1, symbols(1, 65)) is None
    assert storage.incumbent(old.key, old.target, 2, symbols(1, 64)) is None
    assert storage.incumbent("wl-none", old.target, 1, {}) is None


# -- lists ------------------------------------------------------------------------------------------------------------
def test_libraries_are_listed_in_pages_newest_first(storage: Storage) -> None:
    made = [new_library(storage, threads=1 + number % 2) for number in range(5)]
    query = LibraryQuery(made[0].key)

    first = storage.list_libraries(query, limit=3)
    rest = storage.list_libraries(query, first.cursor, limit=3)

    assert [row.digest for row in (*first.items, *rest.items)] == [each.digest for each in reversed(made)]
    assert rest.cursor is None
    assert len(storage.list_libraries(LibraryQuery(made[0].key, threads=2)).items) == 2
    row = first.items[0]
    assert (row.ranges, row.protocol, row.job_id) == ({"m": range(16, 2049, 16)}, "v3", made[-1].job_id)
    with pytest.raises(NotFound, match="no workload"):
        storage.list_libraries(LibraryQuery("wl-none"))


def test_the_libraries_of_a_job_come_with_their_positions(storage: Storage) -> None:
    held = leased(storage, many_tasks())
    for position, digest in ((2, "c"), (0, "a")):
        task = held.tasks[position]
        storage.save_library(held, task.id, {"library.so": b""}, {"digest": digest}, {})

    result = storage.libraries_of_job(held.job.id)

    assert [(position, row.digest) for position, row in result] == [(0, "a"), (2, "c")]
    with pytest.raises(NotFound, match="job-none"):
        storage.libraries_of_job("job-none")


# -- whatever happens -------------------------------------------------------------------------------------------------
T = st.integers(1, 6)
RANGES = st.tuples(T, T).map(lambda ends: (min(ends), max(ends)))
LATENCIES = st.lists(st.floats(1e-6, 1e-2), min_size=6, max_size=6)


@SHARED
@given(
    st.lists(st.tuples(RANGES, LATENCIES), min_size=1, max_size=5),
    RANGES,
    st.lists(T, min_size=1, max_size=4, unique=True),
)
def test_the_best_of_those_that_cover_is_served(
    storage: Storage, made: list[tuple[tuple[int, int], list[float]]], asked: tuple[int, int], at: list[int]
) -> None:
    k = next(_workloads)
    saved = [
        new_library(storage, *ends, k=k, measured_s={t: times[t - 1] for t in range(ends[0], ends[1] + 1)})
        for ends, times in made
    ]
    inside = [t for t in at if asked[0] <= t <= asked[1]] or [asked[0]]
    expected = {
        each.digest: sum(times[t - 1] for t in inside)
        for each, (ends, times) in zip(saved, made, strict=True)
        if ends[0] <= asked[0] and asked[1] <= ends[1]
    }
    if not expected:
        with pytest.raises(NotFound):
            served(storage, saved[0], *asked, *inside)
        return
    chosen = served(storage, saved[0], *asked, *inside)
    assert expected[chosen] <= min(expected.values()) * (1 + NOISE) * (1 + 1e-9)


@SHARED
@given(st.lists(st.tuples(RANGES, st.none() | st.floats(0.5, 2.0), st.booleans()), min_size=1, max_size=6))
def test_no_library_is_lost_and_no_range_is_uncovered(
    storage: Storage, steps: list[tuple[tuple[int, int], float | None, bool]]
) -> None:
    k = next(_workloads)
    saved: list[Saved] = []
    for ends, ratio, verified in steps:
        incumbent = storage.incumbent(saved[0].key, saved[0].target, 1, symbols(*ends)) if saved else None
        comparison = None
        if incumbent is not None and ratio is not None:
            comparison = Comparison(incumbent.digest, ratio, 0.02, verified)
        saved.append(new_library(storage, *ends, k=k, comparison=comparison))
        if incumbent is not None and comparison is not None and not comparison.wins:
            assert served(storage, saved[0], *ends) == incumbent.digest, "what does not win replaces nothing"
    for each, (ends, *_) in zip(saved, steps, strict=True):
        assert storage.serve(LibraryQuery(each.key, digest=each.digest)).job_id == each.job_id
        assert storage.serve(LibraryQuery(each.key, job_id=each.job_id)).digest == each.digest
        assert covers(storage.served(LibraryQuery(each.key, ranges=symbols(*ends))).library.ranges, symbols(*ends))
