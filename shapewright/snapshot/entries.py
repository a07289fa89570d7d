"""What a snapshot's list says of each library, and how the list is written down.

A snapshot is a ZIP archive whose members are stored, not compressed: ``libraries/DIGEST/NAME`` for each file of a
library, then ``snapshot.json``, the list. The archive's comment names the format and the SHA-256 of the list, the list
that of every file. Members stand in the order of the list and bear no date, so equal libraries make equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.library import package
from tuner.library.dispatcher import made_for
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges, format_ranges
from tuner.program.language.spans import span_from_json, span_to_json
from tuner.program.language.workload import JsonObject

FORMAT = "shapewright-snapshot"
VERSION = 1
"""Version of the list. A later one may add members, which this one passes over; a change that it could not takes 2."""
LIST = "snapshot.json"
MAX_LIST = 256 << 20
"""Bytes of a list: about 200,000 libraries."""
COMMENT = re.compile(rb"shapewright-snapshot/(\d{1,6}) sha256:([0-9a-f]{64})")
DIGEST = re.compile("[0-9a-f]{64}")
SortKey = tuple[str, str, int, str, str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One library. ``made_for``: the sizes of the workload's symbols; ``files``: the SHA-256 of each file by name.

    ``created_at`` is when a service stored it, None of a library from a directory.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    made_for: Ranges
    protocol: str | None = None
    created_at: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    cache: Cache = Cache.WARM

    @property
    def sort_key(self) -> SortKey:
        return (*self.place, self.digest)

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What it is for: of several libraries of one place a snapshot needs one."""
        ranges = format_ranges(self.made_for)
        return self.workload_key, self.target_fingerprint, self.threads, ranges, self.cache.value

    def __str__(self) -> str:
        key, target, threads, ranges, _ = self.place
        count = f"{threads} thread{'s' * (threads != 1)}"
        return f"{key} for {target}, {ranges}, {count}{self.cache.note}: library {self.digest[:12]}"

    def to_json(self) -> JsonObject:
        return {
            "digest": self.digest,
            "workload_key": self.workload_key,
            "target_fingerprint": self.target_fingerprint,
            "threads": self.threads,
            "cache": self.cache.value,
            "made_for": {name: span_to_json(span) for name, span in self.made_for.items()},
            "protocol": self.protocol,
            "created_at": self.created_at,
            "files": dict(self.files),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        """Read what ``to_json`` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        files = {str(name): str(digest) for name, digest in data["files"].items()}
        for digest in (data["digest"], *files.values()):
            if not DIGEST.fullmatch(digest):
                raise ValueError(f"{digest!r} is not a SHA-256")
        if not set(files) <= set(package.FILES):
            raise ValueError(f"files {sorted(files)}")
        return Entry(
            digest=data["digest"],
            workload_key=str(data["workload_key"]),
            target_fingerprint=str(data["target_fingerprint"]),
            threads=int(data["threads"]),
            made_for={str(name): span_from_json(span) for name, span in data["made_for"].items()},
            protocol=data.get("protocol"),
            created_at=data.get("created_at"),
            files=files,
            cache=Cache(data.get("cache", Cache.WARM)),
        )

    @staticmethod
    def of_files(files: Mapping[str, bytes], created_at: str | None = None) -> Entry:
        """The entry of a library's files, checked, of any release that this version reads. Raises ShapewrightError."""
        manifest = package.check_files(files)
        task = package.dispatcher_of(files, manifest).task
        return Entry(
            digest=manifest["digest"],
            # Not the manifest's: earlier releases called workloads and targets differently.
            workload_key=task.workload.key,
            target_fingerprint=task.known_target.fingerprint,
            threads=task.threads,
            cache=task.cache,
            made_for=made_for(task),
            protocol=manifest.get("protocol"),
            created_at=created_at,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        )


def member(digest: str, name: str) -> str:
    """Where a file of a library stands in the archive."""
    return f"libraries/{digest}/{name}"


def list_bytes(entries: tuple[Entry, ...]) -> bytes:
    """The list, the same bytes for the same entries, which stand in the order of ``sort_key``."""
    data = {"format": FORMAT, "version": VERSION, "libraries": [entry.to_json() for entry in entries]}
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def comment_of(listed: bytes) -> bytes:
    return f"{FORMAT}/{VERSION} sha256:{hashlib.sha256(listed).hexdigest()}".encode()
