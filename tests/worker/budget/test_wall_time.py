"""What wall time the searches of a job took, over all attempts."""

from __future__ import annotations

from tests.fakes import FakeClock
from worker.budget.wall_time import WallTime


def test_one_after_the_other_it_is_what_the_searches_took() -> None:
    clock = FakeClock()
    wall = WallTime(None, clock)
    clock.now_s += 100.0
    assert wall.begin(1, 30.0) == 30.0
    assert wall.kept_s() is None


def test_side_by_side_it_is_by_the_clock() -> None:
    clock = FakeClock()
    wall = WallTime(None, clock)
    assert wall.begin(4, 30.0) == 30.0
    clock.now_s += 10.0
    assert wall.kept_s() == 40.0
    # Also for those that go on one after the other, after a loss.
    assert wall.begin(1, 70.0) == 40.0


def test_another_attempt_goes_on_from_what_was_stored() -> None:
    clock = FakeClock()
    wall = WallTime(40.0, clock)
    clock.now_s += 5.0
    assert wall.begin(2, 70.0) == 45.0
