"""What a session of a device may use: it runs candidates, which are code that a search has made up.

Nothing here changes how fast a candidate runs: affinity, scheduling, huge pages and caches stay as they are.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import MAX_SHOWN, InvalidInput
from tuner.measure.sandbox import syscalls

MEMORY_SHARE = 0.75
"""The share of the machine's memory, or of the control group's, that a session may map by default."""
FOLDER_BYTES = 512 * 2**20
"""The bytes that a session may keep in its folder, and in one file."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MIN_BYTES = 64 * 2**20
OPEN_FILES = 256
THREADS = 256
"""Threads of a user that candidates alone run as; for each core four more."""
STACKS_BYTES = 136 * 2**20
"""The bytes that a thread maps: its stack, and an arena of malloc."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
UNREACHABLE, NOT_CONFINED, NO_FILTER = 96, 97, 98
"""Exit codes of a process that is confined and cannot reach the folder of sessions, of one that could not be confined,
and of one that could, but for the filter of system calls."""
_PLACES = {resource.RLIMIT_AS: 0, resource.RLIMIT_DATA: 5}
"""Where /proc/self/statm has what a limit is of."""
GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SIGNER = "SHAPEWRIGHT_DEVICE_SIGNER"
"""The variable that names the way to a device's signer (tuner.measure.device.signer): a number, and no secret."""
KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "SHAPEWRIGHT_LOG_FORMAT"),
        *("SHAPEWRIGHT_DEBUG", SIGNER, "SHAPEWRIGHT_UP_ID"),
    }
)
"""What a device takes over from the environment of whoever starts it: no keys, no agents, no URLs. By the last name
`up` finds the processes that it has to end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``memory`` in bytes, beyond what the process has before it sees a candidate: None is MEMORY_SHARE, 0 is no limit.
    ``user``: whom candidates run as; None is whoever serves. ``of_data``: bounded is what the process may write to, not
    what it maps: the driver of a GPU maps as many addresses as there are bytes in the machine and its GPUs."""

    memory: int | None = None
    user: str | None = None
    of_data: bool = False


DEFAULT_LIMITS = Limits()


def clean_environment(added: dict[str, str]) -> dict[str, str]:
    """The part of this process's environment that a device needs, and ``added``."""
    return {name: value for name, value in os.environ.items() if name in KEPT or name in added} | added


def check(limits: Limits) -> str | None:
    """Confine a process that does nothing: what is missing, in words. Raises InvalidInput where it cannot be done."""
    if limits.user is not None:
        _user(limits.user)
    # Chosen here, as for sessions: another user could have to choose another one.
    folder = Path(tempfile.gettempdir())
    pid = os.fork()
    if pid == 0:
        os.chdir("/")
        confine(limits, is_own_folder=False)
        os._exit(0 if os.access(folder / ".", os.X_OK) else UNREACHABLE)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == UNREACHABLE:
        problem = f"{limits.user} cannot reach {folder}, where sessions work"
        raise InvalidInput("--user", problem, "name another folder in TMPDIR")
    if code not in (0, NO_FILTER):
        raise InvalidInput("--user", f"sessions cannot be confined (exit code {code}), see above", "serve without it")
    missing = ["system calls are not filtered: candidates may start processes"] if code == NO_FILTER else []
    if os.geteuid() == 0 and limits.user is None:
        missing.append(
            "candidates run as root, which no limit binds: start as another user, or `device serve --user NAME`"
        )
    return "; ".join(missing) or None


def confine(limits: Limits, *, is_own_folder: bool = True) -> None:
    """Bind this process, a session's, for good. Ends it where that is not possible.

    In ``check`` a missing filter ends it, too; a session goes on without.
    """
    try:
        cores = len(os.sched_getaffinity(0))
        _limit_resources(limits, cores)
        if limits.user is not None:
            _become(_user(limits.user), is_own_folder, cores)
        _prctl(PR_SET_NO_NEW_PRIVS, 1)
        # After the change of user, which forgets it.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Python ignores it, and the device ends a session by it whose folder is full.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    except BaseException:  # Python would go on after an error in a forked process
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(NOT_CONFINED)
    try:
        if not syscalls.is_known():
            raise OSError("there is no filter for this machine")
        syscalls.restrict()
    except OSError:
        if not is_own_folder:
            os._exit(NO_FILTER)


def set_undumpable() -> None:
    """From now on processes of the same user read neither this one's memory nor its environment. Root does."""
    _prctl(PR_SET_DUMPABLE, 0)


def keep_sockets(is_wanted: Callable[[socket.socket], bool]) -> None:
    """Close the TCP sockets of this process that are not wanted: a session inherits the device's own."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # closed meanwhile
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as own:
                    is_tcp = own.family in (socket.AF_INET, socket.AF_INET6)
                    if is_tcp and not is_wanted(own):
                        os.close(int(entry.name))


def memory_of(limits: Limits) -> int:
    """Bytes; 0 is no limit."""
    if limits.memory is not None:
        return limits.memory
    import psutil  # noqa: PLC0415 - for devices alone: a bundle's host need not have it

    available = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no control group, or "max"
        available = min(available, int(GROUP_LIMIT.read_text()))
    return int(MEMORY_SHARE * available)


def taken_bytes(of: int) -> int:
    """The bytes of this process that a limit is of: RLIMIT_AS of all that it maps, RLIMIT_DATA of what it may write."""
    return int(Path("/proc/self/statm").read_text().split()[_PLACES[of]]) * resource.getpagesize()


def open_files() -> int:
    """About how many file descriptors this process has."""
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.close(lowest)
    return lowest


class Appetite:
    """What the process has taken since this was made, against its limits."""

    def __init__(self) -> None:
        is_of_data = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
        self._of = resource.RLIMIT_DATA if is_of_data else resource.RLIMIT_AS
        self._before = taken_bytes(self._of)
        self._for_threads = len(os.sched_getaffinity(0)) * STACKS_BYTES

    def excess(self, own_bytes: int) -> str | None:
        """A message if more than half of what it may use is gone, beside ``own_bytes`` that are no candidate's."""
        files = open_files()
        if 2 * files > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            return f"it holds {files} files open of the {OPEN_FILES} that a session may have"
        limit = resource.getrlimit(self._of)[0]
        taken = taken_bytes(self._of) - self._before - own_bytes - self._for_threads
        allowed = limit - self._before - self._for_threads
        if limit != resource.RLIM_INFINITY and 2 * taken > allowed:
            return f"it holds {taken // 2**20} MiB of memory of the {allowed // 2**20} that a session may use"
        return None


def parse_memory(text: str) -> int:
    """``8G`` in bytes. Raises InvalidInput."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in tuple(UNITS)[1:] else (text, "")
    if not (number.isascii() and number.isdecimal() and len(number) < 16) or 0 < int(number) * UNITS[unit] < MIN_BYTES:
        problem = f"{text[:MAX_SHOWN]!r} is no size from 64M on"
        raise InvalidInput("--memory", problem, "as in 8G or 512M; 0 for no limit")
    return int(number) * UNITS[unit]


def _limit_resources(limits: Limits, cores: int) -> None:
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: FOLDER_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if memory := memory_of(limits):
        of = resource.RLIMIT_DATA if limits.of_data else resource.RLIMIT_AS
        bounds[of] = memory + taken_bytes(of) + cores * STACKS_BYTES
    for which, bound in bounds.items():
        hard = resource.getrlimit(which)[1]
        allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (allowed, allowed))


def _become(user: pwd.struct_passwd, is_own_folder: bool, cores: int) -> None:
    if is_own_folder:
        os.chown(".", user.pw_uid, user.pw_gid)
    if os.geteuid() != user.pw_uid:
        most = THREADS + 4 * cores
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    for name, value in (("HOME", "/"), ("USER", user.pw_name), ("LOGNAME", user.pw_name)):
        os.environ[name] = value


def _user(name: str) -> pwd.struct_passwd:
    """Raises InvalidInput."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        remedy = "make one: useradd --system --no-create-home NAME"
        raise InvalidInput("--user", f"there is no user {name!r}", remedy) from None
    if user.pw_uid == 0:
        raise InvalidInput("--user", f"{name!r} is root, which no limit binds", "another one")
    if os.geteuid() not in (0, user.pw_uid):
        raise InvalidInput("--user", f"only root can run candidates as {name!r}", "start as root, or as that user")
    return user


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
