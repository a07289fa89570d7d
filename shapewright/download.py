"""Downloaded libraries: checked completely, then written atomically."""

from __future__ import annotations

import base64
import hashlib
import io
import lzma
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from shapewright.errors import BadDownload
from tuner.errors import ShapewrightError
from tuner.library.package import MANIFEST, check_files
from tuner.program.language.workload import JsonObject

UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError),
    *(RuntimeError, ValueError, KeyError, OverflowError),
)
"""What zipfile raises of an archive that is damaged, encrypted, packed in another way, or none."""
MAX_BYTES = 1 << 30
"""The most that the files of one library may hold; libraries are a few MiB."""


def check_transfer(content: bytes, content_digest: str | None) -> None:
    """Raise BadDownload unless ``content`` has the SHA-256 that a Content-Digest header (RFC 9530) names."""
    actual = base64.b64encode(hashlib.sha256(content).digest()).decode()
    if content_digest != f"sha-256=:{actual}:":
        what = f"expected {content_digest}, got sha-256=:{actual}:"
        raise BadDownload(f"the library was damaged in transit: {what}; try again")


def unpack(content: bytes) -> dict[str, bytes]:
    """The files of a library's ZIP archive, by name. Raises BadDownload."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            return {info.filename: packed.read(info) for info in _members(packed)}
    except UNREADABLE as error:
        raise BadDownload(f"the download is not an archive ({error}); is this URL a Shapewright service?") from None


def _members(packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = packed.infolist()
    for info in members:
        if info.filename in ("", ".", "..") or "/" in info.filename or "\\" in info.filename:
            raise BadDownload(f"the archive holds {info.filename!r}, which is not a plain name; nothing was written")
    if sum(info.file_size for info in members) > MAX_BYTES:
        raise BadDownload(f"the library is larger than {MAX_BYTES} bytes; nothing was written")
    return members


def check(files: Mapping[str, bytes], digest: str) -> JsonObject:
    """The manifest, once every file is what it says and the library is the one of ``digest``. Raises BadDownload."""
    try:
        manifest = check_files(files)
        extra = sorted(set(files) - set(manifest["files"]) - {MANIFEST})
    except (ShapewrightError, KeyError, TypeError) as error:
        raise BadDownload(f"the download is not a complete library: {error}; nothing was written") from None
    if extra:
        raise BadDownload(f"the manifest does not name {', '.join(extra)}, which came with it; nothing was written")
    if manifest["digest"] != digest:
        raise BadDownload(f"asked for the library {digest}, got {manifest['digest']}; nothing was written")
    return manifest


def write(files: Mapping[str, bytes], directory: Path) -> None:
    """Put the files, by their paths in it, into ``directory``, which need not exist.

    A new directory appears whole or not at all. In one that is there each file is replaced in one step, the manifest
    last: a process that has the old library loaded keeps it, and one that reads in between sees digests that differ.
    """
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        staged = Path(scratch) / "library"
        staged.mkdir()
        for name, content in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            _write_through(staged / name, content)
        if directory.exists():
            for name in sorted(files, key=lambda name: name == MANIFEST):
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (staged / name).replace(directory / name)
        else:
            staged.rename(directory)
    _sync_directory(directory)


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
