"""Two groups of simulated devices under keys of their own, one of them throttled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from benchmarks.workers import SimulatedTools
from tests.contract.samples import JOB
from tuner.measure import Runner
from tuner.measure.runners.simulated import ANCHOR_S, Faults, Fleet
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import DeviceSpeed, JobState, SpeedState
from tuner.storage.sql import Storage
from worker.devices.speeds import DeviceSpeeds
from worker.jobs.runner import JobRunner


@dataclass(frozen=True, slots=True)
class Tools(SimulatedTools):
    fleets: Mapping[str, Fleet]
    speeds: DeviceSpeeds

    def runner(self, key: str) -> Runner:
        return self.fleets[key].runner(self.speeds.observe)


@pytest.mark.soak
def test_a_throttled_group_is_reported_and_records_are_of_their_own_groups(storage: Storage) -> None:
    fleets = {
        "cool": Fleet(2, name="cool"),
        "hot": Fleet(2, name="hot", faults=Faults(throttled=2)),
    }
    for key, fleet in fleets.items():
        for number in range(fleet.size):
            storage.register_device(f"{key}-{number}", key, native(), {})
            storage.device_speed(f"{key}-{number}", DeviceSpeed(SpeedState.STEADY, ANCHOR_S, ANCHOR_S, 0.01))
    speeds = DeviceSpeeds(storage)
    speeds.know(storage.list_devices())
    runner = JobRunner(storage, Tools(fleets["cool"], fleets, speeds))
    jobs = {}
    for key in fleets:
        spec = parse_job({**JOB, "device": key, "budget": {"trials": 160}})
        jobs[key] = storage.create_job(spec.on(native()))[0].id
        lease = storage.lease_job("w", 60.0)
        assert lease is not None
        assert runner.run(lease) is JobState.COMPLETED

    for key, job_id in jobs.items():
        (task,) = storage.search_tasks(job_id)
        of_key = {record.result.device for record in storage.records_of_task(task.id)} - {None}
        assert of_key and of_key <= {f"{key}-0", f"{key}-1"}
    throttled = {
        device.key
        for device in storage.list_devices()
        if device.speed is not None and device.speed.state is SpeedState.THROTTLED
    }
    assert throttled == {"hot"}
