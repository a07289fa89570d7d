"""What the command line's tests run on: a real service in this process, and a worker's part played through storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serving import store_library
from tuner.storage import JobState, Lease, NewEvent
from tuner.storage.sql import Storage

SMALL_JOB = """
name: small
workload:
  op: dense
  args: {m: 16*T, n: 64, k: 32}
shape_vars:
  T: {min: 1, max: 16}
budget: {trials: 4, seconds: 60}
max_kernels: 2
"""
PROGRESS = {
    "position": 0,
    "round": 1,
    "trials": 4,
    "trials_budget": 4,
    "elapsed_s": 1.0,
    "seconds_budget": 60.0,
    "speedup_vs_default": 1.5,
    "objective_s": 1e-5,
    "failed": 0,
    "phase": "search",
}


@dataclass(frozen=True)
class Ran:
    """What one command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout; fails if there is anything else."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        result: dict[str, Any] = self.json["error"]
        assert result["exit_code"] == self.code
        return result


@dataclass(frozen=True)
class Bed:
    """A service: its address, its data directory and what its database holds."""

    url: str
    data_dir: Path
    database_url: str
    storage: Storage


def complete(storage: Storage, held: Lease) -> str:
    """Do what a worker does at the end of a search; the digest of the library."""
    storage.append_events(held, [NewEvent("progress", PROGRESS)])
    digest = store_library(storage, held).digest
    storage.append_events(held, [NewEvent("library", {"digest": digest, "kernels": 2})])
    storage.finish_job(held, JobState.COMPLETED, summary={"speedup_vs_default": 1.5})
    return digest


def arguments(*parts: object) -> Sequence[str]:
    return [str(part) for part in parts]
