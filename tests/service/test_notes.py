"""Tags, notes and saved searches over HTTP, and on the pages."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.searched import submitted
from tests.serving import assert_problem
from tuner.storage import NewKey, Scope
from tuner.storage.sql import Storage


def test_a_job_is_given_tags_and_a_note(api: TestClient, storage: Storage) -> None:
    job, other = submitted(storage, name="mine"), submitted(storage, name="other")
    path = f"/v1/jobs/{job.id}"

    answer = api.patch(path, json={"tags": ["nightly", "bert"], "note": "<b>as before</b>"}).json()

    assert (answer["tags"], answer["note"]) == (["nightly", "bert"], "<b>as before</b>")
    assert api.patch(path, json={"note": "later"}).json()["tags"] == ["nightly", "bert"]
    assert api.get(path).json()["note"] == "later"
    assert [each["id"] for each in api.get("/v1/jobs", params={"q": "tag:nightly"}).json()["items"]] == [job.id]
    assert [each["id"] for each in api.get("/v1/jobs", params={"q": "-tag:nightly"}).json()["items"]] == [other.id]
    page = api.get("/", params={"q": "tag:nightly"}).text
    assert "mine" in page
    assert "other" not in page.split("<tbody>")[1]
    assert "later" in api.get(f"/jobs/{job.id}").text
    for body in ({"tags": ["two words"]}, {"tags": "nightly"}, {"name": "x"}, {"note": "x" * 5000}):
        assert_problem(api.patch(path, json=body), 422)
    assert_problem(api.patch("/v1/jobs/none", json={}), 404)


def test_only_its_owner_annotates_a_job(api: TestClient, storage: Storage) -> None:
    job = submitted(storage)
    for scope in (Scope.READ, Scope.SUBMIT):
        _, secret = storage.create_key("eve", made=NewKey((scope,), "eve"))
        refused = api.patch(f"/v1/jobs/{job.id}", json={"note": "x"}, headers={"Authorization": f"Bearer {secret}"})
        assert_problem(refused, 403)


def test_searches_are_saved_and_shown(api: TestClient, storage: Storage) -> None:
    assert api.put("/v1/filters/bad ones", json={"query": "state:failed -tag:old"}).json()["name"] == "bad ones"
    assert [each["query"] for each in api.get("/v1/filters").json()["items"]] == ["state:failed -tag:old"]
    assert 'href="?q=state%3Afailed%20-tag%3Aold"' in api.get("/").text
    assert_problem(api.put("/v1/filters/long", json={"query": "x" * 201}), 422)
    _, secret = storage.create_key("eve", made=NewKey((Scope.READ,), "eve"))
    eve = {"Authorization": f"Bearer {secret}"}
    assert api.get("/v1/filters", headers=eve).json()["items"] == []
    assert_problem(api.put("/v1/filters/x", json={"query": "y"}, headers=eve), 403)
    assert api.delete("/v1/filters/bad ones").status_code == 204
    assert_problem(api.delete("/v1/filters/bad ones"), 404)


def test_workloads_are_searched_by_name(api: TestClient, storage: Storage) -> None:
    submitted(storage)
    for path in ("/v1/workloads", "/workloads"):
        assert "wl-" in api.get(path, params={"q": "DENSE"}).text
        assert "wl-" not in api.get(path, params={"q": "conv2d"}).text
