"""Libraries as files: the shared object, its dispatch table, the IR it came from, the kernels' source to be read, and
the manifest that names them."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher, made_for
from tuner.program.range_text import format_ranges
from tuner.program.workload import JsonObject, Workload
from tuner.records import PROTOCOL
from tuner.rules import layouts_of
from tuner.rules.layout import Layout, layout_from_json

FORMAT = 1
LIBRARY, DISPATCH, MANIFEST, IR = "library.so", "dispatch.json", "manifest.json", "ir.json.gz"
KERNELS = "kernels.json.gz"
ENTRY = "kernel"
"""The function that a library exports."""
FILES = (LIBRARY, DISPATCH, MANIFEST, IR, KERNELS)
"""Every file that a library may have."""


@dataclass(frozen=True, slots=True)
class LibraryFiles:
    """A library ready to be stored or written: files by name, with manifest and dispatch table parsed."""

    files: Mapping[str, bytes]
    manifest: JsonObject
    dispatch: JsonObject


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A candidate: the bytes of a shared object, and of the object file that a library of its kernel is linked from;
    empty where there is none, and a library compiles the kernel again."""

    binary: bytes
    code: bytes = b""


def package(
    dispatcher: Dispatcher,
    binary: bytes,
    ir: str,
    toolchain: Mapping[str, str],
    job_id: str | None,
    scripts: Sequence[str] = (),
) -> LibraryFiles:
    """The files of a library. Its digest names the shared object and the dispatch table together.

    ``scripts`` are the kernels' TensorIR as text, in the dispatcher's order; none, and they are left out.
    """
    task = dispatcher.task
    dispatch = dispatcher.to_json()
    files = {LIBRARY: binary, DISPATCH: _text(dispatch), IR: gzip.compress(ir.encode(), mtime=0)}
    if scripts:
        kernels = {kernel.id: {"script": script} for kernel, script in zip(dispatcher.kernels, scripts, strict=True)}
        files[KERNELS] = gzip.compress(_text({"format": FORMAT, "kernels": kernels}), mtime=0)
    layouts = layouts_of(task, dispatcher.kernels[0])
    manifest: JsonObject = {
        "format": FORMAT,
        "digest": digest_of(files),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "workload": task.workload.to_json(),
        "workload_key": task.workload.key,
        "target": task.target.to_json() if task.target else None,
        "target_fingerprint": task.target.fingerprint if task.target else None,
        "threads": task.threads,
        "ranges": dispatch["bounds"],
        "made_for": format_ranges(made_for(task)),
        "protocol": PROTOCOL,
        "toolchain": dict(toolchain),
        "job_id": job_id,
        "packed_layouts": {name: layout.to_json() for name, layout in layouts.items()},
        "kernels": dispatch["kernels"],
    }
    return LibraryFiles({**files, MANIFEST: _text(manifest)}, manifest, dispatch)


def packed_layouts(manifest: JsonObject, workload: Workload) -> dict[str, Layout]:
    """By constant tensor how a library wants it packed. Libraries of format 1 name the one layout of their constant."""
    if "packed_layouts" in manifest:
        return {name: layout_from_json(data) for name, data in manifest["packed_layouts"].items()}
    data = manifest.get("packed_layout")
    return {name: layout_from_json(data) for name in workload.constants} if data else {}


def digest_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the shared object and the dispatch table, which together decide what a library does."""
    return hashlib.sha256(files[LIBRARY] + files[DISPATCH]).hexdigest()


def kernel_scripts(files: Mapping[str, bytes]) -> dict[str, str]:
    """By kernel id the TensorIR of a library's kernels as text; empty for a library that is too old to have it.

    Raises ShapewrightError if the file is not what this version reads.
    """
    if KERNELS not in files:
        return {}
    try:
        data = json.loads(gzip.decompress(files[KERNELS]))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ShapewrightError(f"{KERNELS} cannot be read ({error}): pull the library again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        result = data.get("format") if isinstance(data, dict) else None
        raise ShapewrightError(f"{KERNELS} has format {result!r}, this version reads format {FORMAT}")
    return {name: str(kernel["script"]) for name, kernel in data["kernels"].items()}


def read_files(directory: Path) -> dict[str, bytes]:
    """The files of the library in a directory, unchecked; those that it has. Raises OSError."""
    return {name: (directory / name).read_bytes() for name in FILES if (directory / name).is_file()}


def check_files(files: Mapping[str, bytes]) -> JsonObject:
    """The parsed manifest, once every file is there and is what the manifest says. Raises ShapewrightError."""
    if MANIFEST not in files:
        raise ShapewrightError(f"{MANIFEST} is missing: this is not a library")
    try:
        manifest: JsonObject = json.loads(files[MANIFEST])
    except ValueError as error:
        raise ShapewrightError(f"{MANIFEST} is not JSON ({error}): pull the library again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        result = manifest.get("format") if isinstance(manifest, dict) else None
        raise ShapewrightError(f"{MANIFEST} has format {result!r}, this version reads format {FORMAT}")
    digests = manifest.get("files")
    if not isinstance(digests, dict) or not {LIBRARY, DISPATCH} <= set(digests):
        raise ShapewrightError(f"{MANIFEST} does not name {LIBRARY} and {DISPATCH}: pull the library again")
    broken = _broken(files, digests)
    if broken or digest_of(files) != manifest.get("digest"):
        raise ShapewrightError(f"{', '.join(broken) or MANIFEST} is not what was built: pull the library again")
    return manifest


def _broken(files: Mapping[str, bytes], digests: Mapping[str, str]) -> Sequence[str]:
    return [
        name
        for name, digest in digests.items()
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest
    ]


def _text(data: JsonObject) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
