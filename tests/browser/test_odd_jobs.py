"""Jobs that are unlike most: their pages say what there is, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Visitor, drawn, shoot
from tests.browser.pages import TWO_VARS, searched
from tests.browser.test_dashboard import expect
from tests.searched import Tools, submitted
from tests.serving import lease
from tuner.figures import FIGURES
from tuner.storage import Job, JobState, NewEvent
from tuner.storage.sql import Storage

pytestmark = [pytest.mark.together("browser"), pytest.mark.soak]
THREE_VARS = {
    "workload": {"op": "batch_matmul_nt", "args": {"b": "A", "m": "B", "n": "8*C", "k": 64}},
    "shape_vars": {"A": {"min": 1, "max": 4}, "B": {"min": 1, "max": 8}, "C": {"min": 1, "max": 4}},
    "instances": ...,
}
STATIC = {
    "workload": {"op": "dense", "args": {"m": 64, "n": 96, "k": 32}},
    "shape_vars": ...,
    "instances": ...,
}
SCRIPT = "<script>document.title = 'taken'</script><b>x</b>"


def cancelled_at_once(storage: Storage) -> Job:
    return storage.request_cancel(submitted(storage).id)


def broken(storage: Storage) -> Job:
    """A job that ended with a long reason, before anything was measured."""
    submitted(storage)
    return storage.finish_job(lease(storage), JobState.FAILED, "no device: " + "x" * 1000)


def unheard_of(storage: Storage) -> Job:
    """A job with events that this version does not know."""
    job = submitted(storage)
    storage.append_events(lease(storage), [NewEvent("comet", {"tail": 3}), NewEvent("log", {"message": SCRIPT})])
    return job


ODD: dict[str, Callable[[Storage], Job]] = {
    "empty": submitted,
    "cancelled-at-once": cancelled_at_once,
    "broken": broken,
    "unheard-of": unheard_of,
    "theory-alone": lambda storage: searched(storage, budget={"trials": 0}),
    "one-trial": lambda storage: searched(storage, budget={"trials": 1}),
    "all-failed": lambda storage: searched(storage, Tools(crashes=lambda kernel: True)),
    "static": lambda storage: searched(storage, **STATIC),
    "two-variables": lambda storage: searched(storage, **TWO_VARS),
    "three-variables": lambda storage: searched(storage, **THREE_VARS),
    "chinese": lambda storage: searched(storage, name="注意力层的查询、键和值 (批量 16)"),
    "script": lambda storage: searched(storage, name=SCRIPT),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_job_has_a_whole_page(storage: Storage, visitor: Visitor, odd: str) -> None:
    job = ODD[odd](storage)
    page = visitor.open(f"/jobs/{job.id}")
    expect(page, "h1", job.name)
    assert page.title() == f"{job.name} · Shapewright"
    for name in FIGURES:
        drawn(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.goto(visitor.url)
    expect(page, ".jobs th", job.name)
    page.goto(f"{visitor.url}/compare?a={job.id}&b={job.id}")
    shoot(page, f"odd-{odd}-compare")


def test_a_job_of_many_tasks_shows_one_at_a_time(storage: Storage, visitor: Visitor) -> None:
    dense: dict[str, Any] = {"op": "dense", "args": {"m": "8*T", "n": 96, "k": 32}}
    job = searched(storage, workload=..., workloads=[dense, {**dense, "args": {**dense["args"], "n": 64}, "count": 12}])
    page = visitor.open(f"/jobs/{job.id}")
    page.get_by_role("link", name="12 times").click()
    page.wait_for_url("**?task=1")
    expect(page, "h2", "The library")
    drawn(page, "best_over_time")
    drawn(page, "dispatch")


def test_a_kernel_that_failed_says_why(storage: Storage, visitor: Visitor) -> None:
    job = searched(storage, Tools(crashes=lambda kernel: kernel["ku"] == 1))
    record = next(record for record in storage.list_trials(job.id) if not record.result.ok)
    page = visitor.open(f"/jobs/{job.id}/kernels/{record.result.kernel.id}")
    expect(page, ".banner", "crash: signal 11")


@pytest.mark.parametrize(
    "path", ["/jobs/job-none", "/jobs/job-none/kernels/abc", "/workloads/dense-none", "/no/such/page"]
)
def test_what_is_not_there_is_told_on_a_page(visitor: Visitor, path: str) -> None:
    visitor.expected = ("404",)
    page = visitor.open(path)
    assert page.locator("h1").count() == 1
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs").click()
    expect(page, "h1", "Jobs")
