"""Device processes and the ways to them: they end with their parent, come back after a crash; every wait ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import psutil
import pytest

from tests.measuring import CRASH, RIGHT, TASK, request
from tuner.measure import DeviceLost
from tuner.measure.child import Child, ChildFailed
from tuner.measure.network.addresses import free_port, parse_address
from tuner.measure.network.connecting import Connected, OutOfTime, Tracker, connect_server, within
from tuner.measure.processes import device_environment
from tuner.measure.runners.local_device import MODULE, LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.sandbox.confinement import clean_environment
from tuner.records import ErrorKind


def test_a_device_that_was_killed_is_started_again_and_stop_removes_its_files(tmp_path: Path) -> None:
    """And devices of one machine take the ports that are free."""
    with LocalDevice(tmp_path) as device, LocalDevice(tmp_path) as second:
        assert device.connect(5.0).address[1] != second.connect(5.0).address[1]
        runner = RpcRunner(device.connect, timeout_s=5.0)
        assert runner.run(TASK, [request()])[0].ok
        before = device.pid
        os.kill(before, signal.SIGKILL)
        # The session's process ends with its server; the candidate is not blamed for that.
        assert [result.error_kind for result in runner.run(TASK, [request(RIGHT, 1)])] == [None]
        assert device.pid != before
        assert [result.error_kind for result in runner.run(TASK, [request(CRASH, 2)])] == [ErrorKind.CRASH]
        assert any(tmp_path.rglob("*"))
        runner.close()
    assert list(tmp_path.iterdir()) == []


def test_a_device_whose_end_shows_late_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed seems alive until all of its threads are gone."""
    with LocalDevice(tmp_path) as device:
        killed, seems_alive = device._child, chain([True], repeat(False))
        os.kill(device.pid, signal.SIGKILL)
        killed._process.wait(10.0)
        monkeypatch.setattr(killed, "alive", lambda: next(seems_alive))
        connected = device.connect(5.0)
        assert device._child is not killed
        assert connected.address == ("127.0.0.1", device._child.port)


# Runs a device beside which another server wants its port, whenever a session has died.
_RIVAL = """
import errno, socket, sys
from pathlib import Path
from tuner.measure.device import process as device_process
from tuner.measure.device import session_folder

log, taken, clear = Path(sys.argv.pop(1)), [], session_folder.FolderWatch.clear

def clear_and_take(self):
    clear(self)
    try:
        taken.append(socket.create_server(("127.0.0.1", int(sys.argv[2]))))
        log.open("a").write("taken ")
    except OSError as error:
        log.open("a").write(errno.errorcode[error.errno] + " ")

session_folder.FolderWatch.clear = clear_and_take
device_process.main()
"""


def test_a_device_whose_sessions_crash_never_gives_its_port_up(tmp_path: Path) -> None:
    """Else another device of the machine comes by it, and this one is lost."""
    port, log = free_port(), tmp_path / "log"
    line = [sys.executable, "-c", _RIVAL, str(log), "--port", str(port)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=clean_environment(device_environment(None))) as process:
        try:
            assert process.stdout is not None and json.loads(process.stdout.readline())["port"] == port
            runner = RpcRunner(partial(connected, port), timeout_s=5.0)
            requests = [request(CRASH, 1), request(RIGHT, 2), request(CRASH, 3), request(RIGHT, 4)]
            kinds = [result.error_kind for result in runner.run(TASK, requests)]
            runner.close()
        finally:
            process.kill()
    assert kinds == [ErrorKind.CRASH, None, ErrorKind.CRASH, None]
    assert set(log.read_text().split()) == {"EADDRINUSE"}


def connected(port: int, life_s: float, interrupted: Callable[[], bool]) -> Connected:
    session = connect_server("127.0.0.1", port, "", life_s, 20.0, interrupted)
    if session is None:
        raise DeviceLost(f"nobody answers at port {port}")
    return Connected(session, ("127.0.0.1", port))


def test_a_device_ends_with_its_parent_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from tuner.measure.child import Child;"
        f"child = Child({MODULE!r}, []); print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    device = psutil.Process(int(parent.stdout.readline()))
    assert device.is_running()
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    _, alive = psutil.wait_procs([device], timeout=10)
    assert alive == [] or alive[0].status() == psutil.STATUS_ZOMBIE


def test_a_child_that_ends_before_it_is_ready_says_so(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="exit code 2"):
        Child("json.tool", ["--indent", "no number"], data_dir=tmp_path)


def test_a_tracker_that_is_not_there_is_a_lost_device() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tracker = Tracker("127.0.0.1", probe.getsockname()[1])
    with pytest.raises(DeviceLost, match="no device 'local' from tracker"):
        tracker.request("local", 5.0, wait_s=0.3)
    with pytest.raises(DeviceLost, match="does not answer"):
        tracker.servers()


def test_a_listener_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        assert connect_server("127.0.0.1", port, "", 5.0, wait_s=0.5) is None
        with pytest.raises(DeviceLost):
            Tracker("127.0.0.1", port).request("local", 5.0, wait_s=0.5)
        assert time.monotonic() - started < 20


def test_within_gives_the_value_the_error_or_up() -> None:
    assert within(5.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    with pytest.raises(OutOfTime):
        within(0.05, lambda: time.sleep(1))


def test_an_error_from_within_keeps_nothing_of_its_caller_alive() -> None:
    """Else a session would stay open, and its device taken, until a garbage collection."""

    class Session:
        gone = False

        def __del__(self) -> None:
            Session.gone = True

    def caller() -> None:
        session = Session()
        try:
            within(5.0, lambda: 1 // 0)
        except ZeroDivisionError:
            assert not session.gone

    gc.disable()
    try:
        caller()
        assert Session.gone
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ["9190", "host:", "host:x", ":1", "host:0", "host:65536"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)
