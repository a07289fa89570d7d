"""What it costs that searches think in processes of their own.

    python -m benchmarks.search_actors [--rounds 5] [--trials 128] [--trial-s 0.05] --json OUT

The same searches in this process and in a Ray actor, in turns, on a simulated device whose trials take ``--trial-s``
and with a builder that compiles nothing: seconds for each trial, and the memory that an actor has to itself (USS)
before and after.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.results import finish, options_of
from benchmarks.workers import dense_spec
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.target import native
from tuner.search.search import Search
from worker.building.cluster import Cluster
from worker.remote.actors import JobActors, SearchActors

START_S = 240.0


class Recorder:
    """Stores nothing."""

    def record(self, *_: Any) -> None:
        """Returns at once."""

    def record_baselines(self, *_: Any) -> None:
        """Returns at once."""


def trial_s(open_search: Callable[..., Any], trials: int, device_s: float) -> float:
    """What a trial takes in all, where it takes the device ``device_s``."""
    task = parse_job(dense_spec(0, 1)).on(native()).tasks[0]
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


def measure(rounds: int, trials: int, device_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        cluster = Cluster(Path(directory))
        actors = SearchActors(alive=cluster.alive)
        started = time.monotonic()
        actors.start()
        while not memory_mib():
            if time.monotonic() - started > START_S:
                raise TimeoutError(f"no actor has started within {START_S:g} s")
            time.sleep(0.1)
        start_s, before = time.monotonic() - started, memory_mib()[0]
        job = JobActors(actors.take)
        pairs = [(trial_s(Search, trials, device_s), trial_s(job.open, trials, device_s)) for _ in range(rounds)]
        after = memory_mib()[0]
        job.close()
        actors.close()
        cluster.stop()
    return {
        "here_s": statistics.median(here for here, _ in pairs),
        "actor_s": statistics.median(there for _, there in pairs),
        "ratio": statistics.median(there / here for here, there in pairs),
        "start_s": start_s,
        "memory_mib": {"empty": before, "after": after},
    }


def main() -> int:
    options = options_of(__doc__, rounds=5, trials=128, trial_s=0.05).parse_args()
    protocol = {name: getattr(options, name) for name in ("rounds", "trials", "trial_s")}
    summary = measure(options.rounds, options.trials, options.trial_s)
    return finish(options.json, {"summary": summary, "protocol": protocol})


if __name__ == "__main__":
    sys.exit(main())
