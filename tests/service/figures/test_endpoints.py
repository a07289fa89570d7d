"""The routes of figures."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.searched import searched
from tests.serving import assert_problem
from tuner.figures import FIGURES
from tuner.storage.sql import Storage


def test_every_figure_is_plotly_json_and_is_not_sent_twice(api: TestClient, storage: Storage) -> None:
    job = searched(storage)
    listed = api.get(f"/v1/jobs/{job.id}/figures").json()["items"]
    assert [each["name"] for each in listed] == list(FIGURES)
    for each in listed:
        path = f"/v1/jobs/{job.id}/figures/{each['name']}"
        answer = api.get(path)
        assert answer.status_code == 200
        assert {"data", "layout"} <= set(answer.json())
        again = api.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_kernel_has_a_figure_of_its_own(api: TestClient, storage: Storage) -> None:
    job = searched(storage, budget={"trials": 8})
    kernel = storage.list_trials(job.id)[0].result.kernel.id
    path = f"/v1/jobs/{job.id}/figures/kernel_times"
    assert api.get(path, params={"kernel": kernel}).json()["data"]
    assert_problem(api.get(path), 404)


def test_two_jobs_and_all_targets_of_a_workload_share_figures(api: TestClient, storage: Storage) -> None:
    one, other = searched(storage), searched(storage, seed=1)
    key = storage.search_tasks(one.id)[0].workload_key
    for path in (
        f"/v1/compare/figures/best_over_time?a={one.id}&b={other.id}",
        f"/v1/compare/figures/latency_by_shape?a={one.id}&b={other.id}",
        f"/v1/workloads/{key}/figures/latency_by_shape",
    ):
        assert api.get(path).json()["data"], path


@pytest.mark.parametrize("name", ["use", "drift"])
def test_devices_have_figures(api: TestClient, storage: Storage, name: str) -> None:
    searched(storage)
    assert "data" in api.get(f"/v1/devices/figures/{name}").json()


@pytest.mark.parametrize(
    "path", ["/v1/jobs/{id}/figures/none", "/v1/devices/figures/none", "/v1/compare/figures/none?a={id}&b={id}",
             "/v1/jobs/none/figures/roofline", "/v1/compare/figures/best_over_time?a={id}&b=none"]
)  # fmt: skip
def test_a_figure_that_is_not_there_is_a_problem(api: TestClient, storage: Storage, path: str) -> None:
    job = searched(storage, budget={"trials": 1})
    assert_problem(api.get(path.format(id=job.id)), 404)
