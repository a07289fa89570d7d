"""Slots become spans: joined where a job went on, apart where another had the device, never over each other."""

from __future__ import annotations

from itertools import pairwise

from service.devices.spans import Span, newest, spans_of
from tuner.storage import Slot


def slot(job: str, start_s: float, end_s: float, busy_s: float | None = None) -> Slot:
    return Slot("d", job, start_s, end_s, 1, 0, end_s - start_s if busy_s is None else busy_s)


def places(*slots: Slot, gap_s: float = 5.0, origin_s: float = 0.0) -> list[tuple[str, float, float]]:
    return [(each.job_id, each.start_s, each.end_s) for each in spans_of(slots, origin_s, gap_s)]


def test_slots_of_one_job_that_follow_each_other_are_one_span() -> None:
    [span] = spans_of([slot("a", 0, 4), slot("a", 5, 9)], 0.0, 5.0)
    assert span == Span("a", 0.0, 9.0, 2, 0, 8.0)


def test_a_pause_is_a_gap() -> None:
    assert places(slot("a", 0, 4), slot("a", 10, 12)) == [("a", 0, 4), ("a", 10, 12)]


def test_another_job_between_parts_them() -> None:
    assert places(slot("a", 0, 4), slot("b", 4, 5), slot("a", 5, 9)) == [("a", 0, 4), ("b", 4, 5), ("a", 5, 9)]


def test_jobs_that_took_turns_in_a_slot_share_it_by_the_time_of_their_trials() -> None:
    assert places(slot("a", 0, 4, 2.0), slot("b", 1, 5, 2.0)) == [("a", 0, 3), ("b", 3, 5)]


def test_spans_never_lie_over_each_other() -> None:
    shown = places(slot("a", 0, 10), slot("b", 1, 2, 9.0), slot("c", 1.5, 3), slot("a", 2, 12))
    assert all(first[2] <= second[1] for first, second in pairwise(shown))
    assert all(start <= end for _, start, end in shown)


def test_what_began_before_the_window_is_cut_and_what_ended_before_it_left_out() -> None:
    assert places(slot("a", 0, 4), slot("a", 8, 14), origin_s=10.0) == [("a", 0, 4)]


def test_of_too_many_the_newest_stay_and_it_is_told_since_when_all_are_there() -> None:
    spans = [spans_of([slot("a", n, n + 1) for n in range(0, 100, 10)], 0.0, 5.0)] * 2
    assert newest(spans, 20) == (spans, 0.0)
    kept, complete_from_s = newest(spans, 7)
    assert complete_from_s == 61.0
    assert [[span.start_s for span in each] for each in kept] == [[70.0, 80.0, 90.0]] * 2
