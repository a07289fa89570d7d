"""The document of the benchmark of operators: written after each search, and gone on from by a later run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.document import Report, document_of
from benchmarks.operator_summary import not_applicable, over_seeds
from tuner.errors import InvalidInput

LISTS = ("rows", "searches")
OF_PROTOCOL = ("tuning", "rival_tuning")


class Document:
    """What was measured so far; each (workload, seed) counts once it is complete."""

    def __init__(self, path: Path, protocol: Mapping[str, Any]) -> None:
        self._path, self._protocol = path, protocol
        self._report, self._done = Report(), list[tuple[str, int]]()
        self.failed: dict[str, str] = {}
        """Workloads and seeds without rows, by the error; a run that goes on tries them again."""

    @staticmethod
    def opened(path: Path, protocol: Mapping[str, Any], resume: bool) -> Document:
        """Empty, or with what stands in the file there if ``resume`` is wanted.

        Raises InvalidInput if that was measured in another way.
        """
        document = Document(path, protocol)
        if resume and path.exists():
            document._read(json.loads(path.read_text()))
        return document

    def _read(self, data: Mapping[str, Any]) -> None:
        before = data["protocol"]
        for name, value in self._protocol.items():
            if before.get(name) != value:
                remedy = "the same options as then, another --json, or no --resume"
                raise InvalidInput("resume", f"{self._path} has {name} {before.get(name)}, this run {value}", remedy)
        self._done = [(workload, seed) for workload, seed in before["done"]]
        self._report = Report(
            **{name: data[name] for name in LISTS}, **{name: before[name] for name in OF_PROTOCOL},
            skipped=before["skipped"],
        )  # fmt: skip

    def has(self, workload: str, seed: int) -> bool:
        return (workload, seed) in self._done

    def add(self, workload: str, seed: int, report: Report) -> None:
        """What one search and its timings gave; the file is written anew."""
        for item in report.tuning:
            item["seed"] = seed
        for name in (*LISTS, *OF_PROTOCOL):
            getattr(self._report, name).extend(getattr(report, name))
        self._report.skipped |= report.skipped
        self._done.append((workload, seed))
        self._write()

    def fail(self, workload: str, seed: int, error: Exception) -> None:
        self.failed[f"{workload}, seed {seed}"] = f"{type(error).__name__}: {error}"
        self._write()

    def to_json(self) -> dict[str, Any]:
        summary, by_seed = over_seeds(self._report)
        protocol = {**self._protocol, "seeds": sorted({seed for _, seed in self._done}), "done": self._done}
        extra = {"by_seed": by_seed, "not_applicable": not_applicable(self._report), "failed": self.failed}
        return document_of(self._report, summary, protocol) | extra

    def _write(self) -> None:
        """Whole or not at all: an interrupted run leaves the document before it."""
        unfinished = self._path.with_suffix(f"{self._path.suffix}.unfinished")
        unfinished.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        unfinished.rename(self._path)

    def print_summary(self) -> None:
        print(json.dumps(self.to_json()["summary"], indent=1))
