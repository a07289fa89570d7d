"""What is wrong with this machine, as far as Shapewright needs it: one finding for each thing that is looked at.

Every look is bounded: nothing waits longer than a few seconds, and a look that fails is a finding.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shapewright import defaults, extras
from shapewright.client import Client
from shapewright.errors import NotAllowed, ServiceError, ServiceUnreachable
from tuner import __version__
from tuner.device_speed import SpeedState, assess
from tuner.errors import ShapewrightError
from tuner.measure.network.addresses import check_port
from tuner.program.target import native
from tuner.program.target.cpu import refused

GIB = 1 << 30
DISK_LEAST, DISK_TIGHT = 1 * GIB, 5 * GIB
"""Free bytes below which records cannot be written for long, and below which a warning is due."""
MEMORY_TIGHT = 1 * GIB
ANSWER_S = 3.0
"""How long what listens at a port may take to say that it is a service."""
LEAST_SHARE = 0.9
"""The share of the time that a process has to have a core for, to count as undisturbed."""
WORK = bytes(1 << 20)
"""The fixed piece of work: its checksum, a fraction of a millisecond of one core."""
PACKAGES = ("apache-tvm", "numpy", "sqlalchemy", "fastapi", "ray", "torch", "onnx")
"""Packages whose versions decide most."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found at one look; ``remedy`` says what to do, unless all is well."""

    name: str
    state: State
    says: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Looks at this machine and at what the settings name. ``url``, ``database_url``: None for the default."""

    url: str | None = None
    key: str | None = None
    data_dir: Path | None = None
    database_url: str | None = None
    port: int = defaults.DEFAULT_PORT
    seconds: float = 1.0

    def findings(self) -> Iterator[Finding]:
        """One finding for each look, as it is made."""
        looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
            ("versions", versions),
            ("cpu", cpu),
            ("memory", memory),
            ("noise", lambda: noise(self.seconds)),
            ("blas", blas),
            ("compiler", compiler),
            ("disk", lambda: disk(self.data_dir or defaults.data_dir())),
            ("data directory", lambda: data_directory(self.data_dir or defaults.data_dir())),
            ("database", lambda: database(self.database_url or defaults.database_url(self.data_dir))),
            ("service", lambda: service(self.url, self.key, self.data_dir)),
            ("port", lambda: port_of(self.port)),
        )
        for name, look in looks:
            try:
                yield look()
            except ModuleNotFoundError as error:
                yield _not_known(name, error)
            except (OSError, ShapewrightError) as error:
                yield Finding(name, State.PROBLEM, str(error), "see what it says")


def _not_known(name: str, error: ModuleNotFoundError) -> Finding:
    """What a look is that needs an extra: nothing is wrong with a client that has no database."""
    missing = extras.of_error(error, "tune")
    if missing is None:
        raise error
    says, _, remedy = str(missing).partition(": ")
    return Finding(name, State.WARNING, f"not known: {says}", remedy)


# -- the machine ------------------------------------------------------------------------------------------------------
def versions() -> Finding:
    """Python, this package, what decides most of the rest, and the extras that are not installed."""
    there = {each: found for each in PACKAGES if (found := _version_of(each))}
    lacking = [extra for extra in extras.EXTRAS if not extras.is_installed(extra)]
    says = [f"shapewright {__version__}", f"Python {platform.python_version()}", *map(" ".join, there.items())]
    without = f"; without {', '.join(f'shapewright[{extra}]' for extra in lacking)}" if lacking else ""
    return Finding("versions", State.OK, ", ".join(says) + without)


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu() -> Finding:
    target = native()
    hardware = target.hardware
    caches = ", ".join(
        f"{name} {size >> 10} KiB"
        for name, size in (("L1d", hardware.l1d_bytes), ("L2", hardware.l2_bytes), ("L3", hardware.l3_bytes))
    )
    says = f"{target.fingerprint}: {hardware.cores} cores, {caches}; {', '.join(hardware.features) or 'no features'}"
    if reason := refused():
        problem, _, remedy = reason.partition(": ")
        return Finding("cpu", State.WARNING, f"{says}; {problem}, so kernels are those of AVX-512", remedy)
    if not {"avx2", "asimd"} & set(hardware.features):
        remedy = "run on a CPU with AVX2 or on AArch64; of a virtual machine, pass the host's CPU through"
        return Finding("cpu", State.WARNING, f"{says}: kernels use no wide vectors", remedy)
    with suppress(OSError):
        if (governor := GOVERNOR.read_text().strip()) == "powersave":
            remedy = "cpupower frequency-set --governor performance"
            return Finding("cpu", State.WARNING, f"{says}; its clock is governed by {governor}", remedy)
    return Finding("cpu", State.OK, says)


def memory() -> Finding:
    import psutil  # noqa: PLC0415 - for this look alone

    now = psutil.virtual_memory()
    says = f"{now.available / GIB:.1f} of {now.total / GIB:.1f} GiB available"
    if now.available < MEMORY_TIGHT:
        return Finding("memory", State.WARNING, says, "end other processes: candidates may fail for want of memory")
    return Finding("memory", State.OK, says)


def noise(seconds: float) -> Finding:
    """How much a fixed piece of work varies in so many seconds."""
    readings: list[float] = []
    started, used = time.perf_counter(), time.process_time()
    until = started + seconds
    while (began := time.perf_counter()) < until or len(readings) < 24:
        zlib.crc32(WORK)
        readings.append(time.perf_counter() - began)
    share = min(1.0, (time.process_time() - used) / (time.perf_counter() - started))
    speed, load, cores = assess(readings), os.getloadavg()[0], len(os.sched_getaffinity(0))
    within = f" (half of its readings within {100 * speed.spread:.0f} %)" if speed is not None else ""
    free = "free of" if share >= LEAST_SHARE else "disturbed by"
    had = f"{free} other work: this process had a core for {100 * share:.0f} % of {seconds:g} s"
    waiting = f"load {load:.1f} on {cores} core{'s' * (cores != 1)}"
    says = f"{speed or 'speed not measured'}{within}; {had}; {waiting}"
    allowed = _quota()
    if allowed is not None and allowed < cores:
        remedy = "raise the container's CPU limit: what is measured is paused whenever it is used up"
        return Finding("noise", State.WARNING, f"{says}; a quota of {allowed:g} CPUs", remedy)
    if (speed is not None and speed.state is not SpeedState.STEADY) or share < LEAST_SHARE or load > cores:
        remedy = "end other work while you tune, or compare results with `check --against`, which times in turns"
        return Finding("noise", State.WARNING, says, remedy)
    return Finding("noise", State.OK, says)


def _quota() -> float | None:
    """CPUs that the control group may use; None without a limit."""
    try:
        most, period = QUOTA.read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return None


def blas() -> Finding:
    """NumPy's BLAS, which results are compared with."""
    from tuner.blas import HOBBLES, numpys_blas  # noqa: PLC0415 - NumPy

    found = numpys_blas(native().hardware.features)
    if found is None:
        return Finding("blas", State.WARNING, "NumPy has none that is known", "install NumPy from PyPI")
    if found.hobbled:
        named = [name for name in HOBBLES if name in os.environ]
        remedy = f"unset {' '.join(named)}" if named else "install NumPy from PyPI"
        return Finding("blas", State.WARNING, str(found), f"{remedy}; devices measure without such settings")
    return Finding("blas", State.OK, str(found))


def compiler() -> Finding:
    """The linker that libraries are built with, which `pull --format c` needs, too."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        state = State.PROBLEM if extras.is_installed("tune") else State.WARNING
        return Finding("compiler", state, "there is no C compiler", "install gcc: libraries are linked by it")
    return Finding("compiler", State.OK, found)


# -- what the settings name -------------------------------------------------------------------------------------------
def disk(directory: Path) -> Finding:
    """Room for records and for temporary files."""
    places = {str(place): shutil.disk_usage(_existing(place)).free for place in (directory, tempfile.gettempdir())}
    says = ", ".join(f"{free / GIB:.1f} GiB free for {place}" for place, free in places.items())
    least = min(places.values())
    remedy = "make room (`shapewright db prune` deletes what is not needed), or set SHAPEWRIGHT_DATA_DIR and TMPDIR"
    if least < DISK_TIGHT:
        return Finding("disk", State.PROBLEM if least < DISK_LEAST else State.WARNING, says, remedy)
    return Finding("disk", State.OK, says)


def _existing(place: str | Path) -> Path:
    """The folder, or the nearest one above it that there is."""
    path = Path(place).absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def data_directory(directory: Path) -> Finding:
    name = "data directory"
    if not directory.exists():
        return Finding(name, State.OK, f"{directory} is not there yet: `up` makes it")
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        says = f"{directory} is no directory that this user may write to"
        return Finding(name, State.PROBLEM, says, "name another with SHAPEWRIGHT_DATA_DIR")
    if directory.stat().st_mode & 0o077:
        return Finding(name, State.WARNING, f"{directory} is open to others: it holds keys", f"chmod 700 {directory}")
    return Finding(name, State.OK, str(directory))


def database(url: str) -> Finding:
    """Whether it answers, and has the schema of this version."""
    from tuner.storage import StorageUnavailable  # noqa: PLC0415 - for who has a database here
    from tuner.storage.sql.engine import connect, parse_url  # noqa: PLC0415
    from tuner.storage.sql.migrate import NEWER, current, head, known  # noqa: PLC0415

    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        return Finding("database", State.OK, f"there is none yet at {parsed.database}: `up` makes it")
    opened = connect(url)
    try:
        revision = current(opened)
    except StorageUnavailable as error:
        return Finding(
            "database", State.PROBLEM, str(error), "see that it runs, and that the URL and password are right"
        )
    finally:
        opened.engine.dispose()
    says = f"{parsed}: revision {revision or 'none'}"
    if revision == head():
        return Finding("database", State.OK, says)
    remedy = "shapewright db upgrade" if revision is None or revision in known() else NEWER
    return Finding("database", State.PROBLEM, f"{says}, this version has {head()}", remedy)


def service(url: str | None, key: str | None, data_dir: Path | None) -> Finding:
    """Whether it answers, takes the key, and has devices."""
    with Client(url, key, data_dir) as client:
        try:
            devices = client.devices()
        except NotAllowed as error:
            return Finding("service", State.PROBLEM, str(error), "make one with `shapewright keys create NAME`")
        except ServiceUnreachable as error:
            if url is None and not os.environ.get("SHAPEWRIGHT_URL"):
                return Finding("service", State.OK, f"none runs at {client.url}: `shapewright up` starts one")
            return Finding("service", State.PROBLEM, str(error), "start it, or set SHAPEWRIGHT_URL")
        except ServiceError as error:
            return Finding("service", State.PROBLEM, str(error), "set SHAPEWRIGHT_URL")
    if not devices:
        says = f"{client.url} answers; no device has registered"
        return Finding("service", State.WARNING, says, "start a worker, and `shapewright device serve`")
    keys = ", ".join(sorted({str(each["key"]) for each in devices}))
    return Finding("service", State.OK, f"{client.url} answers; devices of the keys {keys}")


def port_of(port: int) -> Finding:
    """Whether `up` could listen there."""
    try:
        check_port(port)
    except OSError as error:
        if _is_service(port):
            return Finding("port", State.OK, f"{port}: a Shapewright service listens there")
        says = f"{port} of 127.0.0.1 cannot be used: {error.strerror}"
        return Finding("port", State.PROBLEM, says, "stop what listens there, or `up --port N`")
    return Finding("port", State.OK, f"{port} is free")


def _is_service(port: int) -> bool:
    import httpx  # noqa: PLC0415 - for this look alone

    with suppress(httpx.HTTPError):
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=ANSWER_S, trust_env=False)
        return answer.status_code == 200 and "x-request-id" in answer.headers
    return False
