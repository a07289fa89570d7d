"""A fleet that looks like one at work: devices of two keys in every status, and what they measured lately."""

from __future__ import annotations

import random
import time

from sqlalchemy import update

from tests.contract.samples import job_spec, kernel, take
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.records import ErrorKind, MeasureResult
from tuner.storage import Lease
from tuner.storage.sql import Storage
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import devices

AT = WorkloadInstance.of({"T": 5})
TRIAL_S = 6.0
NAMES = ("bert-base ffn_up", "attention scores over a long context", "conv")
NO_ANSWER = "it does not answer: the connection was reset by the peer while a trial was running"


def register(storage: Storage, count: int) -> list[str]:
    """Two of three are of the key ``rack``, the others of ``edge``."""
    ids = []
    for number in range(count):
        key = "edge" if number % 3 == 2 else "rack"
        ids.append(f"{key}-{number:03d}.example")
        storage.register_device(ids[-1], key, native(), {"host": f"node-{number // 8}", "cores": 2})
    return ids


def measured(
    storage: Storage, lease: Lease, trials: list[tuple[str, float]], run_s: float = TRIAL_S, first: int = 0
) -> None:
    """Store trials of a job, each of a device and so many seconds ago."""
    now_s = time.monotonic()
    results = [
        MeasureResult(
            kernel(0),
            AT,
            1e-3,
            run_s=run_s,
            device=device,
            attempt=first + number,
            ended_s=now_s - ago_s,
            anchor_s=1e-6,
        )
        for number, (device, ago_s) in enumerate(trials)
    ]
    storage.append_results(lease, lease.tasks[0].id, results)


def fail(storage: Storage, lease: Lease, device: str, attempt: int) -> None:
    trial = MeasureResult(
        kernel(1), AT, error_kind=ErrorKind.CRASH, error="signal 11", run_s=1.0, device=device, attempt=attempt,
        ended_s=time.monotonic() - 2.0,
    )  # fmt: skip
    storage.append_results(lease, lease.tasks[0].id, [trial])


def at_work(storage: Storage, count: int = 200) -> list[str]:
    """The ids of the devices: of ten one measured nothing, one is away; some are quarantined, or on probation."""
    ids, rng = register(storage, count), random.Random(0)
    for name in NAMES:
        storage.create_job(job_spec(name=name, device="rack"))
    leases = [take(storage) for _ in NAMES]
    for name in ("waits", "waits too"):
        storage.create_job(job_spec(name=name, device="edge"))
    trials: list[list[tuple[str, float]]] = [[] for _ in leases]
    for number, device in enumerate(ids):
        if number % 10 in (3, 4):
            continue  # idle, or away
        ago_s, job = rng.uniform(0.0, 30.0), number // 3 % 3
        while ago_s < 900.0:
            for _ in range(rng.randint(2, 8)):
                trials[job].append((device, ago_s))
                ago_s += TRIAL_S
            job, ago_s = rng.randrange(3), ago_s + rng.choice((0.0, 0.0, 20.0, 60.0))
    for lease, own in zip(leases, trials, strict=True):
        measured(storage, lease, own)
    fail(storage, leases[0], ids[0], 0)
    _trouble(storage, ids)
    return ids


def _trouble(storage: Storage, ids: list[str]) -> None:
    for device in ids[1::20]:
        for _ in range(3):
            storage.device_failed(device, NO_ANSWER)
    for device in ids[11::40]:
        storage.quarantine_device(device, "its fan is loud", "key-1")
    for device in ids[2::30]:
        for _ in range(3):
            storage.device_failed(device, "no room on its disk")
    with storage._database.write() as connection:
        past = update(devices).values(quarantined_until=later(-1.0))
        connection.execute(past.where(devices.c.id.in_(ids[2::30])))
        unseen = update(devices).values(seen_at=later(-500.0))
        connection.execute(unseen.where(devices.c.id.in_(ids[4::10])))
