"""Libraries as files: the shared object, its dispatch table, the IR it came from, the kernels' source to be read, and
the manifest that names them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner import __version__
from tuner.errors import InvalidInput, ShapewrightError, shown
from tuner.library.dispatcher import Dispatcher, Leaf, TableRow, Tree, kernel_json, made_for
from tuner.library.manifest import AGAIN, MALFORMED, check_fields, is_count, is_kernel, reason, workload_of
from tuner.plain_files import read_plain
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import format_ranges
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, Workload
from tuner.records import protocol_of
from tuner.schedule.layout import Layout, layout_from_json

FORMAT = 1
LIBRARY, DISPATCH, MANIFEST, IR = "library.so", "dispatch.json", "manifest.json", "ir.json.gz"
KERNELS = "kernels.json.gz"
SEAL = "manifest_digest"
"""The field of a manifest that has the SHA-256 of its others; manifests of earlier releases have none."""
ENTRY = "kernel"
"""The function that a library exports."""
ALONE = "sw_alone"
"""The function of a launcher that stands alone, see ``GpuSource.alone``."""
FILES = (LIBRARY, DISPATCH, MANIFEST, IR, KERNELS)
"""Every file that a library may have."""
MAX_BYTES = {".so": 1 << 30, ".json": 16 << 20, ".gz": 1 << 28}
"""The largest size of a file, by its suffix; libraries are a few MiB."""
MAX_INFLATED = 1 << 30


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
    ir: str | None,
    toolchain: Mapping[str, str],
    job_id: str | None,
    scripts: Sequence[str] = (),
    layouts: Mapping[str, Layout] | None = None,
    code_for: Sequence[str] = (),
) -> LibraryFiles:
    """The files of a library. Its digest names the shared object and the dispatch table together.

    ``scripts`` are the kernels' source as text, in the dispatcher's order; none, and they are left out. ``layouts``:
    of packed constants; None: those of the first kernel's rule. ``code_for``: the instruction sets of a GPU's
    library, whose kernels have no IR of TVM.
    """
    from tuner.schedule import layouts_of  # noqa: PLC0415 - rules, which whoever reads a library need not have

    task = dispatcher.task
    dispatch = dispatcher.to_json()
    files = {LIBRARY: binary, DISPATCH: _text(dispatch)}
    if ir is not None:
        files[IR] = gzip.compress(ir.encode(), mtime=0)
    if scripts:
        kernels = {kernel.id: {"script": script} for kernel, script in zip(dispatcher.kernels, scripts, strict=True)}
        files[KERNELS] = gzip.compress(_text({"format": FORMAT, "kernels": kernels}), mtime=0)
    if layouts is None:
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
        "cache": task.cache.value,
        "protocol": protocol_of(task.cache),
        "toolchain": dict(toolchain),
        "shapewright": __version__,
        "job_id": job_id,
        "packed_layouts": {name: layout.to_json() for name, layout in layouts.items()},
        "kernels": dispatch["kernels"],
        **({"code_for": list(code_for)} if code_for else {}),
    }
    manifest[SEAL] = seal_of(manifest)
    return LibraryFiles({**files, MANIFEST: _text(manifest)}, manifest, dispatch)


def packed_layouts(manifest: JsonObject, workload: Workload) -> dict[str, Layout]:
    """The packed layout of each constant tensor, by name. Libraries of format 1 name the layout of their only one."""
    if "packed_layouts" in manifest:
        return {name: layout_from_json(data) for name, data in manifest["packed_layouts"].items()}
    data = manifest.get("packed_layout")
    return {name: layout_from_json(data) for name in workload.constants} if data else {}


def digest_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the shared object and the dispatch table, which together decide what a library does."""
    return hashlib.sha256(files[LIBRARY] + files[DISPATCH]).hexdigest()


def seal_of(manifest: JsonObject) -> str:
    """SHA-256 over all fields of a manifest but SEAL, which says how a library is called: packed, for whom, by what."""
    return hashlib.sha256(_text({name: value for name, value in manifest.items() if name != SEAL})).hexdigest()


def kernel_scripts(files: Mapping[str, bytes]) -> dict[str, str]:
    """The TensorIR of a library's kernels as text, by kernel id; empty for a library that is too old to have it.

    Raises ShapewrightError if the file is not what this version reads.
    """
    if KERNELS not in files:
        return {}
    try:
        data = json.loads(inflated(files, KERNELS))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            result = data.get("format") if isinstance(data, dict) else None
            raise ShapewrightError(f"{KERNELS} has format {shown(result)}, this version reads format {FORMAT}")
        return {name: str(kernel["script"]) for name, kernel in data["kernels"].items()}
    except MALFORMED as error:
        raise ShapewrightError(f"{KERNELS} cannot be read ({reason(error)}): {AGAIN}") from None


def read_files(directory: Path) -> dict[str, bytes]:
    """The files of the library in a directory, unchecked; those that it has. Raises ShapewrightError."""
    return {name: _content(directory / name) for name in FILES if os.path.lexists(directory / name)}


def read_manifest(directory: Path) -> JsonObject:
    """The manifest of the library in a directory, checked; its other files are not read. Raises ShapewrightError."""
    return manifest_of(_content(directory / MANIFEST), str(directory / MANIFEST))


def _content(file: Path) -> bytes:
    try:
        return read_plain(file, MAX_BYTES[file.suffix])
    except OSError as error:
        raise ShapewrightError(f"{file} {_problem(error)}: {AGAIN}") from error


def _problem(error: OSError) -> str:
    """What is wrong with a file: its own faults as they are, those of reading it in brackets."""
    if error.errno in (errno.EINVAL, errno.EFBIG):
        return str(error.strerror)
    return f"cannot be read ({error.strerror or error})"


def manifest_of(content: bytes, name: str = MANIFEST) -> JsonObject:
    """The parsed manifest, every field what this version takes. ``name`` is where it was read.

    Raises InvalidInput naming file and field, ShapewrightError for what is no manifest of this format.
    """
    manifest = _parsed(content, name)
    check_fields(manifest, name)
    return manifest


def check_files(files: Mapping[str, bytes], source: Path = Path()) -> JsonObject:
    """The parsed manifest, once every file is there and is what the manifest says, and the manifest is what this
    version takes. ``source`` is where the files were read. Raises ShapewrightError."""
    name = str(source / MANIFEST)
    if MANIFEST not in files:
        raise ShapewrightError(f"{name} is missing: this is not a library")
    manifest = _parsed(files[MANIFEST], name)
    broken = _broken(files, manifest["files"])
    if broken or digest_of(files) != manifest.get("digest"):
        listed = ", ".join(str(source / each) for each in broken) or name
        raise ShapewrightError(f"{listed} is not what was built: {AGAIN}")
    check_fields(manifest, name)
    if SEAL in manifest and manifest[SEAL] != seal_of(manifest):
        raise ShapewrightError(f"{name} is not what was built: {AGAIN}")
    return manifest


def _parsed(content: bytes, name: str) -> JsonObject:
    """The manifest with format and files as they must be."""
    from tuner.program.job.documents import read_json  # noqa: PLC0415 - it needs YAML, which devices have not

    try:
        manifest = read_json(content, "")
    except InvalidInput as error:
        if error.field:
            raise InvalidInput(f"{name}: {error.field}", error.problem, AGAIN) from None
        raise ShapewrightError(f"{name} is not JSON ({error.problem}): {AGAIN}") from None
    if not isinstance(manifest, dict) or not is_count(manifest.get("format"), FORMAT):
        result = manifest.get("format") if isinstance(manifest, dict) else None
        raise ShapewrightError(f"{name} has format {shown(result)}, this version reads format {FORMAT}")
    digests = manifest.get("files")
    if not isinstance(digests, dict) or not {LIBRARY, DISPATCH} <= set(digests):
        raise ShapewrightError(f"{name} does not name {LIBRARY} and {DISPATCH}: {AGAIN}")
    return manifest


def _broken(files: Mapping[str, bytes], digests: Mapping[str, str]) -> Sequence[str]:
    return [
        name
        for name, digest in digests.items()
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest
    ]


def dispatcher_of(files: Mapping[str, bytes], manifest: JsonObject, source: Path = Path()) -> Dispatcher:
    """The dispatcher of checked files. Raises ShapewrightError for a dispatch table that this version cannot read, or
    whose library is another than its manifest says."""
    name = str(source / DISPATCH)
    try:
        dispatcher = Dispatcher.from_json(json.loads(files[DISPATCH]))
        _check_table(dispatcher)
        dispatcher.task.known_target  # noqa: B018 - raises where none is named
    except (*MALFORMED, ShapewrightError) as error:
        raise ShapewrightError(f"{name} cannot be read ({reason(error)}): {AGAIN}") from None
    _check_agreement(manifest, dispatcher.task, str(source / MANIFEST))
    return dispatcher


def _check_agreement(manifest: JsonObject, task: SearchTask, name: str) -> None:
    """Raise InvalidInput where a manifest says of a library what its dispatch table does not: libraries are looked for
    by their manifests, and run by their tables."""
    if manifest["threads"] != task.threads:
        problem = f"is {manifest['threads']}, the library is for {task.threads}"
        raise InvalidInput(f"{name}: threads", problem, AGAIN)
    if manifest.get("cache", Cache.WARM) != task.cache:
        problem = f"is {manifest.get('cache', Cache.WARM)}, the library is for {task.cache.value}"
        raise InvalidInput(f"{name}: cache", problem, AGAIN)
    if workload_of(manifest).key != task.workload.key:
        raise InvalidInput(f"{name}: workload", f"is not that of the library, {task.workload}", AGAIN)
    told, target = manifest["target"], task.known_target
    if (target.gpu is not None) is not (told.get("kind") == "cuda"):
        raise InvalidInput(f"{name}: target", f"is not that of the library, {target.kind}", AGAIN)
    if target.gpu is not None and told["arch"] != target.mcpu:
        raise InvalidInput(f"{name}: target", f"is {told['arch']}, the library is for {target.mcpu}", AGAIN)
    hidden = sorted(set(target.hardware.features) - set(told["hardware"].get("features", target.hardware.features)))
    if hidden:
        raise InvalidInput(f"{name}: target", f"leaves out {', '.join(hidden)}, which the library uses", AGAIN)


def _check_table(dispatcher: Dispatcher) -> None:
    """Raise ValueError where a table names kernels or shapes that there are not."""
    numbers = [dispatcher.default_kernel, *_numbers(dispatcher.tree), *(row.kernel for row in dispatcher.table)]
    if not all(type(number) is int and 0 <= number < len(dispatcher.kernels) for number in numbers):
        raise ValueError(f"not every kernel is one of {len(dispatcher.kernels)}")
    if not all(map(is_kernel, map(kernel_json, dispatcher.kernels))):
        raise ValueError("a kernel's values are not numbers")
    if not all(_is_row(dispatcher, row) for row in dispatcher.table):
        raise ValueError("a row of the table is not a shape with its seconds")


def _numbers(tree: Tree) -> Iterator[int]:
    if isinstance(tree, Leaf):
        yield tree.kernel
        return
    if type(tree.at_most) is not int:
        raise ValueError(f"{shown(tree.at_most)} is no size")
    yield from _numbers(tree.then)
    yield from _numbers(tree.otherwise)


def _is_row(dispatcher: Dispatcher, row: TableRow) -> bool:
    names = {var.name for var in dispatcher.task.shape_vars}
    seconds = row.predicted_latency_s, row.measured_latency_s or 0.0
    is_shape = set(row.shape) == names and all(type(size) is int for size in row.shape.values())
    return is_shape and all(isinstance(each, int | float) for each in seconds)


def inflated(files: Mapping[str, bytes], name: str) -> bytes:
    """What a compressed file of a library holds, up to MAX_INFLATED. Raises ShapewrightError."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = stream.decompress(files[name], MAX_INFLATED)
    except zlib.error as error:
        raise ShapewrightError(f"{name} cannot be read ({error}): {AGAIN}") from None
    if not stream.eof:
        why = "it is cut off" if len(content) < MAX_INFLATED else f"it holds more than {MAX_INFLATED} bytes"
        raise ShapewrightError(f"{name} cannot be read ({why}): {AGAIN}")
    return content


def _text(data: JsonObject) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
