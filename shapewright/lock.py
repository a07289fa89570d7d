"""Lock files: which libraries a build uses, by digest, so that every later build gets the very same files.

A lock names each library by the folder that it belongs in, relative to the lock file, with the SHA-256 of every file.
It is JSON, sorted, to be kept under version control beside the build.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from shapewright.download import write
from shapewright.replacing import replaced
from tuner.errors import InvalidInput, ShapewrightError, shown
from tuner.library.package import FILES, MANIFEST, read_manifest
from tuner.plain_files import read_plain
from tuner.program.language.workload import JsonObject

FORMAT, VERSION = "shapewright-lock", 1
MAX_BYTES = 16 << 20
FACTS = ("workload_key", "digest", "target_fingerprint", "threads")

Fetch = Callable[["Locked"], Mapping[str, bytes]]
"""Gives the files of a locked library, from wherever they are kept."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One library of a lock. ``directory`` is relative to the lock file, ``files`` has the SHA-256 of each by name."""

    directory: str
    workload_key: str
    digest: str
    target_fingerprint: str
    threads: int
    files: Mapping[str, str]

    def to_json(self) -> JsonObject:
        facts = {name: getattr(self, name) for name in ("directory", *FACTS)}
        return {**facts, "files": dict(sorted(self.files.items()))}

    @staticmethod
    def of_folder(folder: Path, base: Path) -> Locked:
        """The entry of a library that was pulled into ``folder``, which must be below ``base``. Raises InvalidInput."""
        try:
            directory = folder.resolve().relative_to(base.resolve()).as_posix()
        except ValueError:
            problem = f"{folder} is not below {base}, where the lock file is"
            raise InvalidInput("--lock", problem, "pull into a folder beside the lock file, or below") from None
        manifest = read_manifest(folder)
        names = (MANIFEST, *manifest["files"])
        files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
        return Locked(directory, **{name: manifest[name] for name in FACTS}, files=files)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Locked:
        """Read what ``to_json`` wrote. Raises AttributeError, KeyError, TypeError or ValueError for anything else."""
        directory = PurePosixPath(data["directory"])
        if directory.is_absolute() or ".." in directory.parts:
            raise ValueError(f"{shown(str(directory))} is not a folder below the lock file's")
        files = {str(name): str(digest) for name, digest in data["files"].items()}
        if MANIFEST not in files or not set(files) <= set(FILES):
            raise ValueError(f"files {shown(sorted(files))} are not those of a library")
        key, digest, target = (str(data[name]) for name in FACTS[:3])
        return Locked(str(directory), key, digest, target, int(data["threads"]), files)


def read_lock(file: Path) -> tuple[Locked, ...]:
    """The libraries of a lock file, by folder. Raises InvalidInput on ``--locked``, OSError."""
    remedy = "`shapewright pull WORKLOAD -o DIR --lock FILE` writes one"
    try:
        data = json.loads(read_plain(file, MAX_BYTES))
        if data["format"] != FORMAT:
            raise ValueError(f"format {shown(data['format'])}")
        if data["version"] != VERSION:
            problem = f"{file} is of version {shown(data['version'])}, this release reads {VERSION}"
            raise InvalidInput("--locked", problem, "install a later release, or pull with --lock again")
        return tuple(Locked.from_json(each) for each in data["libraries"])
    except InvalidInput:
        raise
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.EINVAL):
            raise
        raise InvalidInput("--locked", f"{file} {error.strerror}", remedy) from None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput("--locked", f"{file} is not a lock file ({error})", remedy) from None


def write_lock(file: Path, folders: Iterable[Path]) -> tuple[Locked, ...]:
    """Have ``file`` lock the libraries in ``folders``; what it locks in other folders stays.

    The file is replaced whole or not at all. Raises InvalidInput, OSError.
    """
    locked = {each.directory: each for each in read_lock(file)} if file.exists() else {}
    locked |= {each.directory: each for each in (Locked.of_folder(folder, file.parent) for folder in folders)}
    result = tuple(locked[name] for name in sorted(locked))
    data = {"format": FORMAT, "version": VERSION, "libraries": [each.to_json() for each in result]}
    with replaced(file) as out:
        out.write((json.dumps(data, indent=1) + "\n").encode())
    return result


def restore(locked: Iterable[Locked], fetch: Fetch, base: Path) -> list[Path]:
    """Write each locked library into its folder below ``base``, all of them checked before the first is written.

    One at a time is in memory. A folder that holds just these files is left alone. Raises ShapewrightError if any file
    is not the one that was locked, OSError.
    """
    folders = [(each, base / each.directory) for each in locked]
    missing = [(each, folder) for each, folder in folders if not _is_there(each, folder)]
    for each, _ in missing[1:]:
        _checked(each, fetch(each))
    for each, folder in missing:
        write(_checked(each, fetch(each)), folder)
    return [folder for _, folder in folders]


def _is_there(locked: Locked, folder: Path) -> bool:
    return all(
        (folder / name).is_file() and hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        for name, digest in locked.files.items()
    )


def _checked(locked: Locked, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    found = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    differing = sorted(name for name in {*found, *locked.files} if found.get(name) != locked.files.get(name))
    if differing:
        problem = f"{', '.join(differing)} of library {locked.digest[:12]} differ from what is locked"
        raise ShapewrightError(f"{problem} for {locked.directory}; nothing was written")
    return files
