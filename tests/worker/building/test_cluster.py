"""A cluster that somebody else started: a worker notices when the node beside it is gone, and ends none itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.errors import InvalidInput
from worker.building import cluster

# In a process of its own: there is one connection to Ray in each.
SCRIPT = """
import json, sys, time
import worker  # before Ray: it sets up its authentication
from pathlib import Path
from ray.cluster_utils import Cluster as Nodes
from worker.building.cluster import Cluster

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


def test_a_daemon_that_has_ended_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    connected = cluster.Cluster.__new__(cluster.Cluster)
    with subprocess.Popen(["sleep", "100"]) as one, subprocess.Popen(["sleep", "100"]) as other:
        connected._daemons = [psutil.Process(one.pid), psutil.Process(other.pid)]
        assert connected.alive()
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert not connected.alive(), "a process that nobody has waited for"
        other.wait()
        assert not connected.alive()
        one.kill()


@pytest.mark.soak
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
from worker.building.cluster import Cluster

before = os.environ.get("TMPDIR")
cluster = Cluster(Path(sys.argv[1]), cores=1)
made = ray.get(ray.remote(lambda: tempfile.mkdtemp()).remote())
answer = {"there": Path(made).exists(), "kept": os.environ.get("TMPDIR") == before}
closed = [folder for folder in Path(made).parents if not folder.stat().st_mode & 0o077 and "ray-" in folder.name]
answer["closed"] = len(closed) == 1
cluster.stop()
print(json.dumps({**answer, "gone": not Path(made).exists()}), flush=True)
"""


@pytest.mark.soak
def test_what_a_build_leaves_in_its_temporary_folder_goes_with_the_cluster(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"there": True, "kept": True, "closed": True, "gone": True}


def test_ray_has_a_short_directory_that_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("a" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    found = cluster._directory(tmp_path / "data")
    assert len(str(found / cluster.SESSIONS)) <= cluster.MAX_DIRECTORY
    assert found.stat().st_mode & 0o777 == 0o700
    found.rmdir()
    assert list(long.iterdir()) == []
    monkeypatch.setattr(cluster, "SHORT_FOLDERS", ("/nowhere",))
    with pytest.raises(InvalidInput, match=r"TMPDIR: .* too long for Ray's sockets: 42 bytes"):
        cluster._directory(tmp_path / "data")


def test_logs_of_processes_that_ended_are_told_from_others(tmp_path: Path) -> None:
    running, ended = os.getpid(), 4_194_304
    for name in (f"worker-ab-ff-{ended}.out", f"python-core-worker-ab_{ended}.log", f"worker-ab-ff-{ended}.err.1"):
        (tmp_path / name).touch()
    for name in (f"worker-ab-ff-{running}.out", "raylet.out", "gcs_server.1.out", "events"):
        (tmp_path / name).touch()
    assert {path.name for path in cluster.ended_logs(tmp_path)} == {
        f"worker-ab-ff-{ended}.out", f"python-core-worker-ab_{ended}.log", f"worker-ab-ff-{ended}.err.1",
    }  # fmt: skip
    assert cluster.ended_logs(tmp_path / "none") == []
