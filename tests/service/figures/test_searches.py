"""What is kept of searches: read once, added to, and never shown out of date."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from service.figures import searches
from service.figures.searches import Searches
from tests.calibrated import FOUND
from tests.contract.samples import leased, many_tasks, results
from tests.searched import searched
from tuner.program.target import native
from tuner.search.summary import SearchSummary
from tuner.storage import NewEvent
from tuner.storage.sql import Storage


def test_a_search_that_goes_on_is_added_to(storage: Storage) -> None:
    lease, kept = leased(storage), Searches(storage)
    [row] = lease.tasks
    storage.append_results(lease, row.id, results(3), [NewEvent("progress", {"trials": 3})])
    before, version = kept.view(lease.job, row)
    assert (len(before.results), before.progress) == (3, (SearchSummary(trials=3),))
    assert kept.view(lease.job, row)[1] == version

    storage.append_results(lease, row.id, results(2, start=3), [NewEvent("progress", {"trials": 5})])
    after, later = kept.view(lease.job, row)

    assert [len(after.results), len(after.progress), len(before.results)] == [5, 2, 3]
    assert later != version


def test_tasks_of_one_job_are_told_apart(storage: Storage) -> None:
    lease, kept = leased(storage, many_tasks()), Searches(storage)
    for row in lease.tasks:
        progress = NewEvent("progress", {"trials": row.position, "position": row.position})
        storage.append_results(lease, row.id, results(1 + row.position), [progress])
    for row in lease.tasks:
        view, _ = kept.view(lease.job, row)
        assert (len(view.results), [summary.trials for summary in view.progress]) == (1 + row.position, [row.position])


def test_a_search_has_the_levels_of_the_device_that_was_calibrated_for_it(storage: Storage) -> None:
    """Before its first trial: what comes later belongs to later searches."""
    lease, kept = leased(storage), Searches(storage)
    [row] = lease.tasks
    storage.register_device("local-0", lease.job.device, native(), {})
    storage.device_calibrated("local-0", replace(FOUND, threads=row.task.threads + 1))
    assert kept.view(lease.job, row)[0].levels is None
    mine = replace(FOUND, threads=row.task.threads, target=row.target_fingerprint)
    storage.device_calibrated("local-0", mine)
    storage.append_results(lease, row.id, results(3), [])
    assert kept.view(lease.job, row)[0].levels == FOUND.levels
    storage.register_device("other-0", "other", native(), {})
    assert kept.view(lease.job, row)[0].levels == FOUND.levels


def test_a_finished_search_has_its_dispatcher(storage: Storage) -> None:
    job = searched(storage)
    view, _ = Searches(storage).view(job, storage.search_tasks(job.id)[0])
    assert view.dispatcher is not None
    assert len(view.dispatcher.table) == 32


def test_the_searches_looked_at_longest_ago_are_let_go(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "MAX_KEPT", 3)
    kept, leases = Searches(storage), [leased(storage) for _ in range(3)]
    for lease in leases:
        storage.append_results(lease, lease.tasks[0].id, results(2))
    for lease in leases:
        assert len(kept.view(lease.job, lease.tasks[0])[0].results) == 2
    assert len(kept._kept) == 2


def test_a_figure_is_made_once_for_each_version(storage: Storage) -> None:
    kept, made = Searches(storage), []

    def make() -> str:
        made.append(1)
        return f"figure {len(made)}"

    assert [kept.figure("f", "1", make), kept.figure("f", "1", make), kept.figure("f", "2", make)] == [
        "figure 1", "figure 1", "figure 2",
    ]  # fmt: skip


def test_many_may_look_at_one_search_at_once(storage: Storage) -> None:
    held, kept = leased(storage), Searches(storage)
    [row] = held.tasks
    for start in range(0, 40, 10):
        storage.append_results(held, row.id, results(10, start=start), [NewEvent("progress", {"trials": start})])
    with ThreadPoolExecutor(8) as pool:
        views = list(pool.map(lambda _: kept.view(held.job, row)[0], range(32)))
    assert {(len(view.results), len(view.progress)) for view in views} == {(40, 4)}
    assert len({id(view) for view in views}) == 1
