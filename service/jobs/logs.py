"""What the parts of this machine logged about a job, with the events of the job, as one list of lines.

`up` keeps the output of its parts in one folder, a file for each (docs/howto/monitor.md). A line is about a job if it
holds its id; what follows it without a time of its own, as a traceback does, belongs to it. Parts that run elsewhere
keep their own logs, and are named: what they note of a job are its events.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from tuner.errors import InvalidInput
from tuner.storage import Device, Job, JobEvent

MAX_READ = 8 << 20
"""Bytes of the newest output of a part that are looked through."""
MAX_TEXT = 4000
"""Characters of a line, what belongs to it included."""
EVENTS = "job"
"""The part of lines that are events of the job."""
KINDS = ("state", "log", "library")
_TEXT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (\S+) ([A-Z]+) (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogLine:
    """``time``: ISO 8601 in UTC, with milliseconds. ``part``: worker, api, ..., or EVENTS."""

    time: str
    part: str
    level: str
    text: str


def parts_in(folder: Path | None) -> dict[str, Path]:
    """The logs of a folder, by the name of the part; none without a folder. Links are left out."""
    if folder is None or not folder.is_dir():
        return {}
    files = (file for file in sorted(folder.glob("*.log")) if file.is_file() and not file.is_symlink())
    return {file.stem: file for file in files}


def lines_about(job_id: str, parts: dict[str, Path], events: Sequence[JobEvent]) -> list[LogLine]:
    """The lines about a job, in order of time."""
    found = [line for part, file in parts.items() for line in _about(job_id, part, _newest(file))]
    return sorted([*found, *map(_line_of, events)], key=lambda line: line.time)


def _newest(file: Path) -> list[str]:
    """The last lines of a log, those that were rotated away included, MAX_READ bytes at most."""
    content = b""
    for each in (file, file.with_name(f"{file.name}.1")):
        left = MAX_READ - len(content)
        try:
            with each.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - left))
                content = log.read(left) + content
        except OSError:
            break
    return content.decode(errors="replace").splitlines()


def _about(job_id: str, part: str, lines: Sequence[str]) -> Iterator[LogLine]:
    for at, line in enumerate(lines):
        if job_id not in line or not _is_first(line):
            continue
        rest = takewhile(lambda each: not _is_first(each), lines[at + 1 : at + 100])
        yield _parsed(part, "\n".join([line, *rest]))


def _is_first(line: str) -> bool:
    """Whether a line has a time, in either form (tuner.logs)."""
    return line.startswith('{"time"') or _TEXT.match(line) is not None


def _parsed(part: str, text: str) -> LogLine:
    try:
        if (match := _TEXT.match(text)) is not None:
            at = datetime.strptime(f"{match[1]},{match[2]}", "%Y-%m-%d %H:%M:%S,%f")
            return LogLine(_in_utc(at), part, match[4].lower(), f"{match[3]}: {match[5]}"[:MAX_TEXT])
        data = json.loads(text.partition("\n")[0])
        at = datetime.fromisoformat(data["time"])
        parts = (f"{data['logger']}: {data['message']}", str(data.get("traceback", "")))
        return LogLine(_in_utc(at), part, str(data["level"]), "\n".join(filter(None, parts))[:MAX_TEXT])
    except (ValueError, OverflowError, KeyError, TypeError):
        return LogLine("", part, "info", text[:MAX_TEXT])


def _in_utc(moment: datetime) -> str:
    """As lines have it, so that they can be compared as text. A moment without a time zone is in this machine's."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def moment_of(text: str | None) -> str | None:
    """A time that a caller gives, as lines have it. Without a time zone it is in UTC. Raises InvalidInput on ``since``.

    A blank stands for the plus of an offset: so it arrives from an address in which nobody has encoded it.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return _in_utc(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        form = "as in 2026-01-31T12:00:00.000+00:00"
        raise InvalidInput("since", f"{text!r} is not a time", form) from None


def _line_of(event: JobEvent) -> LogLine:
    return LogLine(_in_utc(datetime.fromisoformat(event.created_at)), EVENTS, "info", _told(event)[:MAX_TEXT])


def _told(event: JobEvent) -> str:
    data = event.data
    if event.kind == "log":
        return str(data.get("message", ""))
    if event.kind == "library":
        return f"library {str(data.get('digest', ''))[:12]} is built"
    return ": ".join(filter(None, (str(data.get("state", "")), str(data.get("error") or ""))))


def elsewhere(job: Job, devices: Iterable[Device], parts: Iterable[str]) -> list[str]:
    """The worker and the devices of a job that log where they run, which is not among these parts of this machine."""
    here, read = socket.gethostname(), {part.partition("-")[0] for part in parts}
    found = []
    if job.worker is not None and ("worker" not in read or job.worker.rpartition(":")[0] != here):
        found.append(f"worker {job.worker}")
    for device in devices:
        host = str(device.description.get("host", ""))
        if device.key == job.device and ("device" not in read or host != here):
            found.append(f"device {device.id}" + (f" on {host}" if host and host not in device.id else ""))
    return found


def page_of(lines: Iterable[LogLine], since: str | None, limit: int) -> list[LogLine]:
    """The last ``limit`` lines; with ``since`` the first ``limit`` of that time or later."""
    every = list(lines)
    if since is None:
        return every[-limit:]
    return [line for line in every if line.time >= since][:limit]
