"""Contenders in processes of their own: what they answer, that they stand still meanwhile, and that they end."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from benchmarks.harness.remote import Died, in_own_process

WITHIN_S = 60.0


class Counting:
    def __init__(self, start: int) -> None:
        self._start = start

    def plus(self, number: int) -> int:
        return self._start + number

    def process(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise ValueError("no such size")

    def end(self) -> None:
        os._exit(3)


def test_a_contender_answers_again_and_again_also_after_an_error() -> None:
    with in_own_process(Counting, 3, threads=1, answer_s=WITHIN_S) as remote:
        assert remote.ask("plus", 4) == 7
        with pytest.raises(ValueError, match="no such size"):
            remote.ask("fail")
        assert remote.ask("plus", 5) == 8


def test_a_contender_stands_still_until_it_is_asked_and_ends_with_its_block() -> None:
    with in_own_process(Counting, 0, threads=1, answer_s=WITHIN_S) as remote:
        process = psutil.Process(remote.ask("process"))
        _wait_until_stopped(process)
        assert remote.ask("plus", 1) == 1
        _wait_until_stopped(process)
    assert not process.is_running()


def test_a_contender_whose_process_ends_has_died() -> None:
    with in_own_process(Counting, 0, threads=1, answer_s=WITHIN_S) as remote, pytest.raises(Died, match="died"):
        remote.ask("end")


def test_what_cannot_be_made_raises_what_it_raised() -> None:
    with pytest.raises(TypeError), in_own_process(Counting, threads=1, answer_s=WITHIN_S):
        pass


def _wait_until_stopped(process: psutil.Process) -> None:
    deadline = time.monotonic() + WITHIN_S
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.001)
