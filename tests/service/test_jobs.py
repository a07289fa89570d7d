"""Submitting jobs and following them, over real storage."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.jobs.service import on_device
from tests.serving import JOB, assert_problem, lease
from tuner.program.job.jobspec import parse_job
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import Target, native
from tuner.records import NUMPY, Baseline, Baselines, ErrorKind, MeasureResult, Roof
from tuner.schedule.space import MicroKernel
from tuner.storage import Device, DeviceState, JobState, NewEvent
from tuner.storage.sql import Storage


def job(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**JOB, **changes}.items() if value is not ...}


def workload(**changes: Any) -> dict[str, Any]:
    return {**JOB["workload"], **changes}


def test_a_job_is_stored_with_the_target_of_its_device(api: TestClient, storage: Storage) -> None:
    answer = api.post("/v1/jobs", json=JOB)
    assert answer.status_code == 201
    made = answer.json()
    assert made["state"] == "WAITING"
    assert made["spec"] == JOB
    assert answer.headers["Location"] == f"/v1/jobs/{made['id']}"
    [task] = storage.search_tasks(made["id"])
    assert made["workload_keys"] == [task.workload_key]
    assert task.task.target == native()
    assert api.get(answer.headers["Location"]).json() == made


def test_yaml_and_json_say_the_same(api: TestClient) -> None:
    headers = {"Content-Type": "application/yaml", "Idempotency-Key": "k1"}
    first = api.post("/v1/jobs", content=yaml.safe_dump(JOB), headers=headers)
    assert first.status_code == 201
    assert api.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k1"}).json()["id"] == first.json()["id"]


def test_several_workloads_are_one_task_each(api: TestClient) -> None:
    matmul = {"op": "matmul", "args": {"m": "T", "n": 64, "k": 64}, "count": 3}
    made = api.post("/v1/jobs", json=job(workload=..., workloads=[JOB["workload"], matmul])).json()
    assert [task["count"] for task in made["tasks"]] == [1, 3]
    assert len(made["workload_keys"]) == 2


SUMS = "*".join(f"({'+'.join(chr(0x4E00 + 9 * factor + term) for term in range(9))})" for factor in range(10))
MANY = [f"v{number}" for number in range(40)]
BAD_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown op": (job(workload=workload(op="dens")), "workload.op"),
    "bad dim": (job(workload=workload(args={"m": "16*open('x')", "n": 1, "k": 1})), "workload.args.m"),
    "missing dim": (job(workload=workload(args={"m": "T"})), "workload.args"),
    "undeclared variable": (job(workload=workload(args={"m": "S", "n": 1, "k": 1})), "workload.args.m"),
    "dim that explodes": (job(workload=workload(args={"m": SUMS, "n": 1, "k": 1})), "workload.args.m"),
    "too many variables": (
        job(
            workload=workload(args={"m": "+".join(MANY), "n": 1, "k": 1}),
            shape_vars={name: {"min": 1, "max": 2} for name in MANY},
            instances=...,
        ),
        "shape_vars",
    ),
    "epilogue that is no list": (job(workload=workload(epilogue=5)), "workload.epilogue"),
    "reversed range": (job(shape_vars={"T": {"min": 128, "max": 1}}), "shape_vars.T"),
    "empty range": (job(shape_vars={"T": {"values": []}}), "shape_vars.T"),
    "endless range": (job(shape_vars={"T": {"min": 0, "max": 2**63 - 1}}), "shape_vars.T"),
    "negative weight": (job(instances=[{"T": 5, "weight": -1}]), "instances[0].weight"),
    "weight that is no number": (job(instances=[{"T": 5, "weight": "nan"}]), "instances[0].weight"),
    "instance outside the range": (job(instances=[{"T": 5}, {"T": 129}]), "instances[1].T"),
    "unknown target kind": (job(target={"kind": "metal"}), "target.kind"),
    "trials of a GPU": (job(target={"kind": "cuda", "arch": "sm_90"}), "budget.trials"),
    "made-up hardware": (job(target={"kind": "llvm", "hardware": {"wings": 2}}), "target.hardware"),
    "unregistered device": (job(device="moon"), "device"),
    "negative budget": (job(budget={"trials": -1}), "budget.trials"),
    "no budget": (job(budget=...), "budget"),
    "too many tasks": (job(workload=..., workloads=[JOB["workload"]] * 300), "workloads"),
    "unknown field": (job(bugdet={"trials": 1}), "bugdet"),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_refused_job_names_the_field_and_stores_nothing(api: TestClient, name: str) -> None:
    body, field = BAD_JOBS[name]
    answer = api.post("/v1/jobs", json=body)
    assert_problem(answer, 422)
    document = answer.json()
    assert document["field"] == field
    assert document["problem"]
    assert document["remedy"]
    assert api.get("/v1/jobs").json()["items"] == []


def test_an_unregistered_device_is_refused_with_the_keys_that_did(api: TestClient, storage: Storage) -> None:
    storage.register_device("rack-1", "rack", native(), {})
    answer = api.post("/v1/jobs", json=job(device="moon")).json()
    assert "'moon'" in answer["problem"]
    assert "local, rack" in answer["remedy"]


def test_where_devices_share_a_key_the_one_seen_last_says_what_native_is() -> None:
    def device(number: int, mcpu: str, seen_at: str) -> Device:
        target = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
        return Device(f"rack-{number}", "rack", target, DeviceState.READY, {}, "2026-01-01T00:00:00Z", seen_at)

    devices = [device(1, "znver4", "2026-01-02T00:00:00Z"), device(2, "haswell", "2026-01-03T00:00:00Z")]
    for order in (devices, devices[::-1]):
        [task] = on_device(parse_job(job(device="rack")), order).tasks
        assert task.target is not None
        assert task.target.mcpu == "haswell"
    given = job(device="rack", target={"kind": "llvm", "mcpu": "znver4"})
    [task] = on_device(parse_job(given), devices).tasks
    assert task.target is not None
    assert task.target.mcpu == "znver4"


LAUGHS = "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"
BAD_BODIES = {
    "not JSON": ("application/json", b'{"name": '),
    "NaN": ("application/json", json.dumps(JOB).replace("16}", "NaN}").encode()),
    "infinite": ("application/json", json.dumps(JOB).replace("16}", "1e999}").encode()),
    "repeated key": ("application/json", b'{"name": "a", "name": "b"}'),
    "deep JSON": ("application/json", b"[" * 100_000),
    "deep, closed JSON": ("application/json", b"[" * 500 + b"]" * 500),
    "long number": ("application/json", b'{"seed": 1' + b"0" * 10_000 + b"}"),
    "surrogate": ("application/json", b'{"name": "\\ud800"}'),
    "not UTF-8": ("application/json", b'{"name": "\xff"}'),
    "a list": ("application/json", b"[]"),
    "empty": ("application/json", b""),
    "not YAML": ("application/yaml", b"a: [1, 2"),
    "repeated YAML key": ("application/yaml", b"name: a\nname: b\n"),
    "YAML NaN": ("application/yaml", b"budget: {seconds: .nan}"),
    "YAML object": ("application/yaml", b"!!python/object/apply:os.system ['true']"),
    "YAML aliases": ("application/yaml", LAUGHS.encode()),
    "deep YAML": ("application/yaml", b"[" * 10_000),
    "YAML tag": ("application/yaml", b"name: !!binary aGk="),
    "YAML directive": ("application/yaml", b"%YAML 1.1\n---\nname: a"),
    "YAML long number": ("application/yaml", b"seed: " + b"9" * 10_000),
    "keys that are no text": ("application/yaml", b"1: 2"),
    "two documents": ("application/yaml", b"a: 1\n---\nb: 2\n"),
    "NUL": ("application/yaml", b'name: "a\\0"'),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_cannot_be_read_is_refused_with_a_reason(api: TestClient, name: str) -> None:
    media_type, body = BAD_BODIES[name]
    answer = api.post("/v1/jobs", content=body, headers={"Content-Type": media_type})
    assert_problem(answer, 422)
    assert len(answer.json()["problem"]) > 10


@pytest.mark.parametrize("media_type", ["text/plain", ""])
def test_another_media_type_is_refused_with_those_that_are_not(api: TestClient, media_type: str) -> None:
    answer = api.post("/v1/jobs", content=b"{}", headers={"Content-Type": media_type})
    assert_problem(answer, 415)
    assert "application/yaml" in answer.json()["detail"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_content_of_a_field_is_a_defect(api: TestClient, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from([*JOB, "workloads", "target", "targets", "threads", "device", "seed", "policy"]))
    body = dict(JOB)
    if data.draw(st.booleans()) and isinstance(body.get(field), dict):
        inner = data.draw(st.sampled_from([*body[field], "epilogue", "dtype", "min", "values"]))
        body[field] = {**body[field], inner: data.draw(PLAIN)}
    else:
        body[field] = data.draw(PLAIN)
    answer = api.post("/v1/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 422), answer.text


def test_the_same_key_and_body_give_the_same_job(api: TestClient) -> None:
    first, second = (api.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k1"}) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json()["id"] == second.json()["id"]
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(api.get("/v1/jobs").json()["items"]) == 1


def test_the_same_key_with_another_body_is_refused(api: TestClient) -> None:
    api.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k1"})
    answer = api.post("/v1/jobs", json=job(seed=1), headers={"Idempotency-Key": "k1"})
    assert_problem(answer, 422)
    assert answer.json()["field"] == "Idempotency-Key"
    assert len(api.get("/v1/jobs").json()["items"]) == 1


def test_another_owner_may_use_the_same_idempotency_key(api: TestClient, storage: Storage) -> None:
    first = api.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "k1"}).json()
    other = {"Authorization": f"Bearer {storage.create_key('other')[1]}", "Idempotency-Key": "k1"}
    second = api.post("/v1/jobs", json=job(seed=1), headers=other)
    assert second.status_code == 201
    assert second.json()["id"] != first["id"]


@pytest.mark.parametrize("given_key", ["", "x" * 300])
def test_an_idempotency_key_has_a_form(api: TestClient, given_key: str) -> None:
    assert_problem(api.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": given_key}), 422)


def test_lists_go_on_at_their_cursor(api: TestClient) -> None:
    made = [api.post("/v1/jobs", json=job(seed=seed)).json()["id"] for seed in range(5)]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


def test_lists_can_be_of_one_state(api: TestClient) -> None:
    kept, stopped = (api.post("/v1/jobs", json=JOB).json()["id"] for _ in range(2))
    assert api.post(f"/v1/jobs/{stopped}/cancel").json()["state"] == "CANCELLED"
    for state, result in (("WAITING", kept), ("CANCELLED", stopped)):
        [item] = api.get("/v1/jobs", params={"state": state}).json()["items"]
        assert item["id"] == result


@pytest.mark.parametrize("query", ["cursor=nonsense", "state=DONE", "limit=0", "limit=x", "limit=100000"])
def test_a_query_that_means_nothing_is_refused(api: TestClient, query: str) -> None:
    answer = api.get(f"/v1/jobs?{query}")
    assert_problem(answer, 422)
    assert answer.json()["field"] == query.partition("=")[0]


def test_cancel_and_resume(api: TestClient) -> None:
    path = f"/v1/jobs/{api.post('/v1/jobs', json=JOB).json()['id']}"
    assert_problem(api.post(f"{path}/resume"), 409)
    assert api.post(f"{path}/cancel").json()["state"] == "CANCELLED"
    assert_problem(api.post(f"{path}/cancel"), 409)
    assert api.post(f"{path}/resume").json()["state"] == "WAITING"


@pytest.mark.parametrize("path", ["", "/trials", "/events"])
def test_a_job_that_is_not_there_is_not_found(api: TestClient, path: str) -> None:
    assert_problem(api.get(f"/v1/jobs/job-0{path}"), 404)


@pytest.mark.parametrize("path", ["/v1/jobs/{}", "/v1/jobs/{}/trials", "/v1/jobs/{}/events", "/jobs/{}"])
def test_addresses_have_whole_ids_and_say_where_a_part_is_looked_for(api: TestClient, path: str) -> None:
    """Which job `latest` or a part of an id means changes; a link means one job for good."""
    whole = api.post("/v1/jobs", json=JOB).json()["id"]
    for part in (whole.removeprefix("job-"), whole[-6:]):
        assert_problem(answer := api.get(path.format(part)), 404)
        refused = answer.json()
        assert refused["problem"] == f"no job {part!r}"
        assert refused["remedy"].startswith("addresses have whole ids; ")
        found = api.get(refused["remedy"].split()[4]).json()["items"]
        assert [job["id"] for job in found] == [whole]
    assert api.get(path.format("latest")).json()["remedy"].endswith("/v1/jobs lists the newest job first")
    assert "remedy" not in api.get(path.format("job-" + "0" * 19)).json()
    page = api.get(f"/jobs/{whole[-6:]}", headers={"Accept": "text/html"})
    assert page.status_code == 404 and f'<a href="/?q=id%3A{whole[-6:]}">Look for the job</a>' in page.text


def test_trials_go_on_after_the_last_one_seen(api: TestClient, storage: Storage) -> None:
    job_id = api.post("/v1/jobs", json=JOB).json()["id"]
    held = lease(storage)
    results = [
        MeasureResult(MicroKernel("r", 1, (("a", index),)), WorkloadInstance.of({"T": 5}), 1e-3, device="rack:local")
        for index in range(5)
    ]
    broken = MeasureResult(
        MicroKernel("r", 1, (("a", 9),)), WorkloadInstance.of({"T": 5}), error_kind=ErrorKind.CRASH, error="signal 11"
    )
    storage.append_results(held, held.tasks[0].id, [*results, broken], [NewEvent("trials", {"trials": 6})])
    first = api.get(f"/v1/jobs/{job_id}/trials", params={"limit": 4}).json()
    rest = api.get(f"/v1/jobs/{job_id}/trials", params={"after": first["after"]}).json()
    trials = first["items"] + rest["items"]
    assert [trial["kernel"]["values"]["a"] for trial in trials] == [0, 1, 2, 3, 4, 9]
    assert [trial["latency_s"] for trial in trials] == [1e-3] * 5 + [None]
    assert [trial["device"] for trial in trials] == ["rack:local"] * 5 + [None]
    assert (trials[-1]["error_kind"], trials[-1]["error"]) == ("crash", "signal 11")
    end = api.get(f"/v1/jobs/{job_id}/trials", params={"after": rest["after"]}).json()
    assert end == {"items": [], "after": rest["after"]}


def test_a_job_shows_what_its_kernels_are_compared_with(api: TestClient, storage: Storage) -> None:
    path = f"/v1/jobs/{api.post('/v1/jobs', json=JOB).json()['id']}"
    assert api.get(path).json()["tasks"][0]["baselines"] == {"points": [], "roof": None, "blas": None}
    held = lease(storage)
    point = Baseline(NUMPY, WorkloadInstance.of({"T": 5}, 2.0), 1e-3, 3e-6)
    storage.save_baselines(held, held.tasks[0].id, Baselines((point,), Roof(2e11, 3e10)))
    assert api.get(path).json()["tasks"][0]["baselines"] == {
        "points": [{"name": "numpy", "instance": {"T": 5, "weight": 2.0}, "latency_s": 1e-3, "anchor_s": 3e-6}],
        "roof": {"flops_per_s": 2e11, "bytes_per_s": 3e10, "anchor_s": None},
        "blas": None,
    }


def test_a_finished_job_shows_its_summary(api: TestClient, storage: Storage) -> None:
    job_id = api.post("/v1/jobs", json=JOB).json()["id"]
    storage.finish_job(lease(storage), JobState.COMPLETED, summary={"gain": 1.5})
    answer = api.get(f"/v1/jobs/{job_id}").json()
    assert (answer["state"], answer["summary"]) == ("COMPLETED", {"gain": 1.5})
