"""A Ray cluster of three nodes, one of which is killed in the middle of builds: no kernel is lost or blamed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.soak

KERNELS = 60
# In a process of its own: there is one connection to Ray in each.
SCRIPT = """
import json, sys, threading, time
import worker  # before Ray: it sets up its authentication
import ray
from ray.cluster_utils import Cluster as Nodes
from tests.measuring import TASK, kernel
from worker.building.cluster import Cluster
from worker.building.ray_builder import RayBuilder

def build(task, kernel):
    import ray, time
    from tuner.library.package import CompiledKernel
    time.sleep(0.5)
    return CompiledKernel(ray.get_runtime_context().get_node_id().encode())

here = {"num_cpus": 1}
nodes = Nodes(initialize_head=True, head_node_args={**here, "include_dashboard": False})
others = [nodes.add_node(**here) for _ in range(2)]
from pathlib import Path
cluster = Cluster(Path(sys.argv[1]), nodes.address)
builder = RayBuilder(lambda task, kernel: build(task, kernel), actors=cluster.cores, alive=cluster.alive)
warm = builder.build(TASK, [kernel(-1 - number) for number in range(6)])
before = cluster.cores()
threading.Timer(2.0, lambda: nodes.remove_node(others[0], allow_graceful=False)).start()
results = builder.build(TASK, [kernel(number) for number in range(int(sys.argv[2]))])
time.sleep(6.0)
answer = {
    "cores": [before, cluster.cores()],
    "kernels": [result.kernel["number"] for result in results],
    "errors": [result.error for result in results if result.error],
    "nodes": len({result.binary for result in results}),
}
print(json.dumps(answer), flush=True)
builder.close()
cluster.stop()
nodes.shutdown()
"""


def test_builds_go_on_when_a_node_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("nodes")), str(KERNELS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["kernels"] == list(range(KERNELS))
    assert answer["errors"] == []
    assert answer["nodes"] == 3
    assert answer["cores"] == [3, 2]
