"""The layers of a job, over real storage: the API's answer and the page of the model."""

from __future__ import annotations

import html
import re
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.searched import searched, submitted
from tests.serving import assert_problem, lease
from tuner.search.summary import SearchSummary, Stage
from tuner.storage import Job, NewEvent
from tuner.storage.sql import Storage

WORKLOADS: list[dict[str, Any]] = [
    {"op": "dense", "args": {"m": "8*T", "n": 96, "k": 32}, "count": 3, "layers": ["encoder.0.<up>", "encoder.1.<up>"]},
    {"op": "dense", "args": {"m": "8*T", "n": 64, "k": 32}},
]
MODEL: dict[str, Any] = {"name": "a small model", "workload": ..., "workloads": WORKLOADS, "budget": {"trials": 40}}


def running(storage: Storage, *summaries: SearchSummary | None, **fields: Any) -> Job:
    """A job like MODEL in work, its first search tasks with these summaries."""
    job = submitted(storage, **MODEL | fields)
    held = lease(storage)
    whole = {str(at): each.to_json() for at, each in enumerate(summaries) if each is not None}
    event = NewEvent("progress", {})
    storage.append_results(held, held.tasks[0].id, [], [event], 1.0, {"tasks": whole})
    return job


def test_a_layer_has_its_share_of_the_time_by_its_count_and_a_row_on_the_page(
    api: TestClient, storage: Storage
) -> None:
    job = searched(storage, **MODEL)
    answer = api.get(f"/v1/jobs/{job.id}/layers").json()
    assert (answer["state"], answer["layer_count"], answer["operators"], answer["next"]) == ("COMPLETED", 2, 4, None)
    first, second = answer["items"]
    assert (first["count"], first["names"], second["names"]) == (3, ["encoder.0.<up>", "encoder.1.<up>"], [])
    assert first["shapes"] == {"x": ["8*T", "32"], "w": ["96", "32"], "out": ["8*T", "96"]}
    times = [3 * first["objective_s"], second["objective_s"]]
    assert [first["time_s"], second["time_s"]] == pytest.approx(times)
    assert [first["share"], second["share"]] == pytest.approx([time_s / sum(times) for time_s in times])
    assert {each["state"] for each in answer["items"]} == {"COMPLETED"}
    assert answer["outcome"] == api.get(f"/v1/jobs/{job.id}").json()["outcome"]
    assert (answer["remaining_s"], answer["expected_end"]) == (None, None)
    # Names are escaped.
    for path in (f"/jobs/{job.id}/model", f"/fragments/jobs/{job.id}/model"):
        page = api.get(path).text
        assert "encoder.0.&lt;up&gt;, encoder.1.&lt;up&gt;" in page
        assert "x[8*T, 32] · w[96, 32] · out[8*T, 96]" in page
        assert 'data-ended="yes"' in page
    assert f'href="/jobs/{job.id}/model"' in api.get(f"/jobs/{job.id}").text
    assert f'href="/jobs/{job.id}/model"' in api.get("/").text
    single = submitted(storage)
    assert f"/jobs/{single.id}/model" not in api.get(f"/jobs/{single.id}").text + api.get("/").text
    assert api.get("/jobs/none/model").status_code == 404


def test_a_running_job_tells_when_its_budget_is_spent(api: TestClient, storage: Storage) -> None:
    searching = SearchSummary(Stage.SEARCH, trials=20, elapsed_s=10.0, objective_s=2e-3)
    job = running(storage, searching, None, budget={"trials": 100, "seconds": 3600})
    answer = api.get(f"/v1/jobs/{job.id}/layers").json()
    first, second = answer["items"]
    assert (first["state"], first["activity"], first["basis"]) == ("RUNNING", "searching", "measured")
    assert (second["state"], second["activity"], second["basis"]) == ("WAITING", "", "expected")
    assert answer["remaining_s"] == pytest.approx(40.0), "80 trials at two a second, sooner than the seconds"
    assert answer["budget_share"] == pytest.approx(0.2)
    assert datetime.fromisoformat(answer["expected_end"]).tzinfo is not None
    assert (answer["outcome"]["known"], answer["outcome"]["searches"]) == (1, 1)


def test_what_theory_expects_is_no_time_of_a_layer(api: TestClient, storage: Storage) -> None:
    timed = SearchSummary(Stage.SEARCH, trials=20, objective_s=2e-3)
    job = running(storage, SearchSummary(Stage.THEORY, objective_s=1e-3), timed)
    first, second = api.get(f"/v1/jobs/{job.id}/layers").json()["items"]
    assert (first["time_s"], first["basis"], second["basis"]) == (None, "expected", "measured")


def test_shares_are_of_all_layers_measured_or_not(api: TestClient, storage: Storage) -> None:
    """Two layers of seven had been measured, and one of them had 68 % of the time."""
    job = running(storage, SearchSummary(Stage.SEARCH, trials=20, objective_s=2e-5), None)
    answer = api.get(f"/v1/jobs/{job.id}/layers").json()
    first, second = answer["items"]
    whole_s = 3 * 2e-5 + second["expected_s"]
    assert (first["expected_s"], second["time_s"], second["objective_s"]) == (None, None, None)
    assert [first["share"], second["share"]] == pytest.approx([3 * 2e-5 / whole_s, second["expected_s"] / whole_s])
    assert answer["measured_share"] == first["share"] < 1
    page = api.get(f"/jobs/{job.id}/model").text
    assert page.count(">expected</small>") == 1 and "Time measured" in page


def test_the_page_says_what_is_not_known_yet(api: TestClient, storage: Storage) -> None:
    none, timed = running(storage), running(storage, SearchSummary(Stage.SEARCH, trials=20, objective_s=2e-3))
    assert "Nothing has been measured yet." in api.get(f"/jobs/{none.id}/model").text
    assert "Not yet compared with the default everywhere." in api.get(f"/jobs/{timed.id}/model").text


def test_the_wall_time_of_searches_that_run_at_once_counts_once(api: TestClient, storage: Storage) -> None:
    job = submitted(storage, **MODEL | {"budget": {"seconds": 100}})
    held = lease(storage)
    both = {str(at): SearchSummary(Stage.SEARCH, elapsed_s=30.0).to_json() for at in range(2)}
    storage.append_results(held, held.tasks[0].id, [], [NewEvent("progress", {})], 1.0, {"tasks": both, "wall_s": 40.0})
    assert api.get(f"/v1/jobs/{job.id}/layers").json()["remaining_s"] == pytest.approx(60.0)


def test_shares_are_of_the_layers_on_one_target(api: TestClient, storage: Storage) -> None:
    targets = [{"kind": "llvm", "mcpu": name, "num-cores": 2} for name in ("x86-64-v3", "x86-64-v4")]
    job = searched(storage, **MODEL | {"targets": targets, "budget": {"trials": 32}})
    layers = api.get(f"/v1/jobs/{job.id}/layers").json()["items"]
    for target in {each["target_fingerprint"] for each in layers}:
        assert sum(each["share"] for each in layers if each["target_fingerprint"] == target) == pytest.approx(1.0)
    assert "x86-64-v3" in api.get(f"/jobs/{job.id}/model").text


def test_layers_come_in_parts(api: TestClient, storage: Storage) -> None:
    many = [{"op": "dense", "args": {"m": "T", "n": 8 * at, "k": 32}} for at in range(1, 61)]
    job = submitted(storage, **MODEL | {"workloads": many})
    part = api.get(f"/v1/jobs/{job.id}/layers?first=30&limit=10").json()
    assert ([each["position"] for each in part["items"]], part["next"]) == ([*range(30, 40)], 40)
    assert api.get(f"/v1/jobs/{job.id}/layers?first=40").json()["next"] is None
    assert api.get(f"/v1/jobs/{job.id}/layers?first=60").json()["items"] == []
    assert_problem(api.get("/v1/jobs/none/layers"), 404)

    def rows(query: str) -> list[str]:
        page = api.get(f"/jobs/{job.id}/model?{query}").text
        return [html.unescape(link) for link in re.findall(r'<th scope="row"><a href="([^"]*)"', page)]

    assert [len(rows(query)) for query in ("", "page=2", "page=3", "order=share&page=2")] == [50, 10, 10, 10]
    assert rows("page=2")[0] == f"/jobs/{job.id}?task=50"


def test_the_largest_share_comes_first_on_demand(api: TestClient, storage: Storage) -> None:
    small, large = (SearchSummary(Stage.SEARCH, objective_s=seconds) for seconds in (1e-4, 2e-3))
    job = running(storage, small, large)

    def order(query: str) -> list[str]:
        return re.findall(r'<th scope="row"><a href="[^"]*task=(\d)"', api.get(f"/jobs/{job.id}/model{query}").text)

    assert (order(""), order("?order=share")) == (["0", "1"], ["1", "0"])
    assert_problem(api.get(f"/v1/jobs/{job.id}/layers?first=-1"), 422)


def test_layers_of_theory_are_what_was_asked_for(api: TestClient, storage: Storage) -> None:
    job = searched(storage, **MODEL | {"budget": {"trials": 0}})
    assert {each["state"] for each in api.get(f"/v1/jobs/{job.id}/layers").json()["items"]} == {"COMPLETED"}


def test_a_layer_that_there_was_no_budget_for_is_not_completed_and_named_to_be_searched_next(
    api: TestClient, storage: Storage
) -> None:
    job = searched(storage, **MODEL | {"budget": {"trials": 16}})
    page = api.get(f"/jobs/{job.id}/model").text
    first, second = api.get(f"/v1/jobs/{job.id}/layers").json()["items"]
    assert (first["state"], second["state"], second["trials"]) == ("COMPLETED", "UNSEARCHED", 0)
    assert (first["basis"], second["basis"]) == ("measured", "expected")
    assert (page.count(">not searched</span>"), page.count(">completed</span>")) == (1, 2), "the job is completed"
    drawn = re.findall(r'<rect class="(\w+)" x="([\d.]+)" width="([\d.]+)"', page)
    assert sorted(kind for kind, _, _ in drawn) == ["expected", "measured"]
    assert sum(float(width) for _, _, width in drawn) == pytest.approx(1000, abs=5)
    assert "was not searched" in page
    assert f'href="/jobs/new?from={job.id}"' in page
    whole = searched(storage, **MODEL | {"budget": {"trials": 60}})
    assert "Every layer was measured." in api.get(f"/jobs/{whole.id}/model").text
