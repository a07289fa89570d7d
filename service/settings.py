"""Settings of the service. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and intervals of one service.

    ``max_body_bytes``: larger request bodies are refused. ``body_timeout_s``: how long a body may take to arrive.
    ``linger_s``: how long the rest of a refused body is read and discarded, so that its sender can read the answer.
    ``event_poll_s``: the least pause between two looks for new events, of all open event streams together.
    ``event_stream_s``: how long one stream stays open before its client has to reconnect. ``retry_after_s``: the
    Retry-After while the database is unavailable.
    ``key_cache_s``: how long a key that was found is good without another look, so how much later a revoked one is
    refused at most. ``request_rate``, ``change_rate``: how many requests one key may send to one process, of all kinds
    and of those that change something; ``attempt_rate``: how many wrong keys may come from one address. Rates are as in
    ``600 per minute``; empty is no limit. ``webhook_private``: send webhooks to private addresses too.
    ``ready_file``: while it is given and does not exist, /readyz answers 503; what starts the service's other parts
    makes it once they work. ``log_dir``: where the parts of this machine log to, one file each, for the logs of a job.
    """

    max_body_bytes: int = 1_000_000
    body_timeout_s: float = 30.0
    linger_s: float = 2.0
    event_poll_s: float = 0.01
    event_stream_s: float = 3600.0
    retry_after_s: int = 5
    key_cache_s: float = 2.0
    request_rate: str = "200000 per minute"
    change_rate: str = "3000 per minute"
    attempt_rate: str = "60 per minute"
    webhook_private: bool = False
    ready_file: str | None = None
    log_dir: str | None = None
