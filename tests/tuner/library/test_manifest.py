"""Manifests and dispatch tables that say anything at all: taken, or refused with file, field and remedy."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import TASK
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow
from tuner.library.manifest import AGAIN
from tuner.library.package import (
    DISPATCH,
    LIBRARY,
    MANIFEST,
    SEAL,
    check_files,
    digest_of,
    dispatcher_of,
    inflated,
    manifest_of,
    package,
    read_files,
    read_manifest,
    seal_of,
)
from tuner.schedule import default_kernel

SAFE = default_kernel(TASK)
SYMBOL, *_ = TASK.workload.symbols
SHAPE = dict(TASK.instances[0].shape)
DISPATCHER = Dispatcher(TASK, (SAFE,), 0, Node(SYMBOL, 4, Leaf(0), Leaf(0)), (TableRow(SHAPE, 0, 1e-3, 2e-3),))
FOUND = package(DISPATCHER, b"binary", "{}", {"tvm": "1"}, "job-1", ["for"])
MISSING = object()
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 10**30, -(10**30), 100_000, float("nan"), float("inf"), "", "a\0b", "../../../etc",
    "x" * 10_000, [], {}, [None], {"": None}, [[[]]], {"a": {"b": [1]}}, MISSING,
)  # fmt: skip


def places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of a document, however deep."""
    yield place
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*place, key))


def changed(data: Any, place: tuple[Any, ...], value: object) -> Any:
    if not place:
        return None if value is MISSING else value
    inner = data = copy.deepcopy(data)
    for key in place[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return data


def with_manifest(manifest: object) -> Mapping[str, bytes]:
    sealed = {**manifest, SEAL: seal_of(manifest)} if isinstance(manifest, dict) and SEAL in manifest else manifest
    return {**FOUND.files, MANIFEST: json.dumps(sealed).encode()}


def with_dispatch(content: bytes) -> Mapping[str, bytes]:
    """Files whose digests are right, whatever the table says."""
    files = {**FOUND.files, DISPATCH: content}
    digests = FOUND.manifest["files"] | {DISPATCH: hashlib.sha256(content).hexdigest()}
    manifest = FOUND.manifest | {"files": digests, "digest": digest_of(files)}
    return {**with_manifest(manifest), DISPATCH: content}


def read(files: Mapping[str, bytes]) -> Dispatcher | None:
    """What loading reads; None of what it refuses, in one line that is not too long and says what to do."""
    try:
        return dispatcher_of(files, check_files(files, Path("folder")), Path("folder"))
    except ShapewrightError as error:
        text = str(error)
        assert text.startswith(("folder/manifest.json", "folder/dispatch.json", "folder/library.so", "folder/"))
        assert AGAIN in text or "this version reads format" in text
        assert len(text) < 400, text
        return None


@pytest.mark.parametrize("place", list(places(FOUND.manifest)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_any_value_in_any_field_of_a_manifest_is_taken_or_refused(place: tuple[Any, ...]) -> None:
    for value in ODD:
        dispatcher = read(with_manifest(changed(FOUND.manifest, place, value)))
        # What is taken is the library that was built.
        assert dispatcher is None or dispatcher == DISPATCHER


def test_any_value_in_any_field_of_a_dispatch_table_is_taken_or_refused() -> None:
    for number, place in enumerate(places(FOUND.dispatch)):
        for value in ODD[number % 3 :: 3]:
            dispatcher = read(with_dispatch(json.dumps(changed(FOUND.dispatch, place, value)).encode()))
            if dispatcher is not None:
                assert dispatcher.task.workload.key == TASK.workload.key
                assert dispatcher.kernel_for(SHAPE).rule is not None
                dispatcher.predicted_latency_s(dict.fromkeys(TASK.workload.symbols, 3))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("threads", 100_000, "100000 is not an integer from 1 to 1024"),
        ("threads", True, "True is not an integer"),
        ("threads", MISSING, "is missing"),
        ("threads", 2, "is 2, the library is for 1"),
        ("target", MISSING, "is missing"),
        ("target", None, "None is not a target"),
        ("target", {"mcpu": "x", "hardware": {"cores": 1, "features": ["\u001b[2J"]}}, "is not a target"),
        ("digest", "../" * 20, "not what was built"),
        ("ranges", {"m": [5, 1]}, "is not the range of each symbol"),
        ("ranges", {"m": ["1", "5"]}, "is not the range of each symbol"),
        ("ranges", [[1, 5]], "is not the range of each symbol"),
        ("packed_layouts", {"w": {"kind": "panels", "panel": 0}}, "is not the layout of each"),
        ("packed_layouts", {"w": {"kind": "panels", "panel": 10**30}}, "does not fit 64 bits"),
        ("workload", {"op": "dense"}, "cannot be read (args: "),
        ("workload_key", "a/b", "is not a workload's key"),
        ("kernels", {}, "is not a list of kernels"),
    ],
)
def test_what_a_manifest_may_not_say_is_named(field: str, value: object, says: str) -> None:
    with pytest.raises(ShapewrightError) as caught:
        files = with_manifest(changed(FOUND.manifest, (field,), value))
        dispatcher_of(files, check_files(files))
    assert says in str(caught.value)
    if field != "digest":
        assert isinstance(caught.value, InvalidInput)
        assert caught.value.field.startswith(f"{MANIFEST}: {field}")


def test_a_manifest_of_another_workload_or_of_fewer_features_is_refused() -> None:
    other = {"op": "dense", "args": {"m": "M", "n": 2, "k": 3}, "dtype": "float32", "epilogue": []}
    hardware = FOUND.manifest["target"]["hardware"] | {"features": []}
    for field, value, says in (
        ("workload", other, "is not that of the library"),
        ("target", FOUND.manifest["target"] | {"hardware": hardware}, "leaves out"),
    ):
        files = with_manifest(FOUND.manifest | {field: value})
        with pytest.raises(InvalidInput, match=says) as caught:
            dispatcher_of(files, check_files(files))
        assert caught.value.field == f"{MANIFEST}: {field}"


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"a":' * 200_000, b'{"a": 1' + b"0" * 5000 + b"}", b"\xff", b'{"a":NaN}']
)
def test_documents_that_no_parser_likes_are_refused(text: bytes) -> None:
    with pytest.raises(ShapewrightError, match=MANIFEST):
        manifest_of(text)
    assert read(with_dispatch(text)) is None


def test_a_tree_as_deep_as_the_parser_goes_is_refused() -> None:
    leaf, depth = '{"kernel": 0}', 900
    node = f'{{"dim": "{SYMBOL}", "at_most": 1, "else": {leaf}, "then": '
    tree = node * depth + leaf + "}" * depth
    text = json.dumps(FOUND.dispatch | {"tree": "TREE"}).replace('"TREE"', tree)
    assert read(with_dispatch(text.encode())) is None


def test_what_holds_more_than_a_library_does_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.library.package.MAX_INFLATED", 1)
    with pytest.raises(ShapewrightError, match="holds more than 1 bytes"):
        inflated(FOUND.files, "ir.json.gz")


# -- files ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FOUND.files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", sorted(FOUND.files))
@pytest.mark.parametrize("what", ["FIFO", "device", "directory", "loop", "huge"])
def test_what_stands_in_a_files_place_is_not_read(name: str, what: str, folder: Path) -> None:
    file = folder / name
    file.unlink()
    match what:
        case "FIFO":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "directory":
            file.mkdir()
        case "loop":
            file.symlink_to(file)
        case _:
            with file.open("wb") as opened:
                opened.truncate(1 << 40)
    with pytest.raises(ShapewrightError, match=rf"{name} .*{AGAIN}"):
        read_files(folder)


def test_a_manifest_is_read_without_the_other_files(folder: Path) -> None:
    (folder / LIBRARY).unlink()
    assert read_manifest(folder) == json.loads(FOUND.files[MANIFEST])
    (folder / MANIFEST).unlink()
    with pytest.raises(ShapewrightError, match=r"manifest\.json cannot be read \(No such file"):
        read_manifest(folder)
