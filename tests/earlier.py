"""What earlier releases left behind (tests/data): databases, and the libraries in them."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

DATA = Path(__file__).parent / "data"
RELEASE = "release-0.1"
REVISION = "0004"
"""That its database is at."""


def database_of(release: str, directory: Path) -> Path:
    """A copy of the release's SQLite database, as it left it."""
    file = directory / f"{release}.db"
    file.write_bytes(gzip.decompress((DATA / release / "tuning.db.gz").read_bytes()))
    return file


def library_of(release: str, op: str, directory: Path) -> Path:
    """A library of the release for that operator, the newest, as its ``pull`` wrote it."""
    connection = sqlite3.connect(database_of(release, directory))
    newest = "SELECT max(a.id) FROM artifacts a JOIN workloads w ON w.id = a.workload_id WHERE w.key LIKE ?"
    files = f"SELECT name, content FROM artifact_files WHERE artifact_id = ({newest})"
    folder = directory / op
    folder.mkdir()
    for name, content in connection.execute(files, [f"{op}-%"]):
        (folder / name).write_bytes(content)
    connection.close()
    return folder
