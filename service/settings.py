"""Settings of the service. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and intervals of one service.

    ``max_body_bytes``: larger request bodies are refused. ``body_timeout_s``: how long a body may take to arrive.
    ``linger_s``: how long the rest of a refused body is read and discarded, so that its sender can read the answer.
    ``event_poll_s``: how often an open event stream polls the database. ``event_stream_s``: how long one stream stays
    open before its client has to reconnect. ``retry_after_s``: the Retry-After while the database is unavailable.
    """

    max_body_bytes: int = 1_000_000
    body_timeout_s: float = 30.0
    linger_s: float = 2.0
    event_poll_s: float = 0.1
    event_stream_s: float = 3600.0
    retry_after_s: int = 5
