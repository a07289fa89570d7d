"""Job files before they are submitted: checked, explained, and what operators there are. Nothing is stored."""

from __future__ import annotations

import json

from click.testing import CliRunner
from fastapi.testclient import TestClient

from shapewright.cli.main import cli
from tests.searched import SMALL
from tests.serving import assert_problem
from tuner.program.job.schema import job_schema
from tuner.storage import NewKey, Scope
from tuner.storage.sql import Storage

JOB = {name: value for name, value in SMALL.items() if name != "instances"}
YAML = {"Content-Type": "application/yaml"}


def test_a_job_is_checked_as_it_would_be_submitted(api: TestClient, storage: Storage) -> None:
    answer = api.post("/v1/validate", json=JOB).json()

    assert (answer["valid"], answer["name"], answer["task_count"]) == (True, "a small layer", 1)
    [task] = answer["tasks"]
    assert (task["shapes"], task["instances"], task["count"]) == (32, 8, 1)
    assert task["rule"] == api.post("/v1/explain", json=JOB).json()["tasks"][0]["rule"]
    assert storage.list_jobs().items == ()
    assert storage.list_workloads().items == ()

    wrong = JOB | {"budget": {}}
    refused, submitted = api.post("/v1/validate", json=wrong), api.post("/v1/jobs", json=wrong)
    assert_problem(refused, 422)
    assert refused.json()["detail"] == submitted.json()["detail"]
    assert "budget" in refused.json()["detail"]
    assert_problem(api.post("/v1/validate", content="a: [", headers=YAML), 422)
    assert_problem(api.post("/v1/validate", content="x", headers={"Content-Type": "text/plain"}), 415)


def test_a_job_is_explained_as_the_command_line_does(api: TestClient, storage: Storage) -> None:
    workloads = [JOB["workload"] | {"count": 3}, {"op": "softmax", "args": {"m": "T", "n": 64}}]
    job = {name: value for name, value in JOB.items() if name != "workload"} | {"workloads": workloads}

    answer = api.post("/v1/explain", content=json.dumps(job), headers=YAML).json()

    first, second = answer["tasks"]
    assert (first["rule"], second["rule"]) == (first["rules"][0]["name"], "row_reduction")
    assert first["why"] == first["rules"][0]["why"] != ""
    assert first["axes"][0].keys() == {"name", "shown", "doc", "choices", "rule"}
    assert all(axis["doc"] for axis in first["axes"])
    assert second["passed_over"].keys() >= {first["rule"], "attention"}
    assert first["size"] > 1000


def test_operators_are_those_that_the_command_line_lists(api: TestClient) -> None:
    listed = api.get("/v1/ops").json()
    told = json.loads(CliRunner().invoke(cli, ["ops", "--json"]).stdout)
    assert listed == told
    dense = next(op for op in listed if op["name"] == "dense")
    assert dense.keys() >= {"name", "args", "layouts", "dtypes", "rule"}


def test_reading_is_enough_and_needed(api: TestClient, storage: Storage) -> None:
    _, secret = storage.create_key("eve", made=NewKey((Scope.READ,), "eve"))
    eve = {"Authorization": f"Bearer {secret}"}
    for path in ("/v1/validate", "/v1/explain"):
        assert api.post(path, json=JOB, headers=eve).status_code == 200
        assert_problem(api.post(path, json=JOB, headers={"Authorization": "Bearer wrong"}), 401)
    assert api.get("/v1/ops", headers=eve).status_code == 200


def test_the_schema_of_job_files_is_served(api: TestClient) -> None:
    answer = api.get("/v1/schemas/job.json")
    assert answer.headers["Content-Type"] == "application/schema+json"
    assert answer.json() == job_schema()
