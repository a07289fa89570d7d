"""What the processes of a service log: lines for people or JSON objects, which name the request and the job."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO

from tuner.errors import clean

FIELDS = "fields"
"""``log.info(..., extra={FIELDS: {...}})``: further members of a JSON line, by name."""
TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"

_request: ContextVar[str | None] = ContextVar("request", default=None)
_job: ContextVar[str | None] = ContextVar("job", default=None)


@contextmanager
def about(*, request: str | None = None, job: str | None = None) -> Iterator[None]:
    """What is logged inside names this request or this job, in this thread and in those that copy its context."""
    tokens = [(var, var.set(value)) for var, value in ((_request, request), (_job, job)) if value is not None]
    try:
        yield
    finally:
        for var, token in tokens:
            var.reset(token)


def subject() -> dict[str, str]:
    """``{"request_id": ..., "job_id": ...}`` as far as they are known here."""
    result = {"request_id": _request.get(), "job_id": _job.get()}
    return {name: value for name, value in result.items() if value is not None}


class TextFormatter(logging.Formatter):
    """A line for people; what it is about stands at its end."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """What has several lines has them indented: those that come from elsewhere must not look like lines of a log,
        nor control a terminal."""
        return clean(super().format(record)).replace("\n", "\n  ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the base class's name)
        about_it = " ".join(f"{name}={value}" for name, value in subject().items())
        return super().formatMessage(record) + (f" [{about_it}]" if about_it else "")


class JsonFormatter(logging.Formatter):
    """One JSON object: ``time`` (UTC), ``level``, ``logger``, ``message``, ids, further fields, ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        data = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **subject(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            data["traceback"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str)


def set_up(kind: str = "text", stream: IO[str] | None = None) -> None:
    """Log to ``stream`` (stderr unless given) from level INFO on, as ``text`` or as ``json``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
