"""A worker process: builds on Ray, measures on a tracker's devices, leases jobs from the database."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tuner.errors import InvalidInput
from tuner.measure import Builder, BuilderLost, Runner
from tuner.measure.network.addresses import Address
from tuner.measure.network.connecting import Tracker, within
from tuner.measure.processes import set_on_signals
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner, unshared
from tuner.storage import Lease
from tuner.storage.sql import WorkerStorage, open_storage
from worker.building.cluster import Cluster
from worker.building.cores import Cores
from worker.building.ray_builder import RayBuilder
from worker.devices.admission import TokenRule
from worker.devices.calibrations import Calibrations, candidates_of, typical
from worker.devices.registry import DeviceList, KnownDevice
from worker.jobs.lease_loop import LeaseLoop
from worker.jobs.leased_job import release
from worker.jobs.runner import JobRunner
from worker.jobs.searches import OpenSearch
from worker.remote.actors import JobActors, SearchActors
from worker.remote.search import SearchProcess

log = logging.getLogger(__name__)

IDLE_WAIT_S = 20.0
"""How long those who build on a cluster may take to notice that it has died."""
LOOK_S = 0.5
CLUSTER_WAIT_S = 60.0
"""How long a job waits for a cluster that has died to be started again."""
CLOSE_S = 8.0
CARRY_S = 1.0
"""How long ending waits for those who talk to searches: Ray must not be shut down under them."""
STOP_S = 10.0
"""A worker's time to stop; after it the worker releases its jobs and exits in the middle of its work."""


class RayTools:
    """A builder and processes of searches on Ray, replaced along with their cluster when that has died, and runners on
    the devices of a tracker.

    ``maintain`` is called by the main thread, the rest by any: Ray ends a cluster's daemons along with the thread that
    started them, and replaces the signal handlers, which only the main thread can take back.
    """

    def __init__(
        self,
        devices: DeviceList,
        start: Callable[[], Cluster],
        stop: threading.Event,
        cores: Cores | None = None,
    ) -> None:
        self._devices, self._start, self._stop = devices, start, stop
        self._changed = threading.Condition()
        self._cluster: Cluster | None = None
        self._builder: RayBuilder | None = None
        self._actors: SearchActors | None = None
        self._cores = cores or Cores(len(os.sched_getaffinity(0)))

    def maintain(self) -> None:
        """Start the cluster and its actors, or again once it has died. Raises BuilderLost."""
        with self._changed:
            if self._is_alive() or self._stop.is_set():
                return
            # Those who build notice that the cluster is dead, and have the lock for nothing.
            if self._builder is not None and not self._builder.wait_idle(IDLE_WAIT_S):
                raise BuilderLost("Ray has died, and somebody still builds on it")
            if self._actors is not None and not self._actors.wait_idle(IDLE_WAIT_S):
                raise BuilderLost("Ray has died, and somebody still searches on it")
            self._close()
            try:
                self._cluster = self._start()
            except InvalidInput:
                raise
            except (RuntimeError, OSError, ValueError) as error:
                raise BuilderLost(f"Ray did not start: {error}") from error
            set_on_signals(self._stop)
            own = self._cores if self._cluster.is_own else None
            self._builder = RayBuilder(
                actors=self._cluster.cores, alive=self._cluster.alive, cores=own, is_stopping=self._stop.is_set
            )
            self._builder.start()
            self._actors = SearchActors(alive=self._cluster.alive)
            self._actors.start()
            self._changed.notify_all()

    def builder(self) -> Builder:
        """Waits a while for a cluster. Raises BuilderLost."""
        return self._on_cluster()[0]

    @contextmanager
    def searches(self) -> Iterator[OpenSearch]:
        """Opens the searches of one job, in processes of their own, which end with the context."""

        def take() -> SearchProcess:
            return self._on_cluster()[1].take()

        actors = JobActors(take)
        try:
            yield actors.open
        finally:
            actors.close()

    def _on_cluster(self) -> tuple[RayBuilder, SearchActors]:
        """Waits a while for a cluster. Raises BuilderLost."""
        deadline = time.monotonic() + CLUSTER_WAIT_S
        with self._changed:
            # A signal sets ``stop`` without a word to whoever waits.
            while not self._is_alive() and not self._stop.is_set() and time.monotonic() < deadline:
                self._changed.wait(LOOK_S)
            if self._builder is None or self._actors is None or not self._is_alive():
                raise BuilderLost(f"Ray has died, and did not start again within {CLUSTER_WAIT_S:g} s")
            return self._builder, self._actors

    def _is_alive(self) -> bool:
        return self._builder is not None and self._cluster is not None and self._cluster.alive()

    def runner(self, key: str) -> Runner:
        """A runner on all devices of a key."""
        devices = self._devices

        def members() -> Mapping[Address, Callable[[], Runner]]:
            return {address: partial(self.on, known, address) for address, known in devices.present(key).items()}

        observe, should_rest = devices.speeds.observe, devices.should_rest
        return RunnerPool(members, devices.report, observe=observe, should_rest=should_rest)

    def on(self, device: KnownDevice, address: Address) -> RpcRunner:
        """A runner on one device."""
        cores = self._cores.taken if device.is_here() else unshared
        return RpcRunner(partial(self._devices.session, device, address), cores=cores)

    def parallel_builds(self, key: str, threads: int) -> int:
        """The number of the cluster's cores; if it is on this machine, without those that devices here measure on."""
        with self._changed:
            if self._cluster is None:
                return 0
            return max(0, self._cluster.cores() - (self._devices.here(key) * threads if self._cluster.is_own else 0))

    def close(self) -> None:
        with self._changed:
            self._close()

    def _close(self) -> None:
        if self._actors is not None:
            self._actors.close()
            self._actors.wait_idle(CARRY_S)
        if self._builder is not None:
            self._builder.close()
        if self._cluster is not None:
            self._cluster.stop()
        self._actors = self._builder = self._cluster = None


def run_worker(
    storage_url: str,
    tracker: Address,
    *,
    data_dir: Path,
    device_keys: Sequence[str] | None = None,
    ray_address: str | None = None,
    name: str | None = None,
    tokens: TokenRule = TokenRule.AUTO,
    stop: threading.Event | None = None,
    on_ready: Callable[[str], None] = lambda name: None,
    cores: Cores | None = None,
    calibration: bool = False,
) -> None:
    """Work until ``stop`` is set or SIGTERM or SIGINT comes (which needs the main thread).

    ``device_keys`` restricts the worker to devices of these keys, ``tokens`` says which of them need a join token.
    Without ``ray_address`` it starts a Ray cluster of its own on this machine; builds and devices share its ``cores``.
    With ``calibration`` a device that has none is measured for about half a minute before the first search on it.
    ``on_ready`` is called with the worker's name once it waits for jobs. When it stops it releases its jobs and ends
    its children, within STOP_S.
    """
    stop = stop or threading.Event()
    storage = open_storage(storage_url)
    keys = tuple(device_keys) if device_keys is not None else None
    devices = DeviceList(storage, Tracker(*tracker), keys, tokens)
    tools = RayTools(devices, lambda: Cluster(data_dir, ray_address), stop, cores)
    calibrations = Calibrations(storage, candidates_of(devices, tools.on), tools.builder)
    rates_of = calibrations.rates if calibration else typical
    runner = JobRunner(storage, tools, stopping=stop.is_set, rates_of=rates_of)
    current = _Current(storage, runner, tools.searches)
    loop = LeaseLoop(storage, devices, current.run, name or worker_name(), stop, maintain=tools.maintain)
    threading.Thread(target=_exit_after_timeout, args=(stop, current, tools), name="exit", daemon=True).start()
    try:
        # Before the first job rather than in it: the actors take seconds to load the compiler.
        tools.maintain()
        log.info("worker %s is up", loop.worker)
        on_ready(loop.worker)
        loop.run_forever()
        log.info("worker %s is stopping", loop.worker)
    finally:
        tools.close()
        storage.close()
        current.done.set()


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class _Current:
    """The jobs that are being run, so that they can be released when the worker does not stop in time."""

    def __init__(
        self, storage: WorkerStorage, runner: JobRunner, searches: Callable[[], AbstractContextManager[OpenSearch]]
    ) -> None:
        self._storage = storage
        self._runner, self._searches = runner, searches
        self._leases: dict[str, Lease] = {}
        self.done = threading.Event()

    def run(self, lease: Lease) -> None:
        self._leases[lease.job.id] = lease
        try:
            with self._searches() as open_search:
                replace(self._runner, open_search=open_search).run(lease)
        finally:
            del self._leases[lease.job.id]

    def release(self) -> None:
        for lease in list(self._leases.values()):
            release(self._storage, lease)


def _exit_after_timeout(stop: threading.Event, current: _Current, tools: RayTools) -> None:
    """Exit if the worker has not stopped in time: a build or a measurement under way cannot be interrupted."""
    stop.wait()
    if not current.done.wait(STOP_S):
        log.warning("not stopped within %g s: exiting", STOP_S)
        current.release()
        try:
            within(CLOSE_S, tools.close)
        finally:
            os._exit(1)
