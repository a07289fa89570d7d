"""Ways in which the folder of a library, a snapshot or a service can be broken."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from shapewright.snapshot.writing import chosen, offers_of, write_snapshot
from tests.shapewright.answering import Answer
from tests.shapewright.libraries import altered
from tuner.library.package import DISPATCH, LIBRARY, MANIFEST

Break = Callable[[Path, Path], object]
"""Makes a broken library of a good one, in a folder that does not exist yet."""

THREADS: tuple[Any, ...] = (0, -1, 2, 100_000, 1.5, "1", True, [])
TARGETS: tuple[Any, ...] = ({}, [], "x", {"hardware": None})
RANGES: tuple[Any, ...] = (None, [], {"m": 1}, {"m": [1]}, {"m": ["a", None]})
NESTED = b'{"digest": ' + b"[" * 200_000


def _says(**manifest: Any) -> Break:
    return lambda good, folder: altered(good, folder, **manifest)


def _without(name: str) -> Break:
    def without(good: Path, folder: Path) -> None:
        data = json.loads((altered(good, folder) / MANIFEST).read_text())
        del data[name]
        (folder / MANIFEST).write_text(json.dumps(data))

    return without


def _has(name: str, content: bytes) -> Break:
    def has(good: Path, folder: Path) -> None:
        (altered(good, folder) / name).write_bytes(content)

    return has


def _built_of(name: str, content: bytes) -> Break:
    """A file that is no part of a library, in one whose manifest has its digest. Of libraries that fit alike the one
    with the least digest comes first: this one, by as many spaces as that takes."""

    def built(good: Path, folder: Path) -> None:
        altered(good, folder)
        data = json.loads((folder / MANIFEST).read_text())
        files = {file: (folder / file).read_bytes() for file in (LIBRARY, DISPATCH)}
        for spaces in count():
            files[name] = content + b" " * spaces
            digest = hashlib.sha256(files[LIBRARY] + files[DISPATCH]).hexdigest()
            if digest < data["digest"]:
                break
        (folder / name).write_bytes(files[name])
        data["files"][name] = hashlib.sha256(files[name]).hexdigest()
        (folder / MANIFEST).write_text(json.dumps({**data, "digest": digest}))

    return built


def _is(name: str, make: Callable[[Path], object]) -> Break:
    def has(good: Path, folder: Path) -> None:
        (altered(good, folder) / name).unlink()
        make(folder / name)

    return has


FOLDERS: Mapping[str, Break] = {
    **{f"without {name}": _without(name) for name in ("target", "digest", "threads", "workload", "files", "format")},
    **{f"{name} is null": _says(**{name: None}) for name in ("target", "digest", "threads", "workload", "files")},
    **{f"threads is {value}": _says(threads=value) for value in THREADS},
    **{f"target is {value}": _says(target=value) for value in TARGETS},
    "features are numbers": _says(target={"mcpu": "x", "hardware": {"features": [1, 2]}}),
    **{f"ranges is {value}": _says(ranges=value) for value in RANGES},
    "ranges are no numbers": _says(ranges={"m": [float("nan"), float("inf")]}),
    "digest is a path": _says(digest="../../../../etc"),
    "digest is of another": _says(digest="0" * 64),
    "workload is another": _says(workload={"op": "softmax", "args": {"m": "M", "n": 5}}),
    "workload is a number": _says(workload=7),
    "manifest is nested": _has(MANIFEST, NESTED),
    "manifest is empty": _has(MANIFEST, b""),
    "manifest is no text": _has(MANIFEST, b"\xff\xfe\x00\x01"),
    "manifest is a list": _has(MANIFEST, b"[]"),
    "manifest is a number of many digits": _has(MANIFEST, b"1" * 10_000),
    "manifest is huge": _is(MANIFEST, lambda path: _sparse(path, 1 << 40)),
    "manifest is a pipe": _is(MANIFEST, os.mkfifo),
    "manifest is a folder": _is(MANIFEST, Path.mkdir),
    "manifest is endless": _is(MANIFEST, lambda path: path.symlink_to("/dev/zero")),
    "manifest is a link to itself": _is(MANIFEST, lambda path: path.symlink_to(path)),
    "library is a pipe": _is(LIBRARY, os.mkfifo),
    "library is a folder": _is(LIBRARY, Path.mkdir),
    "library is endless": _is(LIBRARY, lambda path: path.symlink_to("/dev/zero")),
    "library is huge": _is(LIBRARY, lambda path: _sparse(path, 1 << 40)),
    "library is empty": _has(LIBRARY, b""),
    "library is damaged": _has(LIBRARY, b"\x7fELF damaged"),
    "library is built of nothing": _built_of(LIBRARY, b""),
    "library is built of text": _built_of(LIBRARY, b"no shared object"),
    "table is built of a list": _built_of(DISPATCH, b"[]"),
    "table is built of nothing": _built_of(DISPATCH, b'{"format": 2}'),
    "table is built of brackets": _built_of(DISPATCH, b"[" * 200_000),
}


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(bytes(content))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _scrambled(file: Path) -> None:
    """The sizes and offsets of the archive's directory are those of no file."""
    content = file.read_bytes()
    at = content.index(b"PK\x01\x02")
    file.write_bytes(content[: at + 20] + b"\xff" * 26 + content[at + 46 :])


SNAPSHOTS: Mapping[str, Callable[[Path], object]] = {
    "is empty": lambda file: file.write_bytes(b""),
    "is text": lambda file: file.write_bytes(b"PK damaged"),
    "is gone": Path.unlink,
    "is cut": _cut,
    "has another byte": _flip,
    "is scrambled": _scrambled,
    "is a folder": _folder,
    "is a pipe": _pipe,
    "is huge": lambda file: _sparse(file, 1 << 40),
}


def snapshot(libraries: Path, file: Path) -> Path:
    write_snapshot(file, chosen(offers_of(libraries)))
    return file


def _json(text: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + text.encode()


SERVICES: Mapping[str, Answer] = {
    "says nothing": b"",
    "is no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "says half": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
    "is a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
    "says a list": _json("[]"),
    "says nothing of digests": _json("{}"),
    "says null": _json('{"digest": null, "target_fingerprint": "x"}'),
    "says a number": _json('{"digest": 7, "target_fingerprint": "x"}'),
    "says a path": _json('{"digest": "../../../../etc", "target_fingerprint": "x", "workload_key": "../.."}'),
    "says nothing of targets": _json('{"digest": "x"}'),
    "says a list of targets": _json('{"digest": "x", "target_fingerprint": [], "cache": "tepid"}'),
    "answers with texts": _json('{"digest": "x", "answers": [{"best": "x"}, {"best": 7}, {}]}'),
    "says what it has not": _json(json.dumps({"digest": "0" * 64, "items": []})),
    "is nested": _json("[" * 200_000),
    "redirects": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
    "is packed wrong": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnot gzip",
    "fails": b"HTTP/1.1 500 No\r\n\r\n",
    "finds nothing": b'HTTP/1.1 404 No\r\n\r\n{"detail": 7}',
    "is endless": lambda: iter([_json(""), *([b" " * (1 << 20)] * 80)]),
}


def spoiled(libraries: Path, folder: Path) -> list[Path]:
    """Every way to break a folder, and every way to break a snapshot, as sources."""
    for number, spoil in enumerate(FOLDERS.values()):
        spoil(libraries / "square", folder / "folders" / str(number))
    shutil.copytree(libraries / "square", folder / "one")
    made = snapshot(folder / "one", folder / "good")
    files = []
    for number, ruin in enumerate(SNAPSHOTS.values()):
        files.append(folder / f"{number}.snapshot")
        shutil.copy(made, files[-1])
        ruin(files[-1])
    return [folder / "folders", *files]
