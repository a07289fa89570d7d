"""What the threads of a process wait for a core, as Linux counts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.timing import waiting
from tuner.measure.timing.waiting import never, slowed, waited_s

ON_ONE_CORE = """
import hashlib, os, threading, time
from tuner.measure.timing.waiting import waited_s

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
before_s, ends_s, block, enough = waited_s(), time.monotonic() + 60, bytes(1 << 20), threading.Event()

def work():
    # Hashed without Python's lock: it is the core that both wait for.
    while not enough.is_set():
        hashlib.sha256(block).digest()

threads = [threading.Thread(target=work) for _ in range(2)]
for each in threads:
    each.start()
# While they live: a thread that ends takes what it has waited with it.
while waited_s() - before_s < 0.2 and time.monotonic() < ends_s:
    time.sleep(0.01)
enough.set()
print(time.monotonic() < ends_s)
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count what threads wait")
def test_threads_that_share_a_core_wait_for_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "True"


def test_where_the_system_does_not_say_nothing_is_waited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(waiting, "THREADS", tmp_path)
    assert waited_s() == never() == 0.0
    monkeypatch.setattr(waiting, "THREADS", tmp_path / "none")
    assert waited_s() == 0.0


@given(st.floats(1e-9, 1e3), st.floats(0.0, 1e3), st.floats(1e-6, 1e3))
def test_waiting_only_slows(pace: float, waited: float, seconds: float) -> None:
    assert slowed(pace, waited, seconds) >= pace == slowed(pace, 0.0, seconds)
    # A thread that ended took what it had waited with it.
    assert slowed(pace, -waited, seconds) == pace == slowed(pace, waited, 0.0)
