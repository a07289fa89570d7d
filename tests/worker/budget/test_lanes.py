"""Lanes side by side: what they raise, and what they leave behind."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from tuner.errors import ShapewrightError
from tuner.measure import BuilderLost, DeviceLost, Interrupted
from tuner.search.tuning import Finishing, VerificationFailed
from tuner.storage import LeaseLost, StorageUnavailable
from worker.budget.lanes import side_by_side

WAIT_S = 30.0


def test_lanes_run_at_once_and_all_have_ended() -> None:
    together, ended = threading.Barrier(3), []

    def lane(number: int) -> None:
        together.wait(WAIT_S)
        ended.append(number)

    side_by_side(lane, 3)
    assert sorted(ended) == [0, 1, 2]
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lane")] == []


def test_a_single_lane_has_the_thread_of_its_caller() -> None:
    ran: list[threading.Thread] = []
    side_by_side(lambda number: ran.append(threading.current_thread()), 1)
    assert ran == [threading.current_thread()]


ORDER = [
    Interrupted("no longer wanted"),
    DeviceLost("gone"),
    Finishing(),
    VerificationFailed("wrong"),
    StorageUnavailable("away"),
    LeaseLost("lost"),
    SystemExit(1),
]


@pytest.mark.parametrize(("lesser", "greater"), list(pairwise(ORDER)))
@pytest.mark.parametrize("first", [0, 1])
def test_of_several_errors_the_one_that_decides_most_is_raised(
    lesser: BaseException, greater: BaseException, first: int
) -> None:
    has_raised = threading.Event()

    def lane(number: int) -> None:
        if number != first:
            assert has_raised.wait(WAIT_S)
        has_raised.set()
        raise (lesser, greater)[number]

    with pytest.raises(type(greater)) as raised:
        side_by_side(lane, 2)
    assert raised.value is greater


def test_the_first_of_two_losses_is_raised_and_the_other_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    has_raised = threading.Event()
    errors: list[ShapewrightError] = [DeviceLost("gone"), BuilderLost("died")]

    def lane(number: int) -> None:
        if number == 1:
            assert has_raised.wait(WAIT_S)
        try:
            raise errors[number]
        finally:
            has_raised.set()

    with pytest.raises((DeviceLost, BuilderLost)) as raised:
        side_by_side(lane, 2)
    (other,) = [error for error in errors if error is not raised.value]
    assert str(other) in caplog.text
