"""The libraries of a snapshot file as a source. Those that are used are kept, as downloads are."""

from __future__ import annotations

from pathlib import Path

from shapewright.snapshot import Entry, Snapshot
from shapewright.sources.libraries import kept_folder, load_library
from shapewright.sources.source import Candidate, Match, SourceAway, candidate_of, fitting_of
from tuner.errors import ShapewrightError
from tuner.library.package import MANIFEST
from tuner.program.instance import program_key
from tuner.program.target import Target
from tuner.program.workload import Workload


class SnapshotFile:
    """What a snapshot has that runs here: of this machine's target first, then of others with the same instructions."""

    def __init__(self, path: Path, target: Target) -> None:
        self.name = str(path)
        self._path = path
        self._target = target
        self._opened: Snapshot | None = None
        self._entries: dict[str, Entry] = {}
        """By digest."""
        self._by_program: dict[str, list[Candidate]] = {}

    def find(self, workload: Workload, threads: int) -> Match | str:
        try:
            snapshot = self._opened or self._read()
            fitting = fitting_of(self._by_program, workload, threads, self._target)
            if isinstance(fitting, str):
                return fitting
            best = fitting[0]
            folder = kept_folder() / best.manifest["digest"]
            if not folder.is_dir():
                snapshot.extract(self._entries[best.manifest["digest"]], folder)
            return Match(load_library(folder), "exact" if best.workload.key == workload.key else "covers", self.name)
        except (ShapewrightError, OSError) as error:
            raise SourceAway(str(error)) from error

    def _read(self) -> Snapshot:
        """The file, and what its libraries say of themselves."""
        self._opened = snapshot = Snapshot(self._path)
        for entry in snapshot.entries:
            candidate = candidate_of(self._path, snapshot.files(entry)[MANIFEST])
            if candidate is not None:
                self._entries[candidate.manifest["digest"]] = entry
                self._by_program.setdefault(program_key(candidate.workload.canonical), []).append(candidate)
        return snapshot
