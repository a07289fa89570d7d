"""Server-sent events, read from the pieces of a response."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shapewright.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it stood on the wire; a frame of comments alone has no data. ``id`` is None where none was sent."""

    id: str | None = None
    event: str = "message"
    data: str = ""
    comment: str = ""


MAX_EVENT = 4 << 20
"""Bytes of one event, and of one line."""


@dataclass
class Frames:
    """Reads a stream. An incomplete frame at its end is dropped, as the standard says."""

    most: int = MAX_EVENT
    _rest: bytes = b""
    _fields: dict[str, list[str]] = field(default_factory=dict)
    _size: int = 0

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """The frames that ``piece`` completes. Raises ServiceError for one of more than ``most`` bytes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._take(line.removesuffix(b"\r"))
        if len(self._rest) > self.most:
            raise ServiceError(f"the service sends a line of more than {self.most} bytes; is it a Shapewright service?")

    def _take(self, line: bytes) -> Iterator[Frame]:
        self._size = self._size + len(line) + 1 if line else 0
        if self._size > self.most:
            raise ServiceError(f"an event has more than {self.most} bytes; is this URL a Shapewright service?")
        if line:
            name, _, value = line.decode(errors="replace").partition(":")
            self._fields.setdefault(name or "comment", []).append(value.removeprefix(" "))
        elif self._fields:
            yield _frame(self._fields)
            self._fields = {}


def _frame(fields: dict[str, list[str]]) -> Frame:
    return Frame(
        id=fields["id"][-1] if "id" in fields else None,
        event=fields.get("event", ["message"])[-1],
        data="\n".join(fields.get("data", ())),
        comment="\n".join(fields.get("comment", ())),
    )
