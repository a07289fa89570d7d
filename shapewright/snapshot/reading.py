"""Reading a snapshot: its list is checked when it is opened, a library when it is read."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright.download import MAX_BYTES, write
from shapewright.queries import RangesLike, WorkloadLike, key_of, library_query, target_named
from shapewright.snapshot.entries import COMMENT, LIST, MAX_LIST, VERSION, Entry, member
from shapewright.snapshot.order import best_of
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import choice
from tuner.library.package import check_files
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges, format_ranges
from tuner.program.language.spans import span_from_json
from tuner.program.target import Target, native
from tuner.program.target.compatible import substitutes

if TYPE_CHECKING:
    from shapewright.library import Library

AGAIN = "write the snapshot again"
WRONG = (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeDecodeError)
"""What zipfile raises of an archive that is damaged, or is none."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a snapshot has no library for what was asked. ``kind``: workload, target, threads, cache or range."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return self.reason


class Snapshot:
    """The libraries of one file. ``digest`` names its content: equal for equal libraries.

    Nothing is kept open. A file that was replaced since is an error where a library is read: open it again. May be
    used from several threads and processes.
    """

    def __init__(self, file: str | Path) -> None:
        """Raises ShapewrightError if it is missing, damaged, of a later version, or no snapshot."""
        self.file = Path(file)
        if not self.file.is_file():
            raise ShapewrightError(
                f"there is no snapshot {self.file}: `shapewright snapshot -o {self.file}` writes one"
            )
        self._comment = b""
        with self._archive() as archive:
            self._comment = archive.comment
            self.digest = self._checked_comment()
            self.entries = self._entries(self._read(archive, LIST, self.digest, MAX_LIST))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<Snapshot {self.file}: {len(self)} librar{'y' if len(self) == 1 else 'ies'}, {self.digest[:12]}>"

    # -- what there is ------------------------------------------------------------------------------------------------
    def find(
        self,
        workload: WorkloadLike,
        target: str | None = None,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        cache: str | None = None,
    ) -> Library | Missing:
        """The library for a workload, loaded, or why there is none.

        A search task or the content of a job file brings its own target, number of threads, state of the caches and
        range, as far as they are not given. ``target`` is a fingerprint, of this machine if nothing tells; where there
        is none for it, a library of the same CPU with another number of cores serves (``Library.tuned_on_cores``), or
        of another GPU of the same instruction set; ``threads`` 1, or the only number that there is; ``cache`` warm, or
        the only one that there is; ``ranges`` what it must cover (``m=16..512`` in symbols), of the widest if left out.
        Of several that cover it the best (``shapewright.snapshot.order``). Raises ShapewrightError if it is damaged or
        this CPU lacks an instruction set that it uses, InvalidInput on what was asked.
        """
        entry = self.entry_for(workload, target, threads, ranges, cache)
        return entry if isinstance(entry, Missing) else self.load(entry)

    def entry_for(
        self,
        workload: WorkloadLike,
        target: str | None = None,
        threads: int | None = None,
        ranges: RangesLike | None = None,
        cache: str | None = None,
    ) -> Entry | Missing:
        """The entry of the library that ``find`` loads, which is not read unless several have to be compared."""
        asked = library_query(workload, target=target, threads=threads, cache=cache, ranges=ranges)
        key = key_of(workload)
        there = [entry for entry in self.entries if entry.workload_key == key]
        if not there:
            return Missing("workload", f"{self.file} has no library for {key}")
        wanted = asked.get("target") or native().fingerprint
        targets = sorted({entry.target_fingerprint for entry in there})
        there = _on_target(there, target_named(workload, wanted), wanted, asked.get("threads", 1))
        if not there:
            told = f"{self.file} has {key} for {', '.join(targets)}, not for {wanted}"
            return Missing("target", f"{told}: name a target whose instructions are here, or tune for this one")
        numbers = sorted({entry.threads for entry in there})
        number = choice.meant(asked.get("threads"), numbers, 1)
        there = [entry for entry in there if entry.threads == number]
        if not there:
            listed = ", ".join(map(str, numbers))
            return Missing("threads", f"{self.file} has {key} for {listed} threads, not for {number}")
        caches = sorted({entry.cache.value for entry in there})
        wanted = choice.meant(asked.get("cache"), caches, Cache.WARM.value)
        there = [entry for entry in there if entry.cache == wanted]
        if not there:
            return Missing("cache", f"{self.file} has {key} for caches that are {', '.join(caches)}, not {wanted}")
        spans = {name: span_from_json(span) for name, span in asked["range"].items()} if "range" in asked else None
        return self._covering(key, there, spans)

    def _covering(self, key: str, there: list[Entry], ranges: Ranges | None) -> Entry | Missing:
        if ranges is None:
            widest = max(choice.width(entry.made_for) for entry in there)
            covering = [entry for entry in there if choice.width(entry.made_for) == widest]
        else:
            covering = [entry for entry in there if choice.covers(entry.made_for, ranges)]
        if not covering:
            covered = "; ".join(sorted({format_ranges(entry.made_for) for entry in there}))
            wanted = format_ranges(ranges or {})
            return Missing("range", f"no library of {key} in {self.file} covers {wanted}; covered: {covered}")
        return best_of(covering, self.files, ranges)

    # -- libraries ----------------------------------------------------------------------------------------------------
    def load(self, entry: Entry) -> Library:
        """The library of one of ``entries``. Raises ShapewrightError."""
        from shapewright.library import library_of  # noqa: PLC0415 - who only looks needs no runtime

        return library_of(self.files(entry), self.file)

    def files(self, entry: Entry) -> dict[str, bytes]:
        """Its files, checked. Raises ShapewrightError."""
        with self._archive() as archive:
            files = {
                name: self._read(archive, member(entry.digest, name), digest) for name, digest in entry.files.items()
            }
        if check_files(files)["digest"] != entry.digest:
            raise ShapewrightError(f"{self.file}: library {entry.digest[:12]} is not the one of its list: {AGAIN}")
        return files

    def extract(self, entry: Entry, directory: str | Path) -> Path:
        """Write its files into a directory, as `shapewright pull` does. Raises ShapewrightError, OSError."""
        write(self.files(entry), Path(directory))
        return Path(directory)

    def problems(self) -> Iterator[str]:
        """What is wrong with any library of the file, one after the other; nothing if all are whole."""
        for entry in self.entries:
            try:
                self.files(entry)
            except ShapewrightError as error:
                yield str(error)

    # -- the archive --------------------------------------------------------------------------------------------------
    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.file) as archive:
                if self._comment and archive.comment != self._comment:
                    raise ShapewrightError(f"{self.file} was replaced since it was opened: open it again")
                yield archive
        except WRONG as error:
            raise ShapewrightError(f"{self.file} is cut off, damaged, or no snapshot ({error}): {AGAIN}") from None
        except OSError as error:
            raise ShapewrightError(f"{self.file} cannot be read: {error.strerror or error}") from error

    def _checked_comment(self) -> str:
        """The digest of the list. Raises ShapewrightError."""
        match = COMMENT.fullmatch(self._comment)
        if match is None:
            raise ShapewrightError(f"{self.file} is cut off at its end, or an archive and no snapshot: {AGAIN}")
        if int(match[1]) > VERSION:
            problem = f"{self.file} is a snapshot of version {int(match[1])}, this release reads up to {VERSION}"
            raise ShapewrightError(f"{problem}: install a later release of Shapewright")
        return match[2].decode()

    def _read(self, archive: zipfile.ZipFile, name: str, digest: str, most: int = MAX_BYTES) -> bytes:
        try:
            info = archive.getinfo(name)
        except KeyError:
            raise ShapewrightError(f"{self.file} lacks {name}: {AGAIN}") from None
        # Stored as it is: no member holds more than the file has bytes.
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
            raise ShapewrightError(f"{self.file}: {name} is not as a snapshot stores it: {AGAIN}")
        content = archive.read(info)
        if hashlib.sha256(content).hexdigest() != digest:
            raise ShapewrightError(f"{self.file}: {name} is damaged: {AGAIN}")
        return content

    def _entries(self, listed: bytes) -> tuple[Entry, ...]:
        try:
            data: Mapping[str, object] = json.loads(listed)
            libraries = data["libraries"]
            if not isinstance(libraries, list):
                raise TypeError("libraries is not a list")
            return tuple(Entry.from_json(each) for each in libraries)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ShapewrightError(f"{self.file}: {LIST} cannot be read ({error}): {AGAIN}") from None


def _on_target(there: list[Entry], target: Target | None, wanted: str, threads: int) -> list[Entry]:
    """The entries for a target; where there are none, those of the one that is most like it (``substitutes``)."""
    exact = [entry for entry in there if entry.target_fingerprint == wanted]
    if exact or target is None:
        return exact
    others = substitutes(target, {entry.target_fingerprint for entry in there if entry.threads == threads}, threads)
    return [entry for entry in there if others and entry.target_fingerprint == others[0][0]]


def only_entry(snapshot: Snapshot) -> Entry:
    """The library of a snapshot that has one alone. Raises InvalidInput."""
    if len(snapshot) != 1:
        problem = f"{snapshot.file} has {len(snapshot)} libraries"
        raise InvalidInput("workload", problem, "name one: load(FILE, workload)")
    return snapshot.entries[0]
