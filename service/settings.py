"""What can be set about the service. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and intervals of one service.

    ``max_body_bytes``: larger request bodies are refused. ``body_timeout_s``: how long a body may take to arrive.
    ``linger_s``: how long the rest of a refused body is thrown away, so that its sender gets to read the answer.
    ``event_poll_s``: how often an open event stream looks for news. ``event_stream_s``: how long one stream may stay
    open before its client has to connect again. ``retry_after_s``: when to ask again while the database is away.
    """

    max_body_bytes: int = 1_000_000
    body_timeout_s: float = 30.0
    linger_s: float = 2.0
    event_poll_s: float = 0.1
    event_stream_s: float = 3600.0
    retry_after_s: int = 5
