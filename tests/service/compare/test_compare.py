"""Jobs side by side: the route that pages and the command line share, and the page."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from tests.contract.samples import many_tasks
from tests.searched import searched
from tests.serving import assert_problem
from tuner.program.target import native
from tuner.storage.sql import Storage

UNLIKE = {"workload": {"op": "dense", "args": {"m": "8*T", "n": 64, "k": 32}}}


def test_jobs_are_compared_over_their_equal_workloads(api: TestClient, storage: Storage) -> None:
    one, other = searched(storage), searched(storage, seed=1, name="the other")
    unlike = searched(storage, budget={"trials": 4}, **UNLIKE)

    answer = api.get("/v1/compare", params={"job": [one.id, other.id, unlike.id]}).json()

    assert [job["id"] for job in answer["jobs"]] == [one.id, other.id, unlike.id]
    [pairing] = answer["pairings"]
    assert [total["job_id"] for total in pairing["totals"]] == [one.id, other.id]
    assert pairing["totals"][1]["ratio"]["verdict"] in ("faster", "equal", "slower")
    assert [line["shape"] for line in pairing["shapes"]] == [{"T": 1}, {"T": 7}, {"T": 20}, {"T": 32}]
    assert [each["job_id"] for each in answer["unlike"]] == [unlike.id]
    assert answer["left_out"] == 0
    assert "bootstrap" in answer["method"]

    page = api.get("/compare", params={"job": [one.id, other.id, unlike.id]}).text
    assert "no other job has this workload" in page
    figures = [url.replace("&amp;", "&") for url in re.findall(r'data-figure="([^"]+)"', page)]
    assert len(figures) == 4
    for url in figures:
        assert api.get(url).json()["data"], url


def test_what_cannot_be_compared_is_refused(api: TestClient, storage: Storage) -> None:
    job = searched(storage, budget={"trials": 1})
    assert_problem(api.get("/v1/compare", params={"job": [job.id, job.id]}), 422)
    assert_problem(api.get("/v1/compare", params={"job": [job.id, "none"]}), 404)
    assert_problem(api.get("/v1/compare"), 422)
    many = {"job": [job.id, *(f"j{number}" for number in range(8))]}
    assert_problem(api.get("/v1/compare", params=many), 422)


def test_jobs_that_have_not_begun_are_compared_as_far_as_they_are(api: TestClient, storage: Storage) -> None:
    ids = [storage.create_job(many_tasks().on(native()))[0].id for _ in range(2)]
    answer = api.get("/v1/compare", params={"job": ids}).json()
    assert len(answer["pairings"]) >= 1
    assert all(total["ratio"] is None for pairing in answer["pairings"] for total in pairing["totals"])
    assert api.get("/compare", params={"job": ids}).status_code == 200


def test_the_list_of_jobs_has_a_box_to_tick_for_each(api: TestClient, storage: Storage) -> None:
    job = searched(storage, budget={"trials": 1})
    assert f'name="job" value="{job.id}" form="compare"' in api.get("/").text
