"""The routes about libraries: which one is served and why, lists, names."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.contract.served_samples import Saved, new_library, won
from tests.serving import assert_problem
from tuner.storage.sql import Storage


@pytest.fixture
def old(storage: Storage) -> Saved:
    return new_library(storage, 1, 64, measured_s={1: 1e-3, 64: 3e-3})


def path(saved: Saved, what: str) -> str:
    return f"/v1/workloads/{saved.key}/{what}"


def etag(saved: Saved) -> str:
    return f'"{saved.digest}"'


# -- which one --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["library", "dispatcher"])
def test_the_best_that_covers_the_range_is_sent(api: TestClient, storage: Storage, old: Saved, what: str) -> None:
    wide = new_library(storage, 1, 128, measured_s={1: 9e-3, 64: 9e-3, 128: 9e-3})

    for query, expected in (
        ("", wide),
        ("range=m=16..1024", old),
        ("range=T=1..64", old),
        ("range=T=1..65", wide),
        (f"range=T=1..65&target={old.target}&threads=1", wide),
        (f"job={old.job_id}", old),
        (f"digest={old.digest}", old),
    ):
        assert api.get(f"{path(old, what)}?{query}").headers["ETag"] == etag(expected), query


@pytest.mark.parametrize("what", ["library", "dispatcher"])
def test_what_the_client_has_is_not_sent_again(api: TestClient, old: Saved, what: str) -> None:
    for known in (etag(old), f'"x", W/{etag(old)}', "*"):
        answer = api.get(path(old, what), headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", etag(old))
    assert api.get(path(old, what), headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize("what", ["library", "dispatcher"])
def test_blank_parameters_are_as_good_as_none(api: TestClient, old: Saved, what: str) -> None:
    blank = "target=&threads=&cache=&range=&job=&digest=&alias="
    assert api.get(f"{path(old, what)}?{blank}").content == api.get(path(old, what)).content


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("range=T=1..65", "covered: m=16..1024"),
        ("threads=2", "with 2 threads: 1 thread: m=16..1024"),
        ("alias=production", "alias 'production'"),
        ("job=job-none", "job 'job-none'"),
    ],
)
def test_what_is_not_there_says_what_there_is(api: TestClient, old: Saved, query: str, says: str) -> None:
    answer = api.get(f"{path(old, 'library')}?{query}")
    assert_problem(answer, 404)
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("range=T=5..1", "range"),
        ("range=S=1..2", "range"),
        ("range=m=1..2,S=4", "range"),
        ("range=x", "range"),
        ("range=T=1..99999999999", "range"),
        ("range=T=1..64:0", "range"),
        ("range=T=1|x", "range"),
        ("threads=0", "threads"),
        ("threads=x", "threads"),
        ("digest=abc", "digest"),
        ("target=native", "target"),
    ],
)
def test_a_query_that_cannot_work_is_refused(api: TestClient, old: Saved, query: str, field: str) -> None:
    answer = api.get(f"{path(old, 'library')}?{query}")
    assert_problem(answer, 422)
    assert answer.json()["field"] == field


def test_the_answer_says_which_job_and_how_it_compares(api: TestClient, storage: Storage, old: Saved) -> None:
    new = new_library(storage, 1, 64, measured_s={1: 0.8e-3, 64: 2e-3}, comparison=won(old, ratio=1.3))
    beside = new_library(storage, 1, 128, measured_s={1: 2e-3, 64: 4e-3})

    answer = api.post(path(old, "served"), json={"range": {"T": [1, 64]}}).json()

    assert (answer["digest"], answer["job_id"], answer["threads"]) == (new.digest, new.job_id, 1)
    assert (answer["range"], answer["asked"]) == ({"m": [16, 1024]}, {"m": [16, 1024]})
    assert (answer["points"], answer["measured"]) == (2, 2)
    assert answer["expected_s"] == pytest.approx(1.1e-3, rel=0.3)
    assert (answer["comparison"]["verdict"], answer["superseded_by"], answer["aliases"]) == ("replaces", None, [])
    others = {each["digest"]: each for each in answer["alternatives"]}
    assert set(others) == {old.digest, beside.digest}
    assert (others[old.digest]["ratio"], others[old.digest]["timed_in_turns"]) == (1.3, True)
    assert others[old.digest]["superseded_by"] == new.digest
    assert (others[beside.digest]["job_id"], others[beside.digest]["timed_in_turns"]) == (beside.job_id, False)
    assert others[beside.digest]["ratio"] > 1.5


@pytest.mark.parametrize("span", [[1, 64], [1, 64, 1], [8, 64, 8], {"values": [1, 2, 4, 8]}])
def test_a_range_may_have_a_step_or_be_listed(api: TestClient, old: Saved, span: Any) -> None:
    answer = api.post(path(old, "served"), json={"range": {"T": span}}).json()
    assert (answer["digest"], answer["made_for"]) == (old.digest, "m=16..1024:16")
    in_between = {"range": {"m": [16, 1024, 8]}}
    assert_problem(api.post(path(old, "served"), json=in_between), 404)


def test_it_is_decided_at_the_callers_instances(api: TestClient, storage: Storage, old: Saved) -> None:
    new = new_library(storage, 1, 64, measured_s={1: 2e-3, 64: 1e-3})

    def at(*instances: tuple[int, float]) -> str:
        shapes = [{"shape": {"m": 16 * t}, "weight": weight} for t, weight in instances]
        digest = api.post(path(old, "served"), json={"instances": shapes}).json()["digest"]
        return str(digest)

    assert at((1, 1.0)) == old.digest
    assert at((1, 0.0), (64, 1.0)) == new.digest
    assert at((1, 100.0), (64, 1.0)) == old.digest


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instances": [{"shape": {"T": 1}}]}, "instances[0].shape"),
        ({"instances": [{"shape": {"m": 1}, "weight": 0}]}, "instances"),
        ({"instances": [{"shape": {"m": 1}, "weight": -1}]}, "instances.0.weight"),
        ({"instances": [{"shape": {"m": -1}}]}, "instances.0.shape.m"),
        ({"instances": [{"shape": {"m": 1}}] * 257}, "instances"),
        ({"range": {"m": [5, 1]}}, "range"),
        ({"range": {"m": [5]}}, "range.m"),
        ({"range": {"m": [5, 9, 0]}}, "range.m"),
        ({"range": {"m": [5, 1, 2]}}, "range"),
        ({"range": {"m": [-5, 9]}}, "range.m"),
        ({"range": {"m": {"values": []}}}, "range.m"),
        ({"range": {"m": {"values": [True]}}}, "range.m"),
        ({"range": {"m": {"values": [1], "step": 2}}}, "range.m"),
        ({"threads": 0}, "threads"),
        ({"anything": 1}, "anything"),
        ([], "request"),
    ],
)
def test_a_body_that_cannot_work_is_refused(api: TestClient, old: Saved, body: Any, field: str) -> None:
    answer = api.post(path(old, "served"), json=body)
    assert_problem(answer, 422)
    assert answer.json()["field"].startswith(field)


def test_an_unknown_workload_is_not_found(api: TestClient) -> None:
    for body in ({}, {"range": {"m": [1, 2]}}, {"instances": [{"shape": {"m": 1}}]}):
        assert_problem(api.post("/v1/workloads/wl-none/served", json=body), 404)
    assert_problem(api.get("/v1/workloads/wl-none/libraries"), 404)
    assert_problem(api.get("/v1/jobs/job-none/libraries"), 404)
    assert api.get("/v1/workloads/wl-none/aliases").json() == {"items": []}


# -- lists ------------------------------------------------------------------------------------------------------------
def test_every_library_is_listed_whatever_is_served(api: TestClient, storage: Storage, old: Saved) -> None:
    new = new_library(storage, comparison=won(old))

    first = api.get(f"{path(old, 'libraries')}?limit=1").json()
    rest = api.get(f"{path(old, 'libraries')}?cursor={first['cursor']}").json()

    assert [item["digest"] for item in (*first["items"], *rest["items"])] == [new.digest, old.digest]
    assert [item["superseded_by"] for item in (*first["items"], *rest["items"])] == [None, new.digest]
    assert rest["cursor"] is None


def test_the_libraries_of_a_job_are_listed(api: TestClient, old: Saved) -> None:
    (item,) = api.get(f"/v1/jobs/{old.job_id}/libraries").json()["items"]
    assert (item["position"], item["digest"], item["workload_key"]) == (0, old.digest, old.key)


# -- names ------------------------------------------------------------------------------------------------------------
def test_a_name_is_given_by_whoever_calls_and_taken_back(api: TestClient, storage: Storage, old: Saved) -> None:
    new = new_library(storage, 1, 64)
    for each in (old, new):
        body = {"digest": each.digest, "reason": "tested", "at_least_percent": 5}
        given = api.post(path(old, "aliases/production"), json=body).json()
        assert (given["library"]["digest"], given["promoted_by"]) == (each.digest, "tests")
        assert given["at_least_percent"] == 5
    assert api.get(f"{path(old, 'library')}?alias=production").headers["ETag"] == etag(new)
    assert api.get(path(old, "aliases")).json()["items"] == [given]

    back = api.post(path(old, "aliases/production/rollback"), json={"reason": "slow"}).json()

    assert (back["library"]["digest"], back["at_least_percent"]) == (old.digest, None)
    entries = api.get(f"{path(old, 'history')}?alias=production").json()["items"]
    assert [(entry["action"], entry["digest"], entry["by"], entry["reason"]) for entry in entries] == [
        ("rolled_back", old.digest, "tests", "slow"),
        ("promoted", new.digest, "tests", "tested"),
        ("promoted", old.digest, "tests", "tested"),
    ]
    assert api.get(f"{path(old, 'history')}?alias=other").json() == {"items": [], "cursor": None}
    assert_problem(api.post(path(old, "aliases/production/rollback"), json={}), 409)


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("Production", {"digest": "0" * 64}, 422),
        ("production", {"digest": "0" * 64}, 404),
        ("production", {"digest": "x"}, 422),
        ("production", {}, 422),
        ("production", {"digest": "0" * 64, "at_least_percent": -1}, 422),
        ("production", {"digest": "0" * 64, "reason": "x" * 501}, 422),
    ],
)
def test_a_promotion_that_cannot_work_is_refused(
    api: TestClient, old: Saved, name: str, body: dict[str, Any], status: int
) -> None:
    assert_problem(api.post(path(old, f"aliases/{name}"), json=body), status)
    assert api.get(path(old, "aliases")).json() == {"items": []}


def test_libraries_for_caches_in_other_states_are_asked_for_by_name(api: TestClient, storage: Storage) -> None:
    warm = new_library(storage, measured_s={1: 1e-3})
    cold = new_library(storage, measured_s={1: 2e-3}, cache="cold")

    for query, expected in (("", warm), ("cache=warm", warm), ("cache=cold", cold)):
        assert api.get(f"{path(warm, 'library')}?{query}").headers["ETag"] == etag(expected)
        body = dict([query.split("=")]) if query else {}
        answer = api.post(path(warm, "served"), json=body).json()
        assert (answer["digest"], answer["cache"]) == (expected.digest, body.get("cache", "warm"))
        assert answer["alternatives"] == []
        latency = api.get(f"{path(warm, 'best')}?shape=m=16&{query}").json()
        assert (latency["latency_s"], latency["cache"]) == (1e-3 if expected is warm else 2e-3, answer["cache"])
    asked = [{"workload_key": warm.key, "shape": {"m": 16}, "cache": cache} for cache in ("cold", "streamed", "tepid")]
    first, second, third = api.post("/v1/lookup", json={"queries": asked}).json()["answers"]
    assert first["best"]["latency_s"] == 2e-3
    assert second["problem"]["status"] == 404
    assert "one of: warm, cold, streamed" in third["problem"]["detail"]
    missing = api.get(f"{path(warm, 'library')}?cache=streamed")
    assert_problem(missing, 404)
    assert "there are libraries for caches cold, warm" in missing.json()["detail"]
    assert_problem(api.get(f"{path(warm, 'library')}?cache=tepid"), 422)
    listed = api.get(f"{path(warm, 'libraries')}?cache=cold").json()["items"]
    assert [each["digest"] for each in listed] == [cold.digest]
