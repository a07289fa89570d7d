"""Server-sent events from the pieces of a response."""

from __future__ import annotations

from shapewright.sse import Frame, Frames


def frames(text: str, size: int = 1000) -> list[Frame]:
    """What a stream holds that comes in pieces of ``size`` bytes."""
    reader, content = Frames(), text.encode()
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    return [frame for piece in pieces for frame in reader.feed(piece)]


def test_frames_end_at_an_empty_line_however_the_stream_is_cut() -> None:
    text = "event: log\ndata: 1\nid: 7\n\ndata: a\r\ndata: b\r\n\r\n: ping\n\n"
    for size in (1, 2, 7, 1000):
        assert frames(text, size) == [
            Frame(id="7", event="log", data="1"),
            Frame(data="a\nb"),
            Frame(comment="ping"),
        ]


def test_what_breaks_off_is_dropped() -> None:
    assert frames("data: 1\n\ndata: 2\nid: 2") == [Frame(data="1")]


def test_only_one_space_belongs_to_the_form() -> None:
    assert frames("data:  {}\n\ndata:x:y\n\n\n") == [Frame(data=" {}"), Frame(data="x:y")]
