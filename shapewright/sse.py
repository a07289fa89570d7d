"""Server-sent events, read from the lines of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it stood on the wire; a frame of comments alone has no data. ``id`` is None where none was sent."""

    id: str | None = None
    event: str = "message"
    data: str = ""
    comment: str = ""


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """The complete frames of a stream. One that breaks off before its empty line is dropped, as the standard says."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            found.setdefault(name or "comment", []).append(value.removeprefix(" "))
        elif found:
            yield _frame(found)
            found = {}


def _frame(found: dict[str, list[str]]) -> Frame:
    return Frame(
        id=found["id"][-1] if "id" in found else None,
        event=found.get("event", ["message"])[-1],
        data="\n".join(found.get("data", ())),
        comment="\n".join(found.get("comment", ())),
    )
