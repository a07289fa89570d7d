"""What long-running processes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tuner.measure.processes import process_directory, set_on_signals, stop_on_signals, temporary_directory


def test_signals_set_the_event_and_their_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=set_on_signals, args=(threading.Event(),))
    thread.start()
    thread.join(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_directories_of_processes_that_ended_are_removed_and_no_others(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    for name in (f"up-{ended.pid}", f"up-{os.getpid()}", "up-text", f"ray-{ended.pid}"):
        (tmp_path / name).mkdir()
    assert process_directory(tmp_path, "up") == tmp_path / f"up-{os.getpid()}"
    assert {path.name for path in tmp_path.iterdir()} == {f"up-{os.getpid()}", "up-text", f"ray-{ended.pid}"}


def test_temporary_directories_of_processes_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    for name in (f"sw-ray-{ended.pid}-abcd", f"sw-ray-{os.getpid()}-abcd", f"other-{ended.pid}-abcd", "sw-ray-text"):
        (tmp_path / name).mkdir()
    made = temporary_directory("sw-ray")
    assert made.parent == tmp_path and made.is_dir()
    kept = {f"sw-ray-{os.getpid()}-abcd", f"other-{ended.pid}-abcd", "sw-ray-text"}
    assert {path.name for path in tmp_path.iterdir()} == {made.name, *kept}
