"""A job with trials for a GPU, from its submission to lookups: its kernels run on a device with a stand-in for the
driver, as small programs in C that take the longer the smaller their tiles are."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.gpu_measuring import H100, Compiler, gpu_device
from tests.searching import in_symbols, quick_policies
from tests.serving import lease
from tests.tuner.search.test_gpu import Unable
from tuner.library.package import check_files, dispatcher_of
from tuner.measure import Builder, Runner
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.job.jobspec import parse_job
from tuner.records import MeasureResult
from tuner.schedule import space_of
from tuner.storage import JobState
from tuner.storage.jsonl import SharedRecord
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner

JOB: dict[str, Any] = {
    "name": "a product on a GPU",
    "workload": {"op": "matmul", "args": {"m": "8*T", "n": 64, "k": 32}},
    "shape_vars": {"T": {"min": 1, "max": 16}},
    "instances": [{"T": 2}, {"T": 16}],
    "target": {"kind": "cuda", "product": "h100"},
    "device": "h100",
    "budget": {"trials": 40},
}


class Tools:
    """A worker's tools, with one device, on a GPU, or none."""

    def __init__(self, device: LocalDevice | None) -> None:
        self._device = device

    def builder(self) -> Builder:
        return Compiler()

    def runner(self, key: str) -> Runner:
        device = self._device
        return Unable() if device is None else RunnerPool(lambda: {0: lambda: RpcRunner(device.connect)})  # type: ignore[return-value]

    def parallel_builds(self, key: str, threads: int) -> int:
        return 1


@pytest.fixture
def device(fake_cuda: Path, tmp_path: Path, storage: Storage) -> Iterator[LocalDevice]:
    storage.register_device("rack-1", "h100", H100, {})
    with gpu_device(fake_cuda, tmp_path) as served:
        yield served


def test_a_search_is_measured_on_a_gpu_and_found_by_lookups(
    api: TestClient, storage: Storage, device: LocalDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_policies(monkeypatch)
    submitted = api.post("/v1/jobs", json=JOB)
    assert submitted.status_code == 201, submitted.text
    state = JobRunner(storage, Tools(device)).run(lease(storage))
    job = api.get(f"/v1/jobs/{submitted.json()['id']}").json()
    assert state is JobState.COMPLETED, job["error"]
    (task,) = api.get(f"/v1/jobs/{job['id']}/tasks").json()["items"]
    trials = api.get(f"/v1/jobs/{job['id']}/trials").json()["items"]
    measured = [each for each in trials if each["latency_s"]]
    assert len(measured) >= 8
    assert {each["device"] for each in measured} == {f"{socket.gethostname()}:local:gpu0"}
    key, asked = task["workload_key"], {"target": task["target_fingerprint"]}
    assert asked["target"].startswith("cuda-sm_90-")
    best = api.get(f"/v1/workloads/{key}/best", params={**asked, "shape": "T=16"}).json()
    fastest = min(each["latency_s"] for each in measured if each["instance"]["T"] == 16)
    assert best["latency_s"] == pytest.approx(fastest, rel=0.05)
    library = api.get(f"/v1/workloads/{key}/library", params=asked)
    assert library.status_code == 200
    logs = "\n".join(str(line) for line in api.get(f"/v1/jobs/{job['id']}/logs").json()["items"])
    assert "not verified" not in logs


def test_a_job_without_trials_is_chosen_by_the_records_that_it_is_given(
    api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `shapewright tune --measured` gives them; of its own records a job without trials reads none."""
    quick_policies(monkeypatch)
    submitted = api.post("/v1/jobs", json={**JOB, "device": "local", "budget": {"trials": 0}})
    assert submitted.status_code == 201, submitted.text
    task = parse_job(JOB).tasks[0]
    rng, space = np.random.default_rng(0), space_of(task)
    built = Compiler().build(task, list(dict.fromkeys(space.sample(rng) for _ in range(24))))
    best, *others = [build.kernel for build in built if build.binary is not None]
    results = [
        MeasureResult(each, at, 1e-6 if each == best else 1e-3) for each in (*others, best) for at in task.instances
    ]
    shared = [SharedRecord(task.workload.canonical, H100, each) for each in in_symbols(results, task)]
    state = JobRunner(storage, Tools(None), shared=shared).run(lease(storage))
    job = api.get(f"/v1/jobs/{submitted.json()['id']}").json()
    assert state is JobState.COMPLETED, job["error"]
    ((_, library),) = storage.libraries_of_job(job["id"])
    files = storage.artifact_files(library.digest)
    dispatcher = dispatcher_of(files, check_files(files))
    assert {dispatcher.kernel_for({"T": size}) for size in (2, 16)} == {best}
    assert job["trials"] == 0
    logs = str(api.get(f"/v1/jobs/{job['id']}/logs").json()["items"])
    assert f"by {len(results)} earlier measurements" in logs
    assert "the library is not verified" in logs


def test_a_job_that_no_device_of_its_key_can_measure_is_refused(api: TestClient, storage: Storage) -> None:
    answer = api.post("/v1/jobs", json={**JOB, "device": "local"}).json()
    assert answer["field"] == "budget.trials"
    storage.register_device("rack-1", "h100", H100, {})
    other = {**JOB, "target": {"kind": "cuda", "product": "h200"}}
    answer = api.post("/v1/jobs", json=other).json()
    assert "h200 (sm_90, 132 SMs, 4800 GB/s), those of key 'h100' run it for cuda: h100" in str(answer)
