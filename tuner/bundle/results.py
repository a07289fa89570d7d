"""What a bundle's runner has measured: one file for each GPU, which grows by a line for each candidate."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from tuner.bundle.form import MAX_BYTES
from tuner.errors import InvalidInput
from tuner.measure.gpu.facts import GpuFacts
from tuner.plain_files import read_plain
from tuner.records import ErrorKind

SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Row:
    """A candidate's answers, at each instance of its entry. ``device`` and ``gpu``: where it was measured; ``bundle``:
    the digest of the one that it is of."""

    entry: int
    candidate: int
    answers: Sequence[Mapping[str, Any]]
    run_s: float
    at: str
    device: str
    gpu: GpuFacts
    bundle: str

    @property
    def is_final(self) -> bool:
        """Whether it says something of the candidate, and not of a machine that failed."""
        return all(each.get("error_kind") != ErrorKind.MACHINE for each in self.answers)


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file; a line that was cut short at its end is passed over. Raises InvalidInput."""
    try:
        lines = read_plain(path, MAX_BYTES).decode().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}", "copy it again") from None
    device, gpu, bundle = "", None, ""
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            data = json.loads(line)
            if "gpu" in data:
                device, gpu, bundle = data["device"], GpuFacts(**data["gpu"]), data["bundle"]
            else:
                if gpu is None:
                    raise ValueError("no line before it names a GPU")
                yield Row(**data, device=device, gpu=gpu, bundle=bundle)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{path} line {number}", str(error), "copy the file again") from None


def check_bundle(rows: Iterable[Row], bundle: str, field: str) -> None:
    """Raise InvalidInput on ``field`` for rows of another bundle, whose numbers mean other candidates."""
    if any(row.bundle != bundle for row in rows):
        raise InvalidInput(field, "holds results of another bundle", "keep those of each bundle in its own folder")


class Results:
    """The file of a GPU, for a bundle of a digest. ``done``: entries and candidates that say something."""

    def __init__(self, folder: Path, facts: GpuFacts, device: str, bundle: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{facts.target.fingerprint}{SUFFIX}"
        rows = list(rows_of(self.path)) if self.path.exists() else []
        check_bundle(rows, bundle, "--out")
        self.done = {(row.entry, row.candidate) for row in rows if row.is_final}
        self._header = {"gpu": asdict(facts), "device": device, "bundle": bundle}
        self._failed = self._measured = 0

    def __enter__(self) -> Self:
        self._file = self.path.open("a")
        # Without a line that an earlier run was killed over.
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._write(self._header)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, entry: int, candidate: int, answers: Sequence[Mapping[str, Any]], run_s: float) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        self._write({"entry": entry, "candidate": candidate, "answers": answers, "run_s": run_s, "at": now})
        problems = [each["error"] for each in answers if each.get("error_kind")]
        self._measured, self._failed = self._measured + 1, self._failed + bool(problems)
        if problems:
            print(f"entry {entry}, candidate {candidate}: {problems[0]}", flush=True)

    def told(self) -> str:
        return f"{self._measured} candidates measured, {self._failed} of them failed"

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
