"""What every Storage promises about tables of trials: any order, any filter, every trial once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.samples import leased, many_tasks, results
from tuner.errors import InvalidInput
from tuner.records import ErrorKind, Phase
from tuner.storage.sql import Storage, cursors
from tuner.storage.trials import FAILED, SUCCEEDED, TrialLine, TrialOrder, TrialQuery

FAILURES = {"latency_s": None, "error_kind": ErrorKind.CRASH, "error": "on purpose"}


@pytest.fixture
def task(storage: Storage) -> int:
    """A search of nine trials, two of them failed, and the trials of another."""
    lease = leased(storage, many_tasks())
    first, second, _ = lease.tasks
    own = [*results(4, t=5, predicted_s=0.5), *results(2, start=1, t=128, phase=Phase.FINAL, round=3)]
    own += results(2, start=6, t=5, **FAILURES)
    own.append(replace(own[0], attempt=1, latency_s=0.25, samples_s=(0.2, 0.25, 0.3)))
    storage.append_results(lease, first.id, own)
    storage.append_results(lease, second.id, results(3))
    return first.id


def read(storage: Storage, task: int, limit: int = 100, **query: Any) -> list[TrialLine]:
    """All parts of a table."""
    asked = TrialQuery(limit=limit, **query)
    lines: list[TrialLine] = []
    while True:
        table = storage.find_trials(task, asked)
        assert len(table.items) <= limit
        lines += table.items
        if table.cursor is None:
            return lines
        asked = replace(asked, cursor=table.cursor)


def test_a_line_is_what_was_stored(storage: Storage, task: int) -> None:
    last = read(storage, task)[-1]
    assert (last.instance.shape, last.latency_s, last.samples_s) == ({"T": 5}, 0.25, (0.2, 0.25, 0.3))
    assert (last.phase, last.attempt, last.error_kind, last.kernel_id) == ("search", 1, None, last.kernel.id)
    assert last.kernel.named == {"tile_m": 1, "block_k": 64, "unroll": 4}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", TrialOrder)
def test_every_trial_comes_once_in_any_order(storage: Storage, task: int, order: TrialOrder, descending: bool) -> None:
    lines = read(storage, task, limit=2, order=order, descending=descending)
    assert len({line.seq for line in lines}) == len(lines) == 9
    name = {"stored": "seq", "latency": "latency_s", "predicted": "predicted_s", "kernel": "kernel_id",
            "build": "build_s", "run": "run_s"}.get(order, order)  # fmt: skip
    values = [getattr(line, name) for line in lines]
    known = [value for value in values if value is not None]
    assert values == [*sorted(known, reverse=descending), *[None] * (len(values) - len(known))]


def test_trials_are_filtered(storage: Storage, task: int) -> None:
    def count(**query: Any) -> int:
        return len(read(storage, task, **query))

    assert (count(error=SUCCEEDED), count(error=FAILED), count(error=ErrorKind.CRASH)) == (7, 2, 2)
    assert count(error=ErrorKind.WRONG) == 0
    assert (count(instance="T=128"), count(instance="T=5"), count(instance="T=6")) == (2, 7, 0)
    assert (count(phase=Phase.FINAL), count(phase=Phase.FINAL, instance="T=5")) == (2, 0)
    kernel = read(storage, task)[0].kernel_id
    assert count(kernel=kernel[:8]) == 2
    assert count(kernel="%") == 0


def test_facets_count_what_filters_let_through(storage: Storage, task: int) -> None:
    facets = storage.trial_facets(task)
    assert sum(facet.trials for facet in facets) == 9
    for facet in facets:
        query: dict[str, Any] = {
            "error": facet.error_kind or SUCCEEDED,
            "phase": Phase(facet.phase),
            "instance": facet.instance,
        }
        assert len(read(storage, task, **query)) == facet.trials


def test_a_cursor_belongs_to_its_order(storage: Storage, task: int) -> None:
    cursor = storage.find_trials(task, TrialQuery(limit=2, order=TrialOrder.LATENCY)).cursor
    for other in (TrialQuery(cursor=cursor), TrialQuery(order=TrialOrder.LATENCY, descending=True, cursor=cursor),
                  TrialQuery(cursor="nonsense"), TrialQuery(order=TrialOrder.KERNEL, cursor=cursor)):  # fmt: skip
        with pytest.raises(InvalidInput):
            storage.find_trials(task, other)


@pytest.mark.parametrize("order", [TrialOrder.STORED, TrialOrder.ROUND, TrialOrder.LATENCY])
@pytest.mark.parametrize("end", [(10**40, 1), (True, 1), (1, True), (1, -(10**40)), (1, 1.5), ("1", 1)])
def test_a_cursor_that_no_table_gave_is_refused(
    storage: Storage, task: int, order: TrialOrder, end: tuple[object, object]
) -> None:
    cursor = cursors.opaque(json.dumps([order, False, *end]))
    with pytest.raises(InvalidInput):
        storage.find_trials(task, TrialQuery(order=order, cursor=cursor))


def test_a_search_without_trials_has_an_empty_table(storage: Storage) -> None:
    [task] = leased(storage).tasks
    assert storage.find_trials(task.id, TrialQuery()).items == ()
    assert storage.trial_facets(task.id) == ()
