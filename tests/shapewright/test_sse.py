"""Server-sent events from lines."""

from __future__ import annotations

from shapewright.sse import Frame, frames


def test_frames_end_at_an_empty_line() -> None:
    lines = ["event: log", "data: 1", "id: 7", "", "data: a", "data: b", "", ": ping", ""]
    assert list(frames(lines)) == [
        Frame(id="7", event="log", data="1"),
        Frame(data="a\nb"),
        Frame(comment="ping"),
    ]


def test_what_breaks_off_is_dropped() -> None:
    assert list(frames(["data: 1", "", "data: 2", "id: 2"])) == [Frame(data="1")]


def test_only_one_space_belongs_to_the_form() -> None:
    assert list(frames(["data:  {}", "", "data:x:y", "", ""])) == [Frame(data=" {}"), Frame(data="x:y")]
