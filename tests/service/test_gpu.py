"""A job for a GPU from its submission to lookups, on a service that has no GPU: nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.searching import THEORY, quick_policies
from tests.serving import lease
from tuner.library.dispatcher import Dispatcher
from tuner.measure import Builder, NotMeasured, Runner
from tuner.measure._base import never
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder, SimulatedRunner
from tuner.program.job.task import SearchTask
from tuner.search.policy import shortlist
from tuner.storage import JobState
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner

A100 = {"kind": "cuda", "arch": "sm_80"}
WORKLOADS: list[dict[str, Any]] = [
    {"op": "dense", "args": {"m": "16*T", "n": 768, "k": 768}, "dtype": "float16"},
    {"op": "softmax", "args": {"m": "16*T", "n": 1024}},
]
JOB: dict[str, Any] = {
    "name": "layers on a GPU",
    "workloads": WORKLOADS,
    "shape_vars": {"T": {"min": 1, "max": 64}},
    "instances": [{"T": 1}, {"T": 64}],
    "target": A100,
    "budget": {"trials": 0},
}


class OfCpu(SimulatedRunner):
    """Runs nothing for GPUs."""

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        raise NotMeasured("device one runs code for llvm (znver4), the task is for cuda (sm_80)")


class Devices:
    """A worker's tools, where no device runs code for GPUs."""

    def __init__(self) -> None:
        self.fleet = Fleet(1)

    def builder(self) -> Builder:
        return SimulatedBuilder()

    def runner(self, key: str) -> Runner:
        return RunnerPool(lambda: {0: lambda: OfCpu(self.fleet)})

    def parallel_builds(self, key: str, threads: int) -> int:
        return 1


@pytest.fixture
def job(api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job that was submitted, and ended."""
    quick_policies(monkeypatch)
    monkeypatch.setattr("tuner.search.search.shortlist", partial(shortlist, settings=THEORY))
    submitted = api.post("/v1/jobs", json=JOB)
    assert submitted.status_code == 201, submitted.text
    assert JobRunner(storage, Devices()).run(lease(storage)) is JobState.COMPLETED
    found: dict[str, Any] = api.get(f"/v1/jobs/{submitted.json()['id']}").json()
    return found


def test_a_job_without_trials_ends_with_libraries_that_lookups_find_and_no_page_minds_a_gpu(
    api: TestClient, job: dict[str, Any]
) -> None:
    assert (job["state"], job["trials"]) == ("COMPLETED", 0)
    logs = "\n".join(str(line) for line in api.get(f"/v1/jobs/{job['id']}/logs").json()["items"])
    assert "20 of 20 kernels that theory prefers fit the hardware" in logs
    assert "the library is not verified: device one runs code for llvm (znver4), the task is for cuda (sm_80)" in logs
    for task in api.get(f"/v1/jobs/{job['id']}/tasks").json()["items"]:
        key, asked = task["workload_key"], {"target": task["target_fingerprint"]}
        assert asked["target"].startswith("cuda-sm_80-")
        dispatcher = Dispatcher.from_json(api.get(f"/v1/workloads/{key}/dispatcher", params=asked).json())
        best = api.get(f"/v1/workloads/{key}/best", params={**asked, "shape": "T=37"}).json()
        assert best["kernel"]["id"] == dispatcher.kernel_for({"T": 37}).id
        assert (best["latency_s"], best["match"]) == (None, "dispatched")
        assert best["predicted_latency_s"] > 0
        assert api.get(f"/v1/workloads/{key}/library", params=asked).status_code == 200
        libraries = api.get(f"/v1/workloads/{key}/libraries", params=asked).json()["items"]
        assert [each["job_id"] for each in libraries] == [job["id"]]
    _all_routes_answer(api, job)
    _many_questions_name_the_gpu(api, job)


def _all_routes_answer(api: TestClient, job: dict[str, Any]) -> None:
    of_job, key = f"/v1/jobs/{job['id']}", job["workload_keys"][0]
    figures = [each["name"] for each in api.get(f"{of_job}/figures").json()["items"]]
    assert "roofline" in figures
    routes = [
        *(f"{of_job}/figures/{name}" for name in figures),
        *(f"{of_job}/{what}" for what in ("coordinates", "layers", "libraries", "spec", "trials", "trials/facets")),
        *(f"/v1/workloads/{key}{what}" for what in ("", "/jobs", "/figures/latency_by_shape")),
        "/v1/workloads", "/v1/filters", "/v1/records", "/",
        f"/jobs/{job['id']}", f"/jobs/{job['id']}/model", f"/fragments/jobs/{job['id']}/instances", f"/workloads/{key}",
    ]  # fmt: skip
    answers = {route: api.get(route).status_code for route in routes}
    assert {route: status for route, status in answers.items() if status != 200} == {}


def _many_questions_name_the_gpu(api: TestClient, job: dict[str, Any]) -> None:
    """As an instruction set, or as the product that stands for it; another product has no library."""
    query = {"workload": WORKLOADS[0], "shape": {"T": 37}}
    targets = (A100, {"kind": "cuda", "product": "a100"}, {"kind": "cuda", "product": "a100-80gb"})
    answers = api.post("/v1/lookup", json={"queries": [{**query, "target": each} for each in targets]}).json()[
        "answers"
    ]
    found = [(answer.get("best") or {}).get("job_id") for answer in answers]
    assert found == [job["id"], job["id"], None]


def test_explain_says_what_a_gpu_searches(api: TestClient) -> None:
    (dense, _) = api.post("/v1/explain", json=JOB).json()["tasks"]
    assert dense["rule"] == "gpu"
    assert "Triton" in dense["why"]
    assert {"block_m", "split_k", "stages"} <= {axis["name"] for axis in dense["axes"]}
    assert "not cuda" in dense["passed_over"]["x86_contraction"]
