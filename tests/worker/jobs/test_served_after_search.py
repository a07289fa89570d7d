"""Searches one after the other on the synthetic device, and what is served after each."""

from __future__ import annotations

import pytest

from tests.searched import searched
from tuner.program.job.range_text import Ranges
from tuner.storage import Job, JobState, LibraryQuery
from tuner.storage.sql import Storage

pytestmark = pytest.mark.usefixtures("local_device")


def digest_of(storage: Storage, job: Job) -> str:
    assert job.state is JobState.COMPLETED, job.error
    ((_, library),) = storage.libraries_of_job(job.id)
    return library.digest


def served(storage: Storage, job: Job, ranges: Ranges | None = None) -> str:
    return storage.serve(LibraryQuery(storage.search_tasks(job.id)[0].workload_key, ranges=ranges)).digest


def test_a_quick_try_does_not_replace_a_good_library(storage: Storage) -> None:
    good = searched(storage, budget={"trials": 60})

    quick = searched(storage, budget={"trials": 0})

    assert digest_of(storage, quick) != digest_of(storage, good)
    assert served(storage, good) == digest_of(storage, good)


def test_a_quick_try_that_starts_from_what_is_known_is_served_if_it_wins_in_turns(storage: Storage) -> None:
    good = searched(storage, budget={"trials": 60})
    searched(storage, budget={"trials": 0})

    quick = searched(storage, budget={"trials": 2}, seed=2)

    ((_, library),) = storage.libraries_of_job(quick.id)
    assert library.comparison is not None
    assert library.comparison["against"] == digest_of(storage, good), "not with theory's, which is newer"
    wins = library.comparison["verdict"] == "replaces"
    assert served(storage, good) == digest_of(storage, quick if wins else good)


def test_a_quick_try_for_a_wider_range_is_served_for_the_rest_alone(storage: Storage) -> None:
    good = searched(storage, budget={"trials": 60})
    ranges = {"shape_vars": {"T": {"min": 1, "max": 64}}, "instances": [{"T": 1}, {"T": 64}]}

    wide = searched(storage, budget={"trials": 2}, **ranges)

    assert served(storage, good, {"m": (8, 256)}) == digest_of(storage, good)
    assert served(storage, good, {"m": (8, 512)}) == digest_of(storage, wide)


def test_a_better_search_is_served_after_a_quick_try(storage: Storage) -> None:
    quick = searched(storage, budget={"trials": 2})
    assert served(storage, quick) == digest_of(storage, quick)

    # Of a seed by which the search finds more than the quick try did.
    good = searched(storage, budget={"trials": 60}, seed=2)

    assert served(storage, quick) == digest_of(storage, good)


def test_a_second_model_searches_what_is_new_and_keeps_what_is_served(storage: Storage) -> None:
    shared = {"op": "dense", "args": {"m": "8*T", "n": 256, "k": 64}}
    first = searched(storage, workloads=[shared], workload=..., budget={"trials": 40})

    new = {"op": "dense", "args": {"m": "8*T", "n": 128, "k": 64}}
    second = searched(storage, workloads=[{**shared, "count": 3}, new], workload=..., budget={"trials": 16})

    assert second.state is JobState.COMPLETED, second.error
    tasks = storage.search_tasks(second.id)
    assert [len(storage.records_of_task(task.id)) > 0 for task in tasks] == [False, True]
    kept = {position: library.digest for position, library in storage.libraries_of_job(second.id)}
    assert kept[0] == digest_of(storage, first)
    said = [event.data["message"] for event in storage.list_events(second.id) if event.kind == "log"]
    assert said[0] == (
        "2 workloads in 16 trials: 1 will not be searched; 128 trials recommended; 1 known from earlier jobs"
    )
