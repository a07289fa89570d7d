"""A stranger's first quarter of an hour with an installed Shapewright: from `up` to a library in Python and a report.

Each step has a deadline. What each took is printed, and recorded as a property of the test; only the deadlines are
asserted, since the machine may be busy.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.conftest import COMMAND_S, Up

QUARTER_OF_AN_HOUR_S = 900.0
PLACES = ("/", "/workloads", "/devices", "/compare", "/records", "/keys", "/audit", "/docs", "/jobs/new")
"""Where the navigation leads."""
PROGRAM = """
import numpy as np
import shapewright as sw

library = sw.load({directory!r})
rows, k, n = 16 * 5, 64, 96
x = np.random.default_rng(0).standard_normal((rows, k), np.float32)
w = np.random.default_rng(1).standard_normal((n, k), np.float32)
out = np.empty((rows, n), np.float32)
library(x, library.pack(w), out)
np.testing.assert_allclose(out, x @ w.T, rtol=1e-3, atol=1e-3)
print(library.kernel_for(T=5))
"""


@dataclass
class Walk:
    """The steps that were taken, and the seconds that each took."""

    took_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, deadline_s: float) -> Iterator[None]:
        """A step; fails if it takes longer than its deadline."""
        start = time.monotonic()
        yield
        self.took_s[name] = time.monotonic() - start
        assert self.took_s[name] <= deadline_s, f"{name} took {self.took_s[name]:.0f} s of {deadline_s:.0f} s"

    def __str__(self) -> str:
        lines = [f"{seconds:8.1f} s  {name}" for name, seconds in self.took_s.items()]
        return "\n".join([*lines, f"{sum(self.took_s.values()):8.1f} s  all of it"])


def test_a_step_that_takes_too_long_fails_and_is_told() -> None:
    walk = Walk()
    with walk.step("quick", 60.0):
        pass
    with pytest.raises(AssertionError, match="slow took"), walk.step("slow", -1.0):
        pass
    assert [line.split("s  ")[1] for line in str(walk).splitlines()] == ["quick", "slow", "all of it"]


@pytest.mark.soak
def test_the_first_quarter_of_an_hour(
    start: Callable[..., Up], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    walk, library = Walk(), tmp_path / "library"
    with walk.step("up", 120.0):
        up = start()
    with walk.step("write a job file", COMMAND_S):
        write_job(up)
    with walk.step("explain it", COMMAND_S):
        assert up.shapewright("explain", up.job).code == 0
    with walk.step("submit it", COMMAND_S):
        job_id = up.shapewright("submit", up.job, "--json").json["job_id"]
    with walk.step("watch it to its end", 300.0):
        watched = up.shapewright("watch", job_id, "--timeout", 140, "--json")
        assert (watched.code, watched.json["state"]) == (0, "COMPLETED"), watched.out + up.logs()
    with walk.step("look at every page", 60.0):
        look_around(up, job_id)
    with walk.step("pull the library", COMMAND_S):
        pulled = up.shapewright("pull", up.job, "-o", library)
        assert pulled.code == 0, pulled.err
    with walk.step("check it", COMMAND_S):
        checked = up.shapewright("check", library)
        assert checked.code == 0, checked.out + checked.err
    with walk.step("call it in Python", 60.0):
        program = PROGRAM.format(directory=str(library))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    with walk.step("write its report", COMMAND_S):
        report = tmp_path / "report.html"
        assert up.shapewright("report", job_id, "-o", report).code == 0
        assert "</html>" in report.read_text()
    print(f"\n{walk}")
    for name, seconds in walk.took_s.items():
        record_property(name, round(seconds, 1))
    assert sum(walk.took_s.values()) <= QUARTER_OF_AN_HOUR_S


def write_job(up: Up) -> None:
    """The file that `init` writes, with the sizes of a small layer in place of its examples."""
    up.job.unlink()
    begun = up.shapewright("init", up.job)
    assert begun.code == 0, begun.err
    job = yaml.safe_load(up.job.read_text()) | {
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 96, "k": 64}},
        "shape_vars": {"T": {"min": 1, "max": 16}},
        "budget": {"trials": 24, "seconds": 60},
    }
    up.job.write_text(yaml.safe_dump(job, sort_keys=False))


def look_around(up: Up, job_id: str) -> None:
    """Every page that the navigation or the job leads to answers, each within some seconds."""
    with httpx.Client(timeout=20, base_url=up.url, headers={"Accept": "text/html"}) as browser:
        assert browser.get(up.dashboard_url).status_code == 303
        key = browser.get(f"/v1/jobs/{job_id}").json()["workload_keys"][0]
        kernel = browser.get(f"/v1/jobs/{job_id}/trials?limit=1").json()["items"][0]["kernel_id"]
        for place in (*PLACES, f"/jobs/{job_id}", f"/workloads/{key}", f"/jobs/{job_id}/kernels/{kernel}"):
            page = browser.get(place)
            assert page.status_code == 200, f"{place}: {page.status_code}"
            assert '<nav aria-label="Main">' in page.text, place
