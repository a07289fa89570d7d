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
    """The complete frames of a stream. An incomplete one at the end is dropped, as the standard says."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields.setdefault(name or "comment", []).append(value.removeprefix(" "))
        elif fields:
            yield _frame(fields)
            fields = {}


def _frame(fields: dict[str, list[str]]) -> Frame:
    return Frame(
        id=fields["id"][-1] if "id" in fields else None,
        event=fields.get("event", ["message"])[-1],
        data="\n".join(fields.get("data", ())),
        comment="\n".join(fields.get("comment", ())),
    )
