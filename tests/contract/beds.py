"""Devices that the contract of runners is tested on: private ones, one that a tracker hands out, one that two compete
for, and one on a GPU that a stand-in for its driver pretends to be."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import psutil

from tests import gpu_measuring, measuring
from tuner.measure import Runner
from tuner.measure.network.connecting import Connected, Tracker
from tuner.measure.rpc_names import device_key
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.runners.session import Connect
from worker.device_server import start_device
from worker.tracker import start_tracker

PATIENT_S, LIMIT_S = 20.0, 2.0
"""What a runner waits for a candidate, on however busy a machine; and for one that hangs."""
ALL = ("private", "tracker", "pool", "gpu")


class Bed:
    """A runner, its device's id, and the process that serves it. ``on`` has the task and the candidates for it."""

    on: ModuleType = measuring

    def __init__(self, connect: Connect, device: str, server: Callable[[], int], *, pooled: bool = False) -> None:
        self.connect, self._pooled = connect, pooled
        self.runner = self.runner_of(PATIENT_S)
        self.device = device
        self._server = server

    def runner_of(self, timeout_s: float) -> Runner:
        """A runner that waits so long for a candidate."""
        if not self._pooled:
            return RpcRunner(self.connect, timeout_s=timeout_s)
        # Two that compete for one device.
        members = dict.fromkeys("ab", partial(RpcRunner, self.connect, timeout_s=timeout_s))
        return RunnerPool(lambda: members)

    @property
    def server_pid(self) -> int:
        return self._server()

    def sessions(self) -> list[psutil.Process]:
        return psutil.Process(self.server_pid).children()

    @property
    def port(self) -> int:
        """Where the device listens."""
        listening = (each for each in psutil.Process(self.server_pid).net_connections() if each.status == "LISTEN")
        return int(next(listening).laddr.port)


class GpuBed(Bed):
    on = gpu_measuring


@contextmanager
def bed_of(kind: str, directory: Path, fake_cuda: Path) -> Iterator[Bed]:
    """A bed of one of the kinds of ALL."""
    if kind == "private":
        with LocalDevice(directory) as device:
            yield Bed(device.connect, f"{socket.gethostname()}:local", lambda: device.pid)
        return
    if kind == "gpu":
        with gpu_measuring.gpu_device(fake_cuda, directory) as device:
            yield GpuBed(device.connect, f"{socket.gethostname()}:local:gpu0", lambda: device.pid)
        return
    with start_tracker(data_dir=directory) as tracker:
        address = ("127.0.0.1", tracker.port)
        with start_device(address, "local", device_id="rack-7", data_dir=directory) as served:
            client = Tracker(*address)
            # The two of a pool wait for each other after a crash, until one of them hears that the device is busy.
            wait_s = 6.0 if kind == "pool" else 20.0

            def connect(life_s: float, interrupted: Callable[[], bool]) -> Connected:
                return client.request(device_key("local", "rack-7"), life_s, wait_s, interrupted)

            yield Bed(connect, "rack-7", lambda: served.pid, pooled=kind == "pool")
