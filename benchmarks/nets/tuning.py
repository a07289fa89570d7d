"""Tuning the models of ``benchmarks.models``: one job through a service of its own, and what it saves to know another.

What a search has gained is the default's time over that of the best kernels so far, of all workloads together, each
counted as often as it occurs. A second model that shares layers starts from the records of the first: ``warmed`` tells
after which part of the trials and of the seconds of a cold run it has gained as much.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import shapewright as sw
from examples.local_service import local_service
from shapewright.models.tasks import ModelTasks
from tuner.program.language.workload import JsonObject
from tuner.search.summary import SearchSummary, Stage

LONGER_S = 600.0
"""What a job may take beyond its budget until its libraries are built."""
POLL_S = 2.0
ENDED = ("COMPLETED", "CANCELLED", "FAILED")
RECORD = "tuning.json"
"""The file beside the libraries of a model that says what tuning them took."""
CLOSE = 0.99
"""Two measurements of one library differ by about as much."""
SPENT = ("trials", "seconds")
BEFORE_DEFAULT = (Stage.PLAN, Stage.KNOWN, Stage.THEORY)
"""Stages in which the default has not been measured at every instance."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a job had gained; ``seconds`` of wall time since it was leased."""

    trials: int
    seconds: float
    gain: float


def tuned(tasks: ModelTasks, budget: JsonObject, folder: Path, libraries: Path) -> dict[str, Any]:
    """Tune all tasks as one job through a service, pull its libraries, and say what it took."""
    started = time.monotonic()
    with local_service(folder / "cold") as environment, _client(environment) as client:
        job, curve = _done(client, tasks, budget)
        manifests = client.download_job(job["id"], libraries)
    told = {
        "tuning_s": time.monotonic() - started, "state": job["state"], "trials": job["trials"],
        "kernels": {manifest["workload_key"]: len(manifest["kernels"]) for manifest in manifests},
        "gain": asdict(curve[-1]) if curve else None,
    }  # fmt: skip
    (libraries / RECORD).write_text(json.dumps(told, indent=1) + "\n")
    return told


def known_of(libraries: Path) -> dict[str, Any]:
    """What ``tuned`` said of these libraries; empty if an earlier version made them."""
    file = libraries / RECORD
    return json.loads(file.read_text()) if file.is_file() else {}


def warmed(
    tasks: ModelTasks, after: ModelTasks, name: str, budget: JsonObject, folder: Path, cold: Mapping[str, Any]
) -> dict[str, Any]:
    """Tune ``after``, the model ``name``, and then ``tasks``, through one service: how soon that gains what ``cold``,
    the ``gain`` of a run without it, did."""
    with local_service(folder / "warm") as environment, _client(environment) as client:
        _done(client, after, budget)
        _, curve = _done(client, tasks, budget)
    keys, known = [task.workload.key for task in tasks], {task.workload.key for task in after}
    return {
        "after": name, "workloads": len(keys), "shared": sum(key in known for key in keys), "cold": dict(cold),
        "warm": asdict(curve[-1]) if curve else None, **saved(curve, cold),
    }  # fmt: skip


def saved(curve: Sequence[Point], cold: Mapping[str, Any]) -> dict[str, Any]:
    """When a warm search had gained what the cold one did in the end, but for CLOSE; also as a share of what that took.

    Null: it never did.
    """
    reached = next((asdict(point) for point in curve if point.gain >= CLOSE * cold["gain"]), None)
    shares = {f"share_of_{each}": reached[each] / cold[each] if reached and cold[each] else None for each in SPENT}
    return {"reached": reached, **shares}


def curve_of(events: Iterable[JsonObject], counts: Sequence[int]) -> list[Point]:
    """What a job had gained at each of its events, from when the default of every workload has been measured."""
    begun: datetime | None = None
    tasks: dict[int, SearchSummary] = {}
    curve = []
    for event in events:
        at = datetime.fromisoformat(event["created_at"])
        if event["kind"] == "state" and event["data"].get("state") == "RUNNING":
            begun = begun or at
        elif event["kind"] == "progress":
            begun = begun or at
            tasks[int(event["data"].get("position") or 0)] = SearchSummary.from_json(event["data"])
            if (gain := _gain(tasks, counts)) is not None:
                trials = sum(each.trials for each in tasks.values())
                curve.append(Point(trials, (at - begun).total_seconds(), gain))
    return curve


def _gain(tasks: Mapping[int, SearchSummary], counts: Sequence[int]) -> float | None:
    """The default's time over that of the best kernels so far; None before both are known of every workload."""
    ours_s = total_s = 0.0
    for position, count in enumerate(counts):
        known = tasks.get(position)
        if not (known and known.phase not in BEFORE_DEFAULT and known.objective_s and known.default_objective_s):
            return None
        ours_s, total_s = ours_s + count * known.objective_s, total_s + count * known.default_objective_s
    return total_s / ours_s


def _client(environment: Mapping[str, str]) -> sw.Client:
    return sw.Client(environment["SHAPEWRIGHT_URL"], data_dir=environment["SHAPEWRIGHT_DATA_DIR"])


def _done(client: sw.Client, tasks: ModelTasks, budget: JsonObject) -> tuple[JsonObject, list[Point]]:
    """The job of these tasks, completed, and what it had gained at each time."""
    job_id = client.submit(tasks.job(budget, threads=tasks[0].threads))["id"]
    timeout_s = float(budget["seconds"]) + LONGER_S
    deadline = time.monotonic() + timeout_s
    while (job := client.job(job_id))["state"] not in ENDED:
        if time.monotonic() > deadline:
            raise SystemExit(f"the job was not done within {timeout_s:g} s")
        time.sleep(POLL_S)
    if job["state"] != "COMPLETED":
        raise SystemExit(f"the job is {job['state']}: {job.get('error')}")
    return job, curve_of(client.events(job_id, follow=False), [task.count for task in tasks])
