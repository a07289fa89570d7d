"""The Ray cluster that a worker builds on: one of its own on this machine, or an existing one.

A cluster of its own ends with ``stop``. If the worker is killed, Ray's daemons and the actors end within seconds,
Ray's agents within about a minute.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import ray

from tuner.errors import InvalidInput
from tuner.measure.processes import process_directory, temporary_directory

log = logging.getLogger(__name__)

MAX_DIRECTORY = 42
"""Bytes: Ray puts Unix sockets some 65 below its directory, and their paths end at 107."""
SESSIONS = "s"
"""Ray's own directory, in one that is closed to others: Ray opens its own to all, and candidates are compiled there."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Temporary folders for where the user's own has too long a name."""
MAX_LOGS = 100
"""Log files of Ray's processes that have ended. Each job has processes of its own, with several files each."""
PROCESS_LOG = re.compile(r".*[-_](\d+)\.(?:out|err|log)(?:\.\d+)?")
"""The log of a process, whose number its name ends with."""
OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum: only binaries of a few kilobytes pass through."""
ASK_EVERY_S = 5.0
DAEMONS = ("raylet", "gcs_server")


class Cluster:
    """A connection to Ray. One at a time in a process, because Ray allows no more."""

    def __init__(self, data_dir: Path, address: str | None = None, cores: int | None = None) -> None:
        """Connect to ``address``, or start a cluster of ``cores`` (all that this process may use) in ``data_dir``."""
        self._directory: Path | None = None
        self._daemons: list[psutil.Process] = []
        self._cores, self._ask_again_s = 1, float("-inf")
        options = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address is not None:
            ray.init(address=address, **options)
            self._daemons = _node_of_this_driver()
            return
        self._directory = _directory(data_dir)
        try:
            with _temporary_folder(self._directory / "builds"):
                ray.init(
                    address="local",
                    num_cpus=cores or len(os.sched_getaffinity(0)),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(self._directory / SESSIONS),
                    _node_ip_address="127.0.0.1",
                    **options,
                )
            self._daemons = [child for child in psutil.Process().children(recursive=True) if _is_daemon(child)]
        except BaseException:
            self.stop()
            raise

    @property
    def is_own(self) -> bool:
        """Whether it is one of this worker's own, on this machine."""
        return self._directory is not None

    def cores(self) -> int:
        """The cores of all present nodes, read anew every ASK_EVERY_S."""
        # Calls to a dead cluster hang.
        if time.monotonic() >= self._ask_again_s and self.alive():
            self._cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
            self._sweep()
            self._ask_again_s = time.monotonic() + ASK_EVERY_S
        return self._cores

    def alive(self) -> bool:
        """Whether Ray's daemons on this machine run; calls to a cluster that has lost one hang instead of failing."""
        return ray.is_initialized() and all(_is_running(daemon) for daemon in self._daemons)

    def _sweep(self) -> None:
        """Remove the oldest logs of processes that have ended, but for MAX_LOGS."""
        if self._directory is not None:
            for path in ended_logs(self._directory / SESSIONS / "session_latest" / "logs")[:-MAX_LOGS]:
                path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Disconnect; end the cluster if this worker started it."""
        ray.shutdown()
        if self._directory is None:
            return
        for daemon in self._daemons:
            if _is_running(daemon):
                daemon.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


def ended_logs(folder: Path) -> list[Path]:
    """The log files there of processes that have ended, the oldest first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = PROCESS_LOG.fullmatch(path.name)
        with suppress(FileNotFoundError):  # rotated meanwhile
            if match and not psutil.pid_exists(int(match[1])):
                found.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(found)]


def _directory(data_dir: Path) -> Path:
    """A directory for this process's cluster, closed to others: in ``data_dir`` if the path is short enough for Ray,
    else in a temporary folder. Raises InvalidInput where there is none."""
    data_dir.mkdir(0o700, parents=True, exist_ok=True)
    wanted = process_directory(data_dir.resolve(), "ray")
    if _is_short(wanted):
        wanted.mkdir(0o700, exist_ok=True)
        wanted.chmod(0o700)
        return wanted
    for folder in (tempfile.gettempdir(), *SHORT_FOLDERS):
        with suppress(OSError):  # there is no such folder, or it is closed
            made = temporary_directory("sw-ray", Path(folder))
            if _is_short(made):
                return made
            made.rmdir()
    problem = f"{tempfile.gettempdir()} and {data_dir} have names too long for Ray's sockets: {MAX_DIRECTORY} bytes"
    raise InvalidInput("TMPDIR", problem, "name a shorter one, or a shorter --data-dir")


def _is_short(directory: Path) -> bool:
    return len(os.fsencode(directory / SESSIONS)) <= MAX_DIRECTORY


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """The one of the processes that are started inside, and of theirs: what a build leaves that is killed goes with the
    cluster's directory."""
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


def _node_of_this_driver() -> list[psutil.Process]:
    """The raylet that this process is connected to, which somebody else started and will start again."""
    wanted = f"--node_id={ray.get_runtime_context().get_node_id()}"
    found = psutil.process_iter(["name", "cmdline"])
    return [each for each in found if each.info["name"] in DAEMONS and wanted in (each.info["cmdline"] or ())]


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return process.name() in DAEMONS
    except psutil.NoSuchProcess:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
