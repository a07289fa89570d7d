"""What pip installs in empty environments works: the client, on locked and on the lowest versions, and all of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import tuner
from tuner.measure.network.addresses import free_port

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
DEPENDENCIES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
ARRAYS: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["arrays"]
CLIENT_MB = 40.0
"""What the client may weigh: the files of the wheels, without bytecode."""
READY_S = 180.0
JOB = """
workload: {{op: {op}, args: {args}, dtype: float32}}
shape_vars: {{T: {{min: 1, max: 8}}}}
budget: {{trials: {trials}, seconds: 60}}
"""
CALL = """
import numpy as np
import shapewright as sw
product = sw.load("product")
x, w = np.random.rand(5, 32).astype("f4"), np.random.rand(64, 32).astype("f4")
for dense in (sw.load("dense"), sw.load("parallel")):
    out = np.full((5, 64), np.nan, "f4")
    dense(x, dense.pack(w), out)
    assert np.abs(out - x @ w.T).max() < 1e-4
a, b, out = np.random.rand(2, 3, 8).astype("f4"), np.random.rand(2, 8, 16).astype("f4"), np.empty((2, 3, 16), "f4")
product(a, b, out)
assert np.abs(out - a @ b).max() < 1e-4
assert sw.__file__.startswith({prefix!r}), sw.__file__
"""


@dataclass(frozen=True)
class Installed:
    """An environment of its own, and a folder to run commands in."""

    home: Path
    settings: dict[str, str]

    @property
    def site(self) -> Path:
        (found,) = (self.home / "lib").glob("python3*/site-packages")
        return found

    def pip(self, *arguments: object) -> str:
        return self.run(self.home / "bin" / "python", "-m", "pip", *arguments, timeout_s=1200.0)

    def shapewright(self, *arguments: object) -> Any:
        return json.loads(self.run(self.home / "bin" / "shapewright", *arguments, "--json"))

    def python(self, code: str) -> str:
        return self.run(self.home / "bin" / "python", "-c", code)

    def run(self, *line: object, timeout_s: float = 300.0) -> str:
        ran = subprocess.run(
            list(map(str, line)), cwd=self.home, env=self.environment(), capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{line}: {ran.stdout} {ran.stderr}"
        return ran.stdout

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHAPEWRIGHT_", "PYTHON"))}
        return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **self.settings}


def installed(home: Path, wheel: Path, *arguments: object, extra: str = "", **settings: str) -> Installed:
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=120)
    made = Installed(home, settings)
    made.pip("install", "--quiet", f"{wheel}{extra}", *arguments)
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(wheel: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """All of a service, as the image installs it."""
    home = tmp_path_factory.mktemp("installed") / "server"
    lock = ("-c", ROOT / "requirements.lock")
    return installed(home, wheel, *lock, extra="[server]", SHAPEWRIGHT_DATA_DIR=str(data))


@pytest.fixture(scope="module")
def url(server: Installed, data: Path) -> Iterator[str]:
    """A service from the wheel: `shapewright up`."""
    port = free_port()
    line = [str(server.home / "bin" / "shapewright"), "up", "--port", str(port)]
    with (data / "up.log").open("w") as log:
        up = subprocess.Popen(line, cwd=server.home, env=server.environment(), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_S
        while "\nready: " not in (data / "up.log").read_text():
            assert up.poll() is None and time.monotonic() < deadline, (data / "up.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60.0)


def test_the_whole_of_it_serves_and_tunes(server: Installed, url: str) -> None:
    assert server.run(server.home / "bin" / "shapewright", "--version").split() == ["shapewright", tuner.__version__]
    others = {"service", "worker", "tuner", "migrations", "tests", "docs", "examples", "benchmarks", "distribution"}
    assert not others & {each.name for each in server.site.iterdir()}
    job = server.home / "job.yaml"
    job.write_text(JOB.format(op="dense", args="{m: T, n: 64, k: 32}", trials=4))
    done = server.shapewright("tune", job, "-o", "tuned", "--calibration", "off")
    assert done["state"] == "COMPLETED"
    assert server.shapewright("check", done["libraries"][0]["directory"])


@pytest.mark.parametrize("versions", ["locked", "lowest"])
def test_the_client_submits_pulls_and_calls(wheel: Path, data: Path, url: str, tmp_path: Path, versions: str) -> None:
    lock = ["-c", ROOT / "requirements.lock"]
    arguments = lock if versions == "locked" else [lowest(Requirement(each)) for each in DEPENDENCIES]
    settings = {"SHAPEWRIGHT_DATA_DIR": str(data), "SHAPEWRIGHT_URL": url}
    client = installed(tmp_path / "client", wheel, *arguments, **settings)
    if versions == "locked":
        assert megabytes(client) < CLIENT_MB
        assert not {"tvm", "numpy", "scipy", "plotly", "ray", "torch"} & {each.name for each in client.site.iterdir()}
    for name, op, args, threads in (
        ("dense", "dense", "{m: T, n: 64, k: 32}", 1),
        ("product", "batch_matmul_nn", "{b: 2, m: T, n: 16, k: 8}", 1),
        ("parallel", "dense", "{m: T, n: 64, k: 32}", 2),
    ):
        job = client.home / f"{name}.yaml"
        job.write_text(JOB.format(op=op, args=args, trials=0) + f"threads: {threads}\n")
        assert client.shapewright("submit", job, "--wait")["state"] == "COMPLETED"
        assert client.shapewright("pull", job, "-o", name)
    client.python("import shapewright as sw; [sw.load(name) for name in ('dense', 'product', 'parallel')]")
    # Whoever has arrays has NumPy.
    client.pip("install", "--quiet", *([*lock, "numpy"] if versions == "locked" else [lowest(Requirement(ARRAYS[0]))]))
    client.python(CALL.format(prefix=str(client.home)))


def lowest(requirement: Requirement) -> str:
    (bound,) = (each.version for each in requirement.specifier if each.operator == ">=")
    return f"{requirement.name}=={bound}"


def megabytes(client: Installed) -> float:
    left_out = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-")
    files = (
        each
        for each in client.site.rglob("*")
        if each.is_file() and each.suffix != ".pyc" and not each.relative_to(client.site).parts[0].startswith(left_out)
    )
    return sum(each.stat().st_size for each in files) / 1e6


def test_a_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = "import sys; sys.path.insert(0, 'distribution'); import one_package; one_package.build_{}(sys.argv[1])"
    made = tmp_path / "made"
    made.mkdir()
    subprocess.run([sys.executable, "-c", build.format("sdist"), made], cwd=ROOT, check=True, timeout=300)
    (archive,) = made.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert not (source / "tests").exists()
    subprocess.run([sys.executable, "-c", build.format("wheel"), made], cwd=source, check=True, timeout=300)
    (again,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_the_image_is_built_and_starts() -> None:
    engine = next((path for name in ("docker", "podman", "buildah") if (path := shutil.which(name))), None)
    if engine is None:
        pytest.skip("no docker, podman or buildah is on the PATH")
    answers = subprocess.run([engine, "info"], capture_output=True, text=True, timeout=60, check=False)
    if answers.returncode:
        pytest.skip(f"{engine} has no engine to build with: {answers.stderr.strip().splitlines()[-1:]}")
    subprocess.run([engine, "build", "-t", "shapewright-test", "."], cwd=ROOT, check=True, timeout=1800)
    line = [engine, "run", "--rm", "shapewright-test", "--version"]
    told = subprocess.run(line, capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.split() == ["shapewright", tuner.__version__]
