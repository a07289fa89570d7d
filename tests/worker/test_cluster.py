"""A cluster that somebody else started: a worker notices when the node beside it is gone, and ends none itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# In a process of its own: there is one connection to Ray in each.
SCRIPT = """
import json, sys, time
import worker  # before Ray: it sets up its authentication
from pathlib import Path
from ray.cluster_utils import Cluster as Nodes
from worker.cluster import Cluster

nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
first = Cluster(Path(sys.argv[1]), nodes.address)
answer = {"alive": first.alive(), "own": first.is_own}
first.stop()
again = Cluster(Path(sys.argv[1]), nodes.address)
answer["outlives_a_worker"] = again.alive()
nodes.head_node.kill_raylet()
until = time.monotonic() + 30
while again.alive() and time.monotonic() < until:
    time.sleep(0.1)
answer["notices"] = not again.alive()
print(json.dumps(answer), flush=True)
again.stop()
nodes.shutdown()
"""


def test_a_node_that_is_gone_is_noticed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    # Ray prints, too.
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"alive"')]
    assert len(answers) == 1, done.stdout[-2000:] + done.stderr[-2000:]
    # What its processes print may follow on the same line.
    assert json.JSONDecoder().raw_decode(answers[0])[0] == {
        "alive": True,
        "own": False,
        "outlives_a_worker": True,
        "notices": True,
    }


OWN = """
import json, os, sys, tempfile
import worker  # before Ray: it sets up its authentication
from pathlib import Path
import ray
from worker.cluster import Cluster

before = os.environ.get("TMPDIR")
cluster = Cluster(Path(sys.argv[1]), cores=1)
made = ray.get(ray.remote(lambda: tempfile.mkdtemp()).remote())
answer = {"there": Path(made).exists(), "kept": os.environ.get("TMPDIR") == before}
cluster.stop()
print(json.dumps({**answer, "gone": not Path(made).exists()}), flush=True)
"""


def test_what_a_build_leaves_in_its_temporary_folder_goes_with_the_cluster(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"there": True, "kept": True, "gone": True}
