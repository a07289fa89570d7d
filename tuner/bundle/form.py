"""What is in the folder of a bundle. Imports nothing that a GPU host lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput
from tuner.plain_files import read_plain
from tuner.program.job.task import SearchTask
from tuner.schedule.layout import Layout, layout_from_json
from tuner.schedule.space import MicroKernel

BUNDLE, JOB, RECORDS, RUNNER, RESULTS = "bundle.json", "job.json", "records.jsonl", "run.py", "results"
FORMAT, VERSION = "shapewright-bundle", 1
MAX_BYTES = 1 << 28
"""Of a bundle's list, and of a file of results."""


@dataclass(frozen=True)
class Candidate:
    """A micro-kernel, how it takes its constants, and what its build took."""

    kernel: MicroKernel
    layouts: Mapping[str, Layout]
    build_s: float

    def to_json(self) -> dict[str, Any]:
        layouts = {name: layout.to_json() for name, layout in self.layouts.items()}
        return {"kernel": self.kernel.to_json(), "layouts": layouts, "build_s": self.build_s}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Candidate:
        layouts = {name: layout_from_json(each) for name, each in data["layouts"].items()}
        return Candidate(MicroKernel.from_json(data["kernel"]), layouts, data["build_s"])


@dataclass(frozen=True)
class Entry:
    """A search task, its candidates by the numbers that their launcher knows them by, and the file that this is packed
    in. Each is measured at all instances."""

    task: SearchTask
    code: str
    candidates: Sequence[Candidate]

    def to_json(self) -> dict[str, Any]:
        candidates = [each.to_json() for each in self.candidates]
        return {"task": self.task.to_json(), "code": self.code, "candidates": candidates}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        candidates = tuple(map(Candidate.from_json, data["candidates"]))
        return Entry(SearchTask.from_json(data["task"]), data["code"], candidates)


def write_entries(folder: Path, entries: Sequence[Entry], made_by: str) -> None:
    about = {"format": FORMAT, "version": VERSION, "made_by": made_by, "entries": [each.to_json() for each in entries]}
    (folder / BUNDLE).write_text(json.dumps(about))


@dataclass(frozen=True)
class Bundle:
    """What a folder holds. ``digest`` names it in results."""

    entries: Sequence[Entry]
    digest: str


def read_bundle(folder: Path) -> Bundle:
    """Raises InvalidInput for a folder that is no bundle of this release."""
    try:
        data = json.loads(text := read_plain(folder / BUNDLE, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise InvalidInput(str(folder), f"holds no {BUNDLE}: {error}", "name the folder of a bundle") from None
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        problem = f"{BUNDLE} is not of format {FORMAT}, version {VERSION}"
        raise InvalidInput(str(folder), problem, "read it with the release that wrote it")
    try:
        entries = tuple(map(Entry.from_json, data["entries"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(str(folder), f"{BUNDLE} is damaged: {error!r}", "copy it again") from None
    return Bundle(entries, hashlib.sha256(text).hexdigest())
