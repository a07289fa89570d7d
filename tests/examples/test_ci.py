"""The CI recipe: tuned at night, accepted if it is no worse, and pulled by the lock in every build."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shapewright.lock import read_lock
from tests.compiled import small_kernel
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import bed, data_dir  # noqa: F401 - fixtures
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import LIBRARY, package
from tuner.storage import Comparison, JobState

CI = Path(__file__).parents[2] / "examples" / "ci"
WAIT_S = 120.0
JOB = """
name: small
workload: {op: dense, args: {m: 16*T, n: 64, k: 32}}
shape_vars: {T: {min: 1, max: 16}}
instances: [{T: 16}]
budget: {trials: 4}
"""


@contextmanager
def worker(service: Bed, against: str | None = None, broken: bool = False) -> Iterator[list[str]]:
    """Does what a worker does for the next job: its library, of real machine code unless it is ``broken``."""
    digests: list[str] = []

    def work() -> None:
        until = time.monotonic() + WAIT_S
        while (held := service.storage.lease_job("worker-1", 60.0)) is None:
            assert time.monotonic() < until, "no job was submitted"
            time.sleep(0.05)
        row = held.tasks[0]
        dispatcher = Dispatcher(row.task, (small_kernel(row.task),), 0, Leaf(0))
        library = build_library(dispatcher, held.job.id)
        if broken:
            library = package(dispatcher, b"no machine code", "{}", {}, held.job.id)
        comparison = Comparison(against, 1.25, 0.02, True) if against else None
        saved = service.storage.save_library(
            held, row.id, library.files, library.manifest, library.dispatch, comparison=comparison
        )
        digests.append(saved.digest)
        service.storage.finish_job(held, JobState.COMPLETED)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield digests
    thread.join(WAIT_S)
    assert not thread.is_alive()


def run(script: str, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"SHAPEWRIGHT": f"{sys.executable} -m shapewright", "PYTHONPATH": str(CI.parents[1])}
    return subprocess.run(
        ["sh", str(CI / script), *arguments],
        cwd=folder,
        env=variables | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.mark.soak
def test_what_was_tuned_at_night_is_in_the_build(bed: Bed, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "job.yaml").write_text(JOB)
    with worker(bed) as built:
        night = run("nightly.sh", "layer", "job.yaml", folder=tmp_path)
    assert night.returncode == 0, night.stderr
    assert [each.digest for each in read_lock(tmp_path / "libs.lock")] == built

    day = run("build.sh", "build", folder=tmp_path)
    away = run("build.sh", "other", folder=tmp_path, SHAPEWRIGHT_URL="http://127.0.0.1:9")

    assert (day.returncode, away.returncode) == (0, 0), day.stderr + away.stderr
    files = [(tmp_path / folder / "libs" / "layer" / LIBRARY).read_bytes() for folder in (".", "build", "other")]
    assert files[0] == files[1] == files[2]
    assert "no service answers" in away.stderr

    locked = (tmp_path / "libs.lock").read_bytes()
    with worker(bed, against=built[0], broken=True):
        night = run("nightly.sh", "layer", "job.yaml", folder=tmp_path)
    assert night.returncode == 1, night.stderr
    assert (tmp_path / "libs.lock").read_bytes() == locked

    (tmp_path / "other" / "libs" / "layer" / LIBRARY).write_bytes(b"altered")
    (tmp_path / "libs.snapshot").write_bytes(b"altered")
    assert run("build.sh", "other", folder=tmp_path, SHAPEWRIGHT_URL="http://127.0.0.1:9").returncode == 2


@pytest.mark.parametrize("script", ["nightly.sh", "build.sh"])
def test_the_scripts_are_ones_of_any_shell(script: str) -> None:
    subprocess.run(["sh", "-n", str(CI / script)], check=True)
