"""What builds on the cores of devices do to their readings: ``python -m benchmarks.readings --json OUT``.

As many devices as this machine has cores, each on one of its own, a worker that builds on the same cores, and a job of
``--trials`` for each device. In ``--rounds`` builds and measurements take turns (worker.building.cores), and do not.
Every kernel that both devices timed at an instance gives a pair; ``difference`` is how far its two readings are
apart, at one speed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import combinations
from pathlib import Path

from benchmarks.harness.results import Row, finish, names, options_of, say
from benchmarks.workers import dense_spec
from tuner.measure.child import Child
from tuner.measure.processes import DEVICE
from tuner.measure.sandbox.confinement import clean_environment
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.search.observations import normalized
from tuner.storage.sql import Storage, open_storage, upgrade
from worker.building.cores import Cores
from worker.device_server import MODULE
from worker.run import run_worker
from worker.tracker import start_tracker

KEY = "core"
DEADLINE_S, LOOK_S = 900.0, 0.5
MOST = 10_000


def main() -> int:
    # ``worker`` is for the process of the worker alone: URL, port, folder, and how it builds.
    options = options_of(__doc__, needs_json=False, trials=64, rounds=3, worker=names).parse_args()
    if options.worker:
        return work(*options.worker)
    rounds = []
    for number in range(options.rounds):
        for has_turns in (True, False):
            rounds.append({"round": number, "turns": has_turns, **one_round(options.trials, number, has_turns)})
            say(json.dumps(rounds[-1]))
    return finish(options.json, {"rows": rounds, "summary": summary(rounds), "protocol": {"trials": options.trials}})


def summary(rounds: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Medians over the rounds of each kind."""
    figures, result = ("difference", "difference_p90", "seconds"), {}
    for name, has_turns in (("turns", True), ("no_turns", False)):
        rows = [row for row in rounds if row["turns"] == has_turns]
        result[name] = {figure: statistics.median(row[figure] for row in rows) for figure in figures}
    return result


def one_round(trials: int, seed: int, has_turns: bool) -> Row:
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="readings-") as folder, ExitStack() as parts:
        url = f"sqlite:///{folder}/tuning.db"
        upgrade(url)
        storage = parts.enter_context(closing(open_storage(url)))
        tracker = parts.enter_context(start_tracker(data_dir=Path(folder)))
        for core in cores:
            parts.enter_context(device(f"127.0.0.1:{tracker.port}", core, Path(folder)))
        storage.register_device(f"{KEY}:0", KEY, native(), {})
        specs = [{**dense_spec(number, trials), "device": KEY, "seed": seed} for number in range(len(cores))]
        jobs = [storage.create_job(parse_job(spec).on(native()))[0].id for spec in specs]
        began = time.monotonic()
        how = ",".join([url, str(tracker.port), folder, "turns" if has_turns else "none"])
        with subprocess.Popen([sys.executable, "-m", "benchmarks.readings", "--worker", how]) as process:
            try:
                wait_for(storage, jobs)
            finally:
                process.terminate()
        seconds = time.monotonic() - began
        measured = [[trial.result for trial in storage.list_trials(job, limit=MOST)] for job in jobs]
    apart = [each for results in measured for each in differences(results)]
    deciles = statistics.quantiles(apart, n=10)
    return {"pairs": len(apart), "difference": deciles[4], "difference_p90": deciles[8], "seconds": seconds}


def work(url: str, port: str, folder: str, how: str) -> int:
    """A worker, whose builds wait for no core unless ``how`` says so."""
    cores = None if how == "turns" else Cores(sys.maxsize)
    run_worker(url, ("127.0.0.1", int(port)), data_dir=Path(folder), cores=cores)
    return 0


def device(tracker: str, core: int, folder: Path) -> Child:
    args = ["--tracker", tracker, "--key", KEY, "--id", f"{KEY}:{core}", "--cores", str(core)]
    return Child(MODULE, args, data_dir=folder, environment=clean_environment(DEVICE))


def wait_for(storage: Storage, jobs: Sequence[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all(storage.get_job(job).state.ended for job in jobs):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the jobs did not end within {DEADLINE_S:g} s")
        time.sleep(LOOK_S)


def differences(results: Sequence[MeasureResult]) -> list[float]:
    """The relative difference of two devices' medians, for each kernel and instance that several devices timed."""
    readings: dict[object, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in normalized(results):
        if each.ok and each.latency_s and each.device:
            readings[each.kernel, each.instance.values][each.device].append(each.latency_s)
    medians = ([statistics.median(times) for times in devices.values()] for devices in readings.values())
    return [abs(one - other) / min(one, other) for times in medians for one, other in combinations(times, 2)]


if __name__ == "__main__":
    sys.exit(main())
