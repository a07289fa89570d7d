"""Log lines: for people and as JSON, with what they are about."""

from __future__ import annotations

import contextvars
import json
import logging
import threading
from collections.abc import Iterator
from io import StringIO

import pytest

from tuner import logs

LOG = logging.getLogger("tests.logs")


@pytest.fixture
def stream() -> Iterator[StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_json_line_has_its_time_its_ids_and_its_fields(stream: StringIO) -> None:
    logs.set_up("json", stream)
    with logs.about(request="r-1"), logs.about(job="job-1"):
        LOG.warning("no %s\nfor it", "room", extra={logs.FIELDS: {"seconds": 1.5}})
    LOG.info("after")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "tests.logs",
        "message": "no room\nfor it",
        "request_id": "r-1",
        "job_id": "job-1",
        "seconds": 1.5,
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_a_traceback_stays_in_its_line(stream: StringIO) -> None:
    logs.set_up("json", stream)
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError:
        LOG.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ZeroDivisionError: x" in json.loads(line)["traceback"]


def test_a_line_for_people_ends_with_what_it_is_about(stream: StringIO) -> None:
    logs.set_up("text", stream)
    with logs.about(job="job-1"):
        LOG.info("leased")
    LOG.info("idle")
    LOG.debug("never shown")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("tests.logs INFO leased [job_id=job-1]")
    assert second.endswith("tests.logs INFO idle")


def test_no_text_looks_like_a_line_of_its_own(stream: StringIO) -> None:
    logs.set_up("text", stream)
    line = "2026-01-01 00:00:00,000 worker ERROR forged"
    for end in ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"):
        LOG.info("POST /%s \x1b[2J", f"{end}{line}")
    try:
        raise ValueError(f"for a reason\n{line}")
    except ValueError:
        LOG.exception("failed")
    text = stream.getvalue()
    assert text.count("forged") == 9
    assert not [each for each in text.splitlines() if each.endswith("forged") and each.startswith("2026-01-01")]
    assert "\x1b" not in text


def test_threads_that_copy_the_context_name_the_job_as_well(stream: StringIO) -> None:
    logs.set_up("json", stream)
    with logs.about(job="job-1"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(LOG.info, "beat"))
        thread.start()
        thread.join()
    assert json.loads(stream.getvalue())["job_id"] == "job-1"
