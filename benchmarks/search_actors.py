"""What it costs that searches think in processes of their own: ``python -m benchmarks.search_actors --json OUT``.

The same searches in this process and in a Ray actor, in turns, on a simulated device and with a builder that compiles
nothing: seconds for each trial, and the memory that an actor has to itself (USS) before and after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks.service import cpu_name
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.target import native
from tuner.search.search import Search
from worker.building.cluster import Cluster
from worker.remote.actors import JobActors, SearchActors

JOB = {
    "name": "dense",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 768, "k": 768}},
    "shape_vars": {"T": {"min": 1, "max": 128}},
    "instances": [{"T": t} for t in (5, 24, 43, 62, 81, 100, 119, 128)],
    "budget": {"trials": 1},
}
START_S = 240.0


class Recorder:
    """Stores nothing."""

    def record(self, *_: Any) -> None:
        """Returns at once."""

    def record_baselines(self, *_: Any) -> None:
        """Returns at once."""


def trial_s(open_search: Callable[..., Any], trials: int, device_s: float) -> float:
    """What a trial takes in all, where it takes the device ``device_s``."""
    task = parse_job(JOB).on(native()).tasks[0]
    runner = Fleet(1, trial_s=device_s).runner()
    given = {"should_stop": lambda: False, "should_finish": lambda: False, "parallel_builds": 1}
    with closing(open_search(task, builder=SimulatedBuilder(), runner=runner, recorder=Recorder(), **given)) as search:
        started = time.monotonic()
        search.explore(Budget(trials, None))
        search.finalize(None)
        seconds: float = (time.monotonic() - started) / search.summary.trials
    runner.close()
    return seconds


def memory_mib() -> list[float]:
    """MiB of each process that hosts searches, the greatest first."""
    children = psutil.Process().children(recursive=True)
    hosts = [child for child in children if child.name().startswith("ray::SearchHost")]
    return sorted((child.memory_full_info().uss / 2**20 for child in hosts), reverse=True)


def wait_for_one() -> None:
    """Wait until the actor in store has started."""
    deadline = time.monotonic() + START_S
    while not memory_mib():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no actor has started within {START_S:g} s")
        time.sleep(0.1)


def measure(rounds: int, trials: int, device_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        cluster = Cluster(Path(directory))
        actors = SearchActors(alive=cluster.alive)
        started = time.monotonic()
        actors.start()
        wait_for_one()
        start_s, before = time.monotonic() - started, memory_mib()[0]
        job = JobActors(actors.take)
        here, there = [], []
        for _ in range(rounds):
            here.append(trial_s(Search, trials, device_s))
            there.append(trial_s(job.open, trials, device_s))
        after = memory_mib()[0]
        job.close()
        actors.close()
        cluster.stop()
    return {
        "here_s": statistics.median(here),
        "actor_s": statistics.median(there),
        "ratio": statistics.median(one / other for one, other in zip(there, here, strict=True)),
        "start_s": start_s,
        "memory_mib": {"empty": before, "after": after},
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="search_actors", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--trial-s", type=float, default=0.05, help="what one trial takes the device")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    result = {"cpu": cpu_name(), **measure(options.rounds, options.trials, options.trial_s)}
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
