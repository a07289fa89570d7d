"""Builds and measurements take cores in the order in which they ask, and never more than there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measure import Interrupted
from worker.building.cores import Cores

DEADLINE_S = 30.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Asker(threading.Thread):
    """Takes cores, notes that in ``log``, and holds them until it is told to give them back."""

    def __init__(self, cores: Cores, count: int, name: str, log: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._cores, self._count, self._log = cores, count, log
        self._enough = threading.Event()
        self.start()

    def run(self) -> None:
        with self._cores.taken(self._count):
            self._log.append(self.name)
            assert self._enough.wait(DEADLINE_S)

    def end(self) -> None:
        self._enough.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()


def waiting(cores: Cores) -> int:
    return len(cores._waiting)


def test_one_who_needs_many_cores_is_not_overtaken_by_those_who_need_one() -> None:
    cores, log = Cores(2), list[str]()
    first = Asker(cores, 1, "first", log)
    until(lambda: log == ["first"])
    wide = Asker(cores, 2, "wide", log)
    until(lambda: waiting(cores) == 1)
    narrow = Asker(cores, 1, "narrow", log)
    until(lambda: waiting(cores) == 2)
    assert cores.take_free(1) == 0, "the free core is for those who wait"
    first.end()
    until(lambda: log == ["first", "wide"])
    wide.end()
    until(lambda: log == ["first", "wide", "narrow"])
    narrow.end()
    assert cores.take_free(2) == 2


def test_more_cores_than_there_are_means_all_of_them() -> None:
    cores = Cores(2)
    with cores.taken(8):
        assert cores.take_free(1) == 0
    assert cores.take_free(8) == 2


def test_one_who_is_interrupted_no_longer_waits_and_holds_up_nobody() -> None:
    cores, log, give_up = Cores(1), list[str](), threading.Event()
    holder = Asker(cores, 1, "holder", log)
    until(lambda: log == ["holder"])
    raised = list[Exception]()

    def wait() -> None:
        try:
            with cores.taken(1, give_up.is_set):
                log.append("interrupted")
        except Interrupted as error:
            raised.append(error)

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    until(lambda: waiting(cores) == 1)
    behind = Asker(cores, 1, "behind", log)
    until(lambda: waiting(cores) == 2)
    give_up.set()
    waits.join(DEADLINE_S)
    assert len(raised) == 1
    holder.end()
    until(lambda: log == ["holder", "behind"])
    behind.end()


def test_an_error_of_interrupted_leaves_nobody_waiting() -> None:
    cores = Cores(1)

    def gone() -> bool:
        raise RuntimeError("the cluster is gone")

    with cores.taken(1), pytest.raises(RuntimeError, match="gone"):
        cores.take_some(1, gone)
    assert cores.take_some(3) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_never_more_cores_are_in_use_than_there_are(count: int, requests: list[int]) -> None:
    cores, lock, used, most = Cores(count), threading.Lock(), [0], [0]

    def work(wanted: int) -> None:
        with cores.taken(wanted):
            taken = min(wanted, count)
            with lock:
                used[0] += taken
                most[0] = max(most[0], used[0])
            time.sleep(0)
            with lock:
                used[0] -= taken

    threads = [threading.Thread(target=work, args=(wanted,), daemon=True) for wanted in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert 0 < most[0] <= count
    assert cores.take_free(count) == count
