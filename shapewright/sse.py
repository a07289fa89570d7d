"""Server-sent events, read from the lines of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shapewright.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it stood on the wire; a frame of comments alone has no data. ``id`` is None where none was sent."""

    id: str | None = None
    event: str = "message"
    data: str = ""
    comment: str = ""


MAX_EVENT = 4 << 20
"""Characters of one event."""


def frames(lines: Iterable[str], most: int = MAX_EVENT) -> Iterator[Frame]:
    """The complete frames of a stream. An incomplete one at the end is dropped, as the standard says.

    Raises ServiceError for one of more than ``most`` characters.
    """
    fields: dict[str, list[str]] = {}
    size = 0
    for line in lines:
        size = size + len(line) + 1 if line else 0
        if size > most:
            raise ServiceError(f"an event has more than {most} characters; is this URL a Shapewright service?")
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
