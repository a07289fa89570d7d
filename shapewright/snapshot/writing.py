"""Writing snapshots of libraries from directories, other snapshots and a service, one in memory at a time."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from shapewright.replacing import replaced
from shapewright.snapshot.entries import LIST, Entry, comment_of, list_bytes, member
from shapewright.snapshot.order import KEPT, best_of, newest_of
from shapewright.snapshot.reading import Snapshot
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import FILES, MANIFEST, read_files

_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
DEPTH = 2
"""How far below a directory libraries are looked for: `tune -o` writes DIR/WORKLOAD/TARGET."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A library that a snapshot may hold. ``read`` gives its files when they are written."""

    entry: Entry
    read: Callable[[], Mapping[str, bytes]]


def offers_of(source: str | Path) -> list[Offer]:
    """The libraries of a snapshot, or of a directory of `pull` or `tune -o`, with those in the folders below it.

    Raises ShapewrightError if there is none, or one is damaged.
    """
    path = Path(source)
    if path.is_file():
        snapshot = Snapshot(path)
        return [Offer(entry, _reader(snapshot, entry)) for entry in snapshot.entries]
    found = [_offer(folder) for folder in library_folders(path)]
    if not found:
        raise InvalidInput("--from", f"{path} has no library", "a directory of `pull` or `tune -o`, or a snapshot")
    return found


def _reader(snapshot: Snapshot, entry: Entry) -> Callable[[], Mapping[str, bytes]]:
    return lambda: snapshot.files(entry)


def _offer(folder: Path) -> Offer:
    try:
        return Offer(Entry.of_files(read_files(folder)), lambda: read_files(folder))
    except ShapewrightError as error:
        raise ShapewrightError(f"{folder}: {error}") from None


def library_folders(path: Path) -> list[Path]:
    """The folders with a library: ``path`` itself, and those below it that `pull` and `tune -o` make.

    A folder is not entered if it is hidden, a link, or another user's; a manifest alone, as other programs have them,
    makes no library.
    """
    if not path.is_dir():
        return []
    found, level = [path] if _is_library(path) else [], [path]
    for _ in range(DEPTH):
        level = [each for folder in level for each in _below(folder)]
        found += [folder for folder in level if _is_library(folder)]
    # What is left of a library is to be said to be damaged.
    return found or ([path] if (path / MANIFEST).is_file() else [])


def _below(folder: Path) -> list[Path]:
    owner = folder.stat().st_uid
    try:
        with os.scandir(folder) as entries:
            own = [each for each in entries if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)]
            return sorted(Path(each.path) for each in own if each.stat(follow_symlinks=False).st_uid == owner)
    except PermissionError:
        return []


def _is_library(folder: Path) -> bool:
    """Whether any file lies there that only libraries have."""
    return any((folder / name).is_file() for name in FILES if name != MANIFEST)


def chosen(offers: Iterable[Offer], keep: str = "best") -> list[Offer]:
    """What a snapshot keeps of ``offers``, in its order: each library once, and of those for one place ``keep``.

    ``best`` by ``shapewright.snapshot.order``, ``newest``, or ``all``. The result is the same in whatever order the
    offers come. Raises InvalidInput, ShapewrightError.
    """
    if keep not in KEPT:
        raise InvalidInput("--keep", f"{keep!r} is not known", f"one of: {', '.join(KEPT)}")
    once: dict[str, Offer] = {}
    for offer in offers:
        known = once.get(offer.entry.digest)
        once[offer.entry.digest] = offer if known is None else _earlier(known, offer)
    ordered = sorted(once.values(), key=lambda offer: offer.entry.sort_key)
    if keep == "all":
        return ordered
    groups = groupby(ordered, key=lambda offer: offer.entry.place)
    return [_one_of(list(group), keep) for _, group in groups]


def _one_of(offers: Sequence[Offer], keep: str) -> Offer:
    """What is kept of the offers for one place."""
    by_digest = {offer.entry.digest: offer for offer in offers}
    entries = [offer.entry for offer in offers]
    best = newest_of(entries) if keep == "newest" else best_of(entries, lambda entry: by_digest[entry.digest].read())
    return by_digest[best.digest]


def _earlier(one: Offer, other: Offer) -> Offer:
    """The offer of a library that says when it was built, or the earlier of two that do; manifests may differ."""
    return min(one, other, key=lambda offer: (offer.entry.created_at or "9", sorted(offer.entry.files.items())))


def write_snapshot(file: str | Path, offers: Sequence[Offer]) -> Snapshot:
    """Write the libraries of ``offers``, as ``chosen`` gives them, and open the file.

    The file appears whole or not at all, in place of one that is there. Raises ShapewrightError for a library that is
    damaged or not the one that was offered, OSError.
    """
    file = Path(file)
    if file.exists() and not file.is_file():
        raise InvalidInput("file", f"{file} is no file to be replaced", "name one that is new, or a snapshot")
    with replaced(file) as out:
        with zipfile.ZipFile(out, "w") as archive:
            entries = tuple(_write(archive, offer) for offer in offers)
            listed = list_bytes(entries)
            archive.writestr(_member(LIST), listed)
            archive.comment = comment_of(listed)
        out.flush()
        Snapshot(Path("/proc/self/fd", str(out.fileno())))
    return Snapshot(file)


def merge(file: str | Path, sources: Sequence[str | Path], keep: str = "best") -> Snapshot:
    """A snapshot of what several snapshots and directories hold; ``file`` may be one of them.

    Raises ShapewrightError, OSError.
    """
    return write_snapshot(file, chosen((offer for source in sources for offer in offers_of(source)), keep))


def _write(archive: zipfile.ZipFile, offer: Offer) -> Entry:
    files = offer.read()
    entry = replace(Entry.of_files(files), created_at=offer.entry.created_at)
    if entry.digest != offer.entry.digest:
        raise ShapewrightError(
            f"library {offer.entry.digest[:12]} is {entry.digest[:12]} now: write the snapshot again"
        )
    for name in sorted(files):
        archive.writestr(_member(member(entry.digest, name)), files[name])
    return entry


def _member(name: str) -> zipfile.ZipInfo:
    """A member without a date, and the same on every system."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr, info.compress_type = _UNIX, _MODE, zipfile.ZIP_STORED
    return info
