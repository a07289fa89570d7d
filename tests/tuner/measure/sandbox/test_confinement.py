"""Candidates that take what they should not have: their failure, and the device goes on."""

from __future__ import annotations

import itertools
import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from shapewright.watchdog import MARKER
from tests.measuring import RIGHT, TASK, request, wait_for
from tests.shares import chosen, spread
from tuner.errors import InvalidInput
from tuner.measure.device import process as device_process
from tuner.measure.device.options import DeviceOptions
from tuner.measure.device.session_folder import DEEPEST, FolderWatch, is_full
from tuner.measure.network.connecting import Tracker
from tuner.measure.processes import device_environment
from tuner.measure.rpc_names import device_key
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.runners.session import Connect
from tuner.measure.sandbox.confinement import (
    DEFAULT_LIMITS,
    FOLDER_BYTES,
    NOT_CONFINED,
    OPEN_FILES,
    Limits,
    check,
    clean_environment,
    parse_memory,
)
from tuner.measure.sandbox.removal import remove
from tuner.records import ErrorKind
from worker.tracker import start_tracker

USER = "nobody"

EATS_MEMORY = "for (char *p; (p = malloc(1 << 24)); ) memset(p, 1, 1 << 24);"
EATS_UNTIL_IT_CRASHES = "for (;;) memset(malloc(1 << 24), 1, 1 << 24);"
MAPS_SHARED = "for (;;) if (mmap(0, 1 << 24, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;"
OPENS_FILES = 'while (open("/dev/null", 0) != -1);'
WRITES_ONE_FILE = """
  static char block[1 << 20];
  for (int file = open("much", O_CREAT | O_WRONLY, 0600);;) if (write(file, block, sizeof block) < 0) raise(SIGSEGV);
"""
WRITES_MANY_FILES = """
  static char block[1 << 24];
  signal(SIGXFSZ, SIG_IGN);
  for (int n = 0;; ++n) {
    char name[32]; snprintf(name, sizeof name, "much%d", n);
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    if (write(file, block, sizeof block) < 0) pause();
    close(file);
  }
"""
FORKS = "while (fork() != -1);"
RUNS_A_PROGRAM = 'system("true");'
STARTS_THREADS = """
  pthread_t thread;
  while (!pthread_create(&thread, 0, (void *(*)(void *))pause, 0));
"""
KILLS_THE_DEVICE = "kill(getppid(), SIGKILL);"
GOES_DEEP = 'for (int i = 0; i < 1200; ++i) { mkdir("d", 0700); chdir("d"); }'
GOES_DEEP_AND_CRASHES = GOES_DEEP + "raise(SIGSEGV);"
GOES_DEEP_AND_WAITS = GOES_DEEP + "signal(SIGXFSZ, SIG_IGN); pause();"
CLOSES_ITS_FOLDER = 'mkdir("d", 0700); mkdir("d/e", 0700); chmod("d/e", 0); chmod("d", 0); raise(SIGSEGV);'
MAKES_MEMORY_THAT_NOTHING_COUNTS = """
  out[0] += 1e9 * (syscall(SYS_memfd_create, "a", 0) != -1);
  out[0] += 1e9 * (syscall(SYS_shmget, 0, 4096, 01600) != -1);
  out[0] += 1e9 * (syscall(SYS_mq_open, "a", O_CREAT | O_RDWR, 0600, 0) != -1 || errno != EPERM);
"""
CHANGES_LIMITS_OF_THE_DEVICE = """
  struct rlimit bound;
  out[0] += 1e9 * !!prlimit(0, RLIMIT_NOFILE, 0, &bound);
  out[0] += 1e9 * !prlimit(getppid(), RLIMIT_NOFILE, 0, &bound);
"""
READS_SECRETS = """
  char text[65536] = {0};
  int file = open("/proc/self/environ", O_RDONLY);
  int length = read(file, text, sizeof text - 1);
  close(file);
  for (int i = 0; i < length; ++i) if (!strncmp(text + i, "SECRET", 6)) out[0] += 1e9;
  if (getenv("SECRET")) out[0] += 1e9;
"""
WRITES_TO_THE_TRACKER = """
  for (int number = 3; number < 64; ++number) {
    int listens = 0;
    unsigned length = sizeof listens;
    if (!getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) && listens) out[0] += 1e9;
  }
"""
READS_WHAT_IT_WAITED = """
  char name[64];
  snprintf(name, sizeof name, "/proc/self/task/%d/schedstat", (int)syscall(SYS_gettid));
  int file = open(name, O_RDONLY);
  out[0] += 1e9 * (file == -1);
  close(file);
"""


@dataclass(frozen=True, slots=True)
class Device:
    """How it is reached, the process that serves it, and the user that was named."""

    connect: Connect
    pid: int
    user: str | None = None
    folder: Path | None = None


DEVICES = ("as it is", "another user")


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """On its own, and as another user's, by the command line with a tracker."""
    folder = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SECRET", "abc")
        if request.param == "as it is":
            local = stack.enter_context(LocalDevice(folder, ["--memory", "512M"]))
            yield Device(local.connect, local.pid, folder=folder)
            return
        if os.geteuid() != 0:
            pytest.skip("only root can run candidates as another user")
        # Below pytest's own folder, which is closed to others.
        patch.delenv("TMPDIR", raising=False)
        tracker = stack.enter_context(start_tracker(data_dir=folder))
        line = f"device serve --tracker 127.0.0.1:{tracker.port} --id a --json --memory 512M --user {USER}"
        served = subprocess.Popen([sys.executable, "-m", "shapewright", *line.split()], stdout=subprocess.PIPE)
        stack.enter_context(served)
        stack.callback(served.terminate)
        assert served.stdout is not None
        assert json.loads(served.stdout.read())["pid"] == served.pid
        client = Tracker("127.0.0.1", tracker.port)
        yield Device(
            lambda life_s, never: client.request(device_key("local", "a"), life_s, 20.0, never), served.pid, USER
        )


@pytest.fixture
def runner(device: Device) -> Iterator[RpcRunner]:
    opened = RpcRunner(device.connect, timeout_s=8.0)
    yield opened
    opened.close()


TAKES_TOO_MUCH = (
    *(EATS_MEMORY, EATS_UNTIL_IT_CRASHES, MAPS_SHARED, OPENS_FILES, WRITES_ONE_FILE, WRITES_MANY_FILES),
    *(RUNS_A_PROGRAM, FORKS, STARTS_THREADS, GOES_DEEP_AND_CRASHES, GOES_DEEP_AND_WAITS, CLOSES_ITS_FOLDER),
)


LIMITS = (MAPS_SHARED, OPENS_FILES, WRITES_ONE_FILE, WRITES_MANY_FILES, FORKS, GOES_DEEP_AND_WAITS)
"""For each limit one that meets it."""
OF_USERS = (FORKS, CLOSES_ITS_FOLDER)
"""The limits are set by the same code: what the system counts by user, and what may not be removed by another."""
QUICK = [(DEVICES[0], LIMITS), (DEVICES[1], OF_USERS)]


@pytest.mark.parametrize(
    ("device", "behaviours"),
    spread(chosen(QUICK, [*QUICK, *itertools.product(DEVICES, ((each,) for each in TAKES_TOO_MUCH))])),
    indirect=["device"],
    ids=str,
)
def test_a_candidate_that_takes_too_much_has_failed_and_the_device_goes_on(
    device: Device, runner: RpcRunner, behaviours: tuple[str, ...]
) -> None:
    right = [request(RIGHT, number) for number in range(len(behaviours) + 1)]
    wrong = [request(behaviour, len(right) + number) for number, behaviour in enumerate(behaviours)]
    # By turns, the first and the last are right.
    asked = [each for pair in zip(right, wrong, strict=False) for each in pair]
    results = runner.run(TASK, [*asked, right[-1]])
    wanted = [*(None, ErrorKind.CRASH) * len(wrong), None]
    assert [result.error_kind for result in results] == wanted, [result.error for result in results]
    runner.close()
    wait_for(lambda: psutil.Process(device.pid).children() == [])
    if folder := device.folder:
        wait_for(lambda: not list(folder.glob("shapewright-*/tmp*")))


REACHES_OUT = (
    *(KILLS_THE_DEVICE, READS_SECRETS, WRITES_TO_THE_TRACKER),
    *(MAKES_MEMORY_THAT_NOTHING_COUNTS, CHANGES_LIMITS_OF_THE_DEVICE),
)


def test_a_candidate_reaches_nothing_of_the_devices_own(device: Device, runner: RpcRunner) -> None:
    results = runner.run(TASK, [request(behaviour, number) for number, behaviour in enumerate(REACHES_OUT)])
    assert [result.error_kind for result in results] == [None] * 5, [result.error for result in results]
    assert psutil.Process(device.pid).is_running()


def test_nothing_that_a_measurement_needs_is_changed(device: Device, runner: RpcRunner) -> None:
    runner.run(TASK, [request()])
    (session,) = psutil.Process(device.pid).children()
    server, bound = (_status(pid) for pid in (device.pid, session.pid))
    for name in ("Cpus_allowed", "Mems_allowed", "Speculation_Store_Bypass", "SpeculationIndirectBranch"):
        assert bound[name] == server[name]
    assert bound.get("THP_enabled") == server.get("THP_enabled")
    assert session.nice() == psutil.Process(device.pid).nice()
    assert (bound["NoNewPrivs"], bound["Seccomp"]) == ("1", "2")
    limits = Path(f"/proc/{session.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 +0 ", limits)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count what threads wait")
def test_what_threads_waited_for_a_core_is_known(device: Device, runner: RpcRunner) -> None:
    (result,) = runner.run(TASK, [request(READS_WHAT_IT_WAITED)])
    assert result.ok, result.error


def test_open_files_are_bounded_below_what_the_system_bounds(device: Device, runner: RpcRunner) -> None:
    """Where the system allows few, a candidate that opens all of them ends as soon."""
    runner.run(TASK, [request()])
    (session,) = psutil.Process(device.pid).children()
    limits = Path(f"/proc/{session.pid}/limits").read_text()
    assert re.search(rf"Max open files +{OPEN_FILES} +{OPEN_FILES} ", limits)


def test_candidates_run_as_the_user_that_was_named(device: Device, runner: RpcRunner) -> None:
    runner.run(TASK, [request()])
    (session,) = psutil.Process(device.pid).children()
    assert session.username() == (device.user or psutil.Process().username())
    if device.user:
        assert _status(session.pid)["CapEff"] == "0" * 16
        assert _status(session.pid)["Groups"] == ""


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_user_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--user: there is no user 'nobody-here'"):
        check(Limits(user="nobody-here"))
    with pytest.raises(InvalidInput, match="--user: 'root' is root, which no limit binds"):
        check(Limits(user="root"))


def test_a_folder_that_the_user_cannot_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run candidates as another user")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(InvalidInput, match=f"{USER} cannot reach {tmp_path}"):
        check(Limits(user=USER))


def test_a_session_that_cannot_be_bound_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_process, "keep_sockets", lambda wanted: 1 / 0)
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            try:
                sys.stderr = said
                device_process._begin_session(DeviceOptions())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        assert "ZeroDivisionError" in said.read()
    assert os.waitstatus_to_exitcode(status) == NOT_CONFINED


def test_what_is_not_bound_is_said() -> None:
    says = check(DEFAULT_LIMITS) or ""
    assert ("candidates run as root" in says) == (os.geteuid() == 0)
    assert check(Limits(user=pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() else USER)) is None


def test_of_the_environment_only_what_is_needed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEWRIGHT_DATABASE_URL", "postgresql://me:secret@host/name")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    monkeypatch.setenv(MARKER, "up-1")
    kept = clean_environment(device_environment(None))
    assert kept[MARKER] == "up-1", "else the watchdog of `up` would not find it"
    assert not {"SHAPEWRIGHT_DATABASE_URL", "SSH_AUTH_SOCK"} & set(kept)
    assert kept["PATH"] == os.environ["PATH"]
    assert device_environment(None).items() <= kept.items()


def test_sizes_of_memory() -> None:
    assert [parse_memory(text) for text in ("0", "64M", "8G", "134217728")] == [0, 2**26, 2**33, 2**27]
    for text in ("", "G", "-1", "1.5G", "8g", "8 G", "1M", "9" * 30, "²G"):
        with pytest.raises(InvalidInput, match=r"--memory: .* is no size"):
            parse_memory(text)


def test_a_folder_is_full_by_its_files_and_by_how_many_they_are(tmp_path: Path) -> None:
    assert not is_full(tmp_path)
    assert not is_full(tmp_path / "gone")
    (tmp_path / "a" / "b").mkdir(parents=True)
    with (tmp_path / "a" / "b" / "sparse").open("wb") as file:
        file.truncate(FOLDER_BYTES)
    assert is_full(tmp_path)


def deep(folder: Path, levels: int) -> None:
    """Folders in one another, with a file at the end."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a" * 50, dir_fd=here)
        inner = os.open("a" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


@pytest.mark.parametrize("levels", [DEEPEST + 1, 1500])
def test_a_folder_that_is_too_deep_is_full_and_is_removed(tmp_path: Path, levels: int) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    deep(folder, 2)
    assert not is_full(folder)
    (folder / "b").mkdir()
    deep(folder / "b", levels)
    assert is_full(folder)
    remove(folder)
    assert not folder.exists()
    remove(folder)


def test_a_folder_that_tvms_server_left_and_did_not_remove_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    monkeypatch.chdir(folder)
    watch = FolderWatch(tmp_path, set())
    watch.look(threading.current_thread())
    os.chdir(tmp_path)
    watch.clear()
    assert not folder.exists()
    assert Path.cwd() == tmp_path


def test_what_a_link_leads_to_is_not_removed(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "session"
    for each in (kept, folder, folder / "a"):
        each.mkdir()
    (kept / "file").touch()
    (folder / "link").symlink_to(kept)
    (folder / "a" / "link").symlink_to(kept)
    remove(folder)
    assert not folder.exists()
    assert (kept / "file").exists()
