"""The worker's whole path beside a bare loop, on this machine: Ray builds, a device of a tracker measures over RPC.

The bare loop builds and runs what the search did, each kernel as often and in the same order, with the same builders
and runner, and measures the baselines where the worker does: no policy, no cost model, no database. Both take turns,
each time on another layer, so that no search starts from what an earlier one found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

# Before Ray is.
from worker.building.cluster import Cluster  # isort: skip
from tuner.measure import KeptBuilds, RunRequest
from tuner.measure.network.connecting import Tracker
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import MeasureResult, Phase
from tuner.storage import SearchTaskRow
from tuner.storage.sql import Storage, open_storage, upgrade
from worker.device_server import start_device
from worker.devices.registry import DeviceList
from worker.devices.speeds import DeviceSpeeds
from worker.jobs.runner import JobRunner
from worker.run import RayTools
from worker.tracker import start_tracker

KEY = "local"
LEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class PathRates:
    """One turn of both: trials per second, from the beginning of the first to the end of the last."""

    trials: int
    worker_per_s: float
    bare_per_s: float
    ratio: float


class Seen(DeviceSpeeds):
    """Keeps what devices measured, in the order in which it was done."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._results: list[MeasureResult] = []

    def observe(self, results: Iterable[MeasureResult]) -> None:
        results = list(results)
        self._results += results
        super().observe(results)

    def taken(self) -> list[MeasureResult]:
        """What was measured since the last call."""
        results, self._results = self._results, []
        return [result for result in results if result.device is not None]


def compare_paths(directory: Path, turns: int, trials: int) -> list[PathRates]:
    """Rates of ``turns`` jobs of ``trials`` each. For the main thread: it starts a cluster."""
    url = f"sqlite:///{directory}/path.db"
    upgrade(url)
    with start_tracker(data_dir=directory) as served, closing(open_storage(url)) as storage:
        address = "127.0.0.1", served.port
        with start_device(address, KEY, device_id="here:0", data_dir=directory):
            devices = DeviceList(storage, Tracker(*address))
            devices.speeds = seen = Seen(storage)
            tools = RayTools(devices, lambda: Cluster(directory), threading.Event())
            with closing(tools):
                tools.maintain()
                devices.refresh(force=True)
                return [_turn(storage, tools, seen, number, trials) for number in range(turns)]


def _turn(storage: Storage, tools: RayTools, seen: Seen, number: int, trials: int) -> PathRates:
    row = _search(storage, tools, number, trials)
    found = seen.taken()
    _bare(tools, row, found)
    again = seen.taken()
    rates = _rate(found), _rate(again)
    return PathRates(len(found), *rates, rates[0] / rates[1])


def _search(storage: Storage, tools: RayTools, number: int, trials: int) -> SearchTaskRow:
    """Run a job. Raises RuntimeError if it failed."""
    spec = {
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 512 + 64 * number, "k": 512}},
        "shape_vars": {"T": {"min": 1, "max": 64}},
        "device": KEY,
        "budget": {"trials": trials},
    }
    job = storage.create_job(parse_job(spec).on(native()))[0]
    lease = storage.lease_job("path", LEASE_S, [KEY])
    if lease is None:
        raise RuntimeError(f"job {job.id} cannot be leased")
    JobRunner(storage, tools).run(lease)
    done = storage.get_job(job.id)
    if done.error:
        raise RuntimeError(f"job {job.id} failed: {done.error}")
    (row,) = lease.tasks
    return row


def _bare(tools: RayTools, row: SearchTaskRow, found: Sequence[MeasureResult]) -> None:
    """Measure the trials of ``found`` again, without a worker's bookkeeping."""
    builds = KeptBuilds(row.task, tools.builder(), tools.parallel_builds(KEY, row.task.threads))
    with closing(builds), closing(tools.runner(KEY)) as runner:
        builds.start(list(dict.fromkeys(result.kernel for result in found)))
        measured_baselines = False
        for result in found:
            # The worker measures them behind the first round.
            if result.phase is not Phase.THEORY and not measured_baselines:
                runner.baselines(row.task, row.task.instances)
                measured_baselines = True
            runner.run(row.task, [RunRequest(builds.build([result.kernel])[0], (result.instance,))])


def _rate(results: Sequence[MeasureResult]) -> float:
    ended = [result.ended_s for result in results if result.ended_s is not None]
    began = min(result.ended_s - result.run_s for result in results if result.ended_s is not None)
    return len(results) / (max(ended) - began)
