"""What builds on the cores of devices do to their readings: ``python -m benchmarks.readings --json OUT``.

As many devices as this machine has cores, each on one of its own, a worker that builds on the same cores, and a job for
each device. In alternating rounds builds and measurements take turns (worker.building.cores), or do not. Every kernel
that both devices timed at an instance gives a pair; ``difference`` is how far its two readings are apart, at one speed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

from benchmarks.service import cpu_name
from tuner.measure.child import Child
from tuner.measure.processes import DEVICE
from tuner.measure.sandbox.confinement import clean_environment
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.search.observations import normalized
from tuner.storage.sql import SqlStorage, open_storage, upgrade
from worker.building.cores import Cores
from worker.device_server import MODULE
from worker.run import run_worker
from worker.tracker import start_tracker

KEY = "core"
DEADLINE_S = 900.0
LOOK_S = 0.5
MOST = 10_000


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="readings", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--trials", type=int, default=64, help="of each job")
    parser.add_argument("--rounds", type=int, default=3, help="with turns and without, alternating")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        work(*options.worker)
        return
    rounds = []
    for number in range(options.rounds):
        for has_turns in (True, False):
            rounds.append({"round": number, "turns": has_turns, **one_round(options.trials, number, has_turns)})
            print(json.dumps(rounds[-1]), flush=True)
    protocol = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "trials": options.trials}
    document = {"rows": rounds, "summary": summary(rounds), "protocol": protocol}
    print(json.dumps(document["summary"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds of each kind."""
    result = {}
    for name, has_turns in (("turns", True), ("no_turns", False)):
        rows = [row for row in rounds if row["turns"] == has_turns]
        result[name] = {
            figure: statistics.median(row[figure] for row in rows)
            for figure in ("difference", "difference_p90", "seconds")
        }
    return result


def one_round(trials: int, seed: int, has_turns: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="readings-") as folder, ExitStack() as parts:
        url = f"sqlite:///{folder}/tuning.db"
        upgrade(url)
        storage = parts.enter_context(opened(url))
        tracker = parts.enter_context(start_tracker(data_dir=Path(folder)))
        for core in sorted(os.sched_getaffinity(0)):
            parts.enter_context(device(f"127.0.0.1:{tracker.port}", core, Path(folder)))
        storage.register_device(f"{KEY}:0", KEY, native(), {})
        jobs = [submit(storage, number, trials, seed) for number in range(len(os.sched_getaffinity(0)))]
        began = time.monotonic()
        how = "turns" if has_turns else "none"
        command = [sys.executable, "-m", "benchmarks.readings", "--worker", url, str(tracker.port), folder, how]
        with subprocess.Popen(command) as process:
            try:
                wait_for(storage, jobs)
            finally:
                process.terminate()
        seconds = time.monotonic() - began
        measured = [[trial.result for trial in storage.list_trials(job, limit=MOST)] for job in jobs]
        apart = [each for results in measured for each in differences(results)]
    deciles = statistics.quantiles(apart, n=10)
    return {"pairs": len(apart), "difference": deciles[4], "difference_p90": deciles[8], "seconds": seconds}


def work(url: str, port: str, folder: str, how: str) -> None:
    """A worker, whose builds wait for no core unless ``how`` says so."""
    cores = None if how == "turns" else Cores(sys.maxsize)
    run_worker(url, ("127.0.0.1", int(port)), data_dir=Path(folder), cores=cores)


@contextmanager
def opened(url: str) -> Iterator[SqlStorage]:
    storage = open_storage(url)
    yield storage
    storage.close()


def device(tracker: str, core: int, folder: Path) -> Child:
    args = ["--tracker", tracker, "--key", KEY, "--id", f"{KEY}:{core}", "--cores", str(core)]
    return Child(MODULE, args, data_dir=folder, environment=clean_environment(DEVICE))


def submit(storage: SqlStorage, number: int, trials: int, seed: int) -> str:
    spec = {
        "name": f"readings {number}",
        "workload": {"op": "dense", "args": {"m": "T", "n": 768 + 256 * number, "k": 768}},
        "shape_vars": {"T": {"min": 1, "max": 128}},
        "instances": [{"T": t} for t in (16, 64, 128)],
        "device": KEY,
        "seed": seed,
        "budget": {"trials": trials},
    }
    return storage.create_job(parse_job(spec).on(native()))[0].id


def wait_for(storage: SqlStorage, jobs: Sequence[str]) -> None:
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
    main()
