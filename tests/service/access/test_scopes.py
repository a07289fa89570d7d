"""What each route needs: every operation of the OpenAPI document, with every kind of wrong key."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient

from service.access.scopes import READ, require_scopes
from service.app import create_app
from tests.service.access.conftest import SETTINGS, Caller
from tests.serving import JOB, assert_problem, lease, register_local, store_library
from tuner.storage import AliasQuery, NewKey, Quota, Scope
from tuner.storage.sql import Storage

OPEN = {"/healthz", "/readyz"}
BELOW = {scope: tuple(other for other in Scope if scope.includes(other) and other is not scope) for scope in Scope}


@pytest.fixture
def app(storage: Storage) -> FastAPI:
    return create_app(storage, settings=SETTINGS)


def operations(app: FastAPI) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path.replace("{", "").replace("}", ""), operation)
        for path, each in app.openapi()["paths"].items()
        for method, operation in each.items()
    ]


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """Those that the document leaves out too: pages and assets."""
    return [
        (method, str(route.path).replace("{", "").replace("}", ""))
        for route in iter_route_contexts(app.routes)
        if isinstance(route.original_route, APIRoute)
        for method in route.methods or ()
    ]


def ask(app: FastAPI, method: str, path: str, secret: str | None) -> Any:
    client = TestClient(app, follow_redirects=False, raise_server_exceptions=False)
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    return client.request(method, path, headers=headers)


def test_without_a_good_key_nothing_answers_but_health(app: FastAPI, storage: Storage) -> None:
    revoked, secret = storage.create_key("revoked")
    storage.revoke_key(revoked.id)
    _, expired = storage.create_key("expired", made=NewKey(ttl_s=0.001))
    time.sleep(0.01)
    routes = every_route(app)
    assert len(routes) > 30
    for method, path in routes:
        if path.removeprefix("/v1") in OPEN:
            assert ask(app, method, path, None).status_code == 200
        elif path not in ("/login", "/logout"):
            for wrong in (None, "", "wrong", secret, expired):
                assert_problem(ask(app, method, path, wrong), 401)


def test_a_key_that_allows_too_little_is_told_what_it_lacks(app: FastAPI, storage: Storage) -> None:
    for method, path, operation in operations(app):
        if path in OPEN:
            assert "security" not in operation
            continue
        [needed] = (Scope(scope) for each in operation["security"] for scope in each["ApiKey"])
        for scope in BELOW[needed]:
            _, secret = storage.create_key("less", made=NewKey((scope,)))
            answer = ask(app, method, path, secret)
            assert_problem(answer, 403)
            assert answer.json()["type"] == "urn:shapewright:missing-scope"
            assert answer.json()["needed_scope"] == needed
            assert f"--scope {needed}" in answer.json()["detail"]
        _, secret = storage.create_key("enough", made=NewKey((needed,)))
        assert ask(app, method, path, secret).status_code not in (401, 403)


def test_every_scope_is_needed_somewhere(app: FastAPI) -> None:
    needed = {
        (method, path): [scope for each in operation.get("security", ()) for scope in each["ApiKey"]]
        for method, path, operation in operations(app)
    }
    assert needed["GET", "/v1/jobs"] == ["read"]
    assert needed["POST", "/v1/jobs"] == needed["POST", "/v1/jobs/job_id/cancel"] == ["submit"]
    assert needed["GET", "/v1/audit"] == ["admin"]
    alias = "/v1/workloads/key/aliases/name"
    assert needed["POST", alias] == needed["POST", f"{alias}/rollback"] == ["promote"]


def test_a_route_that_declares_no_scope_stops_the_service_from_starting() -> None:
    app = FastAPI(openapi_url=None)
    app.get("/declared", dependencies=[READ])(lambda: None)
    require_scopes(app.routes)
    app.get("/forgotten")(lambda: None)
    with pytest.raises(RuntimeError, match="/forgotten"):
        require_scopes(app.routes)


def test_who_submits_names_no_library(caller: Caller, storage: Storage) -> None:
    register_local(storage)
    ada, release = caller(Scope.SUBMIT), caller(Scope.PROMOTE)
    job = ada.post("/v1/jobs", json=JOB).json()
    library = store_library(storage, lease(storage))
    alias = f"/v1/workloads/{job['workload_keys'][0]}/aliases/production"
    for path in (alias, f"{alias}/rollback"):
        answer = ada.post(path, json={"digest": library.digest})
        assert_problem(answer, 403)
        assert answer.json()["needed_scope"] == "promote"
    assert storage.list_aliases(AliasQuery(library.workload_key)) == ()
    assert release.post(alias, json={"digest": library.digest}).status_code == 200
    assert release.post("/v1/jobs", json=JOB).status_code == 201


# -- whose job it is --------------------------------------------------------------------------------------------------
def test_only_the_owner_or_an_administrator_changes_a_job(caller: Caller) -> None:
    ada, colleague = caller(Scope.SUBMIT, owner="ada"), caller(Scope.SUBMIT, owner="ada")
    bob, admin = caller(Scope.SUBMIT, owner="bob"), caller(Scope.ADMIN)
    job = ada.post("/v1/jobs", json=JOB).json()
    assert job["owner"] == "ada"
    for change in ("cancel", "resume"):
        answer = bob.post(f"/v1/jobs/{job['id']}/{change}")
        assert_problem(answer, 403)
        assert "a job of ada" in answer.json()["detail"]
        assert answer.json()["needed_scope"] == "admin"
    assert bob.get(f"/v1/jobs/{job['id']}").status_code == 200
    assert bob.post("/v1/jobs/job-none/cancel").status_code == 404
    assert colleague.post(f"/v1/jobs/{job['id']}/cancel").json()["state"] == "CANCELLED"
    assert admin.post(f"/v1/jobs/{job['id']}/resume").json()["state"] == "WAITING"


def test_a_priority_above_0_is_an_administrators(caller: Caller) -> None:
    ada, admin = caller(Scope.SUBMIT), caller(Scope.ADMIN)
    answer = ada.post("/v1/jobs", json=JOB | {"priority": 1})
    assert_problem(answer, 403)
    assert "priority" in answer.json()["detail"]
    assert ada.post("/v1/jobs", json=JOB | {"priority": -10}).json()["priority"] == -10
    assert admin.post("/v1/jobs", json=JOB | {"priority": 10}).json()["priority"] == 10
    assert_problem(admin.post("/v1/jobs", json=JOB | {"priority": 11}), 422)


def test_a_quota_that_is_used_up_is_a_problem_with_its_numbers(caller: Caller) -> None:
    ada = caller(Scope.SUBMIT, owner="ada", quota=Quota(open_jobs=1))
    assert ada.post("/v1/jobs", json=JOB).status_code == 201
    answer = ada.post("/v1/jobs", json=JOB)
    assert_problem(answer, 403)
    document = answer.json()
    assert document["type"] == "urn:shapewright:quota-exceeded"
    assert (document["quota"], document["used"], document["asked"], document["limit"]) == ("open_jobs", 1, 1, 1)
    assert "cancel one" in document["remedy"]


def test_the_audit_trail_names_the_keys(caller: Caller, storage: Storage) -> None:
    ada, admin = caller(Scope.SUBMIT, owner="ada"), caller(Scope.ADMIN)
    job = ada.post("/v1/jobs", json=JOB).json()
    ada.post(f"/v1/jobs/{job['id']}/cancel")
    key = storage.list_keys()[0].id

    page = admin.get("/v1/audit", params={"subject": job["id"], "limit": 1}).json()
    rest = admin.get("/v1/audit", params={"subject": job["id"], "cursor": page["cursor"]}).json()

    result = page["items"] + rest["items"]
    assert [(each["actor"], each["action"]) for each in result] == [(key, "job.cancel"), (key, "job.create")]
    assert rest["cursor"] is None
