"""A job with trials for a GPU, from its submission to lookups: its kernels run on a device with a stand-in for the
driver, as small programs in C that take the longer the smaller their tiles are."""

from __future__ import annotations

import pickle
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.gpu_measuring import H100, gpu_device
from tests.searching import quick_policies
from tests.serving import lease
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.gpu.build import build_gpu_library
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import Builder, BuildResult, Runner
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule import emit
from tuner.schedule.gpu.cubin import SCRATCH_POINTERS, Cubin
from tuner.schedule.space import MicroKernel
from tuner.storage import JobState
from tuner.storage.sql import Storage
from worker.jobs.runner import JobRunner

N, K = 64, 32
JOB: dict[str, Any] = {
    "name": "a product on a GPU",
    "workload": {"op": "matmul", "args": {"m": "8*T", "n": N, "k": K}},
    "shape_vars": {"T": {"min": 1, "max": 16}},
    "instances": [{"T": 2}, {"T": 16}],
    "target": {"kind": "cuda", "product": "h100"},
    "device": "h100",
    "budget": {"trials": 24},
}
_SOURCE = """
#include <stdint.h>
enum { N = %(n)d, K = %(k)d, ROWS = %(rows)d };
int %(name)s(const unsigned *grid, void **parameters, uint64_t *ns) {
  float *out = *(float **)parameters[%(out)d], *x = *(float **)parameters[%(x)d], *y = *(float **)parameters[%(y)d];
  const int m = *(int *)parameters[3];
  *ns = 1000 + 4000 * (uint64_t)((m + ROWS - 1) / ROWS) / ROWS;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = 0;
      for (int p = 0; p < K; ++p) sum += x[i * K + p] * y[p * N + j];
      out[i * N + j] = sum;
    }
  return 0;
}
"""


@cache
def compiled(**facts: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        source.write_text(_SOURCE % facts)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(binary), str(source)], check=True, timeout=60)
        return binary.read_bytes()


class Compiler:
    """A ``Builder`` whose machine code the stand-in runs. It refuses what takes several launches, or tensor maps."""

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        return [self._built(task, kernel) for kernel in kernels]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        task = dispatcher.task
        made = [(emit(task, each, each.id), pickle.loads(objects[each])) for each in dispatcher.kernels]
        return build_gpu_library(dispatcher, made, job_id)

    def close(self) -> None:
        """Nothing was started."""

    def _built(self, task: SearchTask, kernel: MicroKernel) -> BuildResult:
        module = emit(task, kernel, kernel.id)
        launches = module.launches
        if len(launches) > 1 or launches[0].function.descriptors:
            return BuildResult(kernel, None, 0.0, ErrorKind.BUILD, "kernel_0 spills 8 bytes")
        function = launches[0].function
        places = {name: place for place, name in enumerate(function.pointers)}
        code = compiled(name=function.name, n=N, k=K, rows=kernel["block_m"], **places)
        sizes = (8, 8, 8, *(4,) * len(function.symbols), *(8,) * SCRATCH_POINTERS)
        cubins = [Cubin(function.name, code, "", 0, 32, 0, launches[0].num_warps, "sm_90", sizes)]
        made = build_gpu_library(Dispatcher(task, (kernel,), 0, Leaf(0)), [(module, cubins)])
        return BuildResult(kernel, made.files[LIBRARY], 0.01, code=pickle.dumps(cubins))


class Tools:
    """A worker's tools, with one device, on a GPU."""

    def __init__(self, device: LocalDevice) -> None:
        self._device = device

    def builder(self) -> Builder:
        return Compiler()

    def runner(self, key: str) -> Runner:
        return RunnerPool(lambda: {0: lambda: RpcRunner(self._device.connect)})

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


def test_a_job_that_no_device_of_its_key_can_measure_is_refused(api: TestClient, storage: Storage) -> None:
    answer = api.post("/v1/jobs", json={**JOB, "device": "local"}).json()
    assert answer["field"] == "budget.trials"
    storage.register_device("rack-1", "h100", H100, {})
    other = {**JOB, "target": {"kind": "cuda", "product": "h200"}}
    answer = api.post("/v1/jobs", json=other).json()
    assert "h200 (sm_90, 132 SMs, 4800 GB/s), those of key 'h100' run it for cuda: h100" in str(answer)
