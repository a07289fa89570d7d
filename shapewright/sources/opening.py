"""Which source a text names."""

from __future__ import annotations

from pathlib import Path

from shapewright.defaults import expanded
from shapewright.sources.directory import Directory
from shapewright.sources.service import Service
from shapewright.sources.snapshots import SnapshotFile
from shapewright.sources.source import Source
from tuner.errors import InvalidInput
from tuner.plain_files import is_file
from tuner.program.target import Target, native

SOURCES = "the URL of a service, a directory of libraries, or a snapshot file"


def source_of(given: str | Path, target: Target | None = None) -> Source:
    """The source that a text names. Raises InvalidInput for what is none."""
    target = target or native()
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return Service(given, target)
    if not isinstance(given, str | Path):
        raise InvalidInput("source", f"{given!r} is none", SOURCES)
    path = expanded(given)
    if is_file(path):
        return SnapshotFile(path, target)
    return Directory(path, target)
