"""Snapshots as they are read: what is found and why not, and every kind of damage as a clear error."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shapewright as sw
from shapewright.snapshot import Missing, Snapshot, merge
from shapewright.snapshot.entries import LIST, comment_of, member
from tests.shapewright.snapshot.samples import job, pulled, task
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import LIBRARY
from tuner.program.target import Target, native

DENSE = task()
TARGET = DENSE.known_target.fingerprint
OTHER = Target.from_json({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Of one workload for two targets, two numbers of threads and several ranges, and of another one."""
    tasks = {
        "dense": DENSE,
        "wide": task(shape_vars={"T": {"min": 1, "max": 64}}),
        "eights": task(shape_vars={"T": {"min": 8, "max": 64, "step": 8}}, instances=[{"T": 8}]),
        "haswell": DENSE.on(OTHER),
        "threads": task(threads=4),
        "other": task(96, threads=3),
    }
    folders = [pulled(tmp_path / name, each, name) for name, each in tasks.items()]
    return merge(tmp_path / "x.snapshot", folders)


def code(snapshot: Snapshot, *asked: Any, **how: Any) -> str:
    """What stands in place of machine code, or the kind of reason why nothing was found."""
    found = snapshot.entry_for(*asked, **how)
    return found.kind if isinstance(found, Missing) else snapshot.files(found)[LIBRARY].decode()


def test_a_task_or_a_job_brings_its_target_threads_and_range(snapshot: Snapshot) -> None:
    for workload in (DENSE, job()):
        assert code(snapshot, workload) in ("dense", "wide"), "both cover it, and are as fast"
        assert code(snapshot, workload, threads=4) == "threads"
        assert code(snapshot, workload, target=OTHER.fingerprint) == "haswell"
        assert code(snapshot, workload, ranges="T=1..32") == "wide"
        assert code(snapshot, workload, ranges="T=8..64:8") in ("wide", "eights")
    assert code(snapshot, task(96)) == "threads", "of the task's own number none is there"
    assert code(snapshot, task(96).workload, TARGET) == "other", "the only number that there is"


def test_a_key_is_asked_for_in_symbols_and_gets_the_widest(snapshot: Snapshot) -> None:
    key = DENSE.workload.key
    assert code(snapshot, key, TARGET) == "wide"
    assert code(snapshot, key, TARGET, 1, "m=16..256") in ("dense", "wide")
    assert code(snapshot, key, TARGET, 1, {"m": (16, 512)}) == "wide"
    assert code(snapshot, key, TARGET, 4) == "threads"


def test_what_is_missing_has_a_reason(snapshot: Snapshot) -> None:
    key = DENSE.workload.key
    for asked, kind, says in [
        (("wl-0", TARGET), "workload", "has no library for wl-0"),
        ((key, native().fingerprint), "target", f"for {', '.join(sorted((OTHER.fingerprint, TARGET)))}, not for"),
        ((key, TARGET, 3), "threads", "for 1, 4 threads, not for 3"),
        ((key, TARGET, 1, "m=16..9999"), "range", "covers m=16..9999; covered: m=128..1024:128; m=16..1024:16; m=16"),
    ]:
        found = snapshot.find(*asked)  # type: ignore[arg-type]
        assert isinstance(found, Missing)
        assert (found.kind, says in str(found)) == (kind, True), str(found)
    with pytest.raises(InvalidInput, match="range"):
        snapshot.find(DENSE, ranges="S=1..2")
    with pytest.raises(ShapewrightError, match="not for"):
        sw.load(snapshot.file, DENSE.on(replace(OTHER, mcpu="znver3")))
    with pytest.raises(InvalidInput, match=r"has 6 libraries .*name one"):
        sw.load(snapshot.file)


def test_a_library_of_the_same_cpu_with_other_cores_serves_where_there_is_none_for_this_one(snapshot: Snapshot) -> None:
    cores = DENSE.known_target.hardware.cores
    more = DENSE.on(with_cores(DENSE.known_target, cores + 6))
    found = snapshot.entry_for(more)
    assert not isinstance(found, Missing)
    assert found.target_fingerprint == TARGET
    few = DENSE.on(with_cores(DENSE.known_target, 1))
    missing = snapshot.entry_for(few, threads=4)
    assert isinstance(missing, Missing)
    assert missing.kind == "target"


def with_cores(target: Target, cores: int) -> Target:
    return replace(target, hardware=replace(target.hardware, cores=cores))


def test_a_library_for_a_cpu_with_more_instructions_is_refused(tmp_path: Path) -> None:
    hardware = replace(OTHER.hardware, features=(*OTHER.hardware.features, "amx_tile", "amx_int8", "avx512_fp16"))
    strange = DENSE.on(replace(OTHER, hardware=hardware))
    if {"amx_tile", "avx512_fp16"} <= set(native().hardware.features):
        pytest.skip("this CPU has all instructions that are known")
    snapshot = merge(tmp_path / "x.snapshot", [pulled(tmp_path / "lib", strange)])
    with pytest.raises(ShapewrightError, match=r"this CPU lacks .*: pull one for this target"):
        snapshot.find(strange)


def test_a_library_is_written_as_pull_writes_it(snapshot: Snapshot, tmp_path: Path) -> None:
    entry = snapshot.entry_for(DENSE, threads=4)
    assert not isinstance(entry, Missing)

    folder = snapshot.extract(entry, tmp_path / "extracted")

    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "threads").iterdir()
    }


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused(snapshot: Snapshot, share: float) -> None:
    content = snapshot.file.read_bytes()
    snapshot.file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ShapewrightError, match="cut off"):
        Snapshot(snapshot.file)


def test_any_changed_byte_is_noticed(snapshot: Snapshot) -> None:
    content = snapshot.file.read_bytes()
    before = [snapshot.files(entry) for entry in snapshot.entries]
    noticed = 0
    for place in range(0, len(content), len(content) // 60):
        changed = bytearray(content)
        changed[place] ^= 0x5A
        snapshot.file.write_bytes(changed)
        try:
            again = Snapshot(snapshot.file)
            files = [again.files(entry) for entry in again.entries]
        except ShapewrightError:
            noticed += 1
        else:
            # A date or a flag of the archive, which nobody reads.
            assert (again.entries, files) == (snapshot.entries, before)
    assert noticed > 50


def test_a_file_that_was_exchanged_is_noticed(snapshot: Snapshot) -> None:
    """The archive's own checksums are right."""
    first = member(snapshot.entries[0].digest, "dispatch.json")
    with zipfile.ZipFile(snapshot.file) as archive:
        comment = archive.comment
    _rewritten(snapshot.file, comment, changed={first: b"{}"})
    with pytest.raises(ShapewrightError, match=r"dispatch\.json is damaged"):
        Snapshot(snapshot.file).files(snapshot.entries[0])


def test_a_file_of_a_later_version_says_so(snapshot: Snapshot) -> None:
    _rewritten(snapshot.file, comment=comment_of(b"").replace(b"snapshot/1", b"snapshot/2"))
    with pytest.raises(ShapewrightError, match=r"version 2, this release reads up to 1: install a later release"):
        Snapshot(snapshot.file)


def test_members_that_a_later_release_adds_are_passed_over(snapshot: Snapshot) -> None:
    with zipfile.ZipFile(snapshot.file) as archive:
        data = json.loads(archive.read(LIST))
    data["note"] = "more"
    data["libraries"][0]["colour"] = "green"
    listed = json.dumps(data).encode()
    _rewritten(snapshot.file, comment=comment_of(listed), listed=listed)
    assert Snapshot(snapshot.file).entries == snapshot.entries


@pytest.mark.parametrize("change", ["files", "digest", "list"])
def test_a_list_that_makes_no_sense_is_refused(snapshot: Snapshot, change: str) -> None:
    with zipfile.ZipFile(snapshot.file) as archive:
        data = json.loads(archive.read(LIST))
    if change == "files":
        data["libraries"][0]["files"]["../../etc/passwd"] = "0" * 64
    elif change == "digest":
        data["libraries"][0]["digest"] = "../x"
    else:
        data["libraries"] = None
    listed = json.dumps(data).encode()
    _rewritten(snapshot.file, comment=comment_of(listed), listed=listed)
    with pytest.raises(ShapewrightError, match=rf"{LIST} cannot be read"):
        Snapshot(snapshot.file)


def test_what_is_no_snapshot_says_so(tmp_path: Path) -> None:
    with pytest.raises(ShapewrightError, match="there is no snapshot"):
        Snapshot(tmp_path / "none")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(ShapewrightError, match="an archive and no snapshot"):
        Snapshot(tmp_path / "other.zip")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ShapewrightError, match="no snapshot"):
        sw.load(tmp_path / "text", DENSE)


def test_a_snapshot_that_is_replaced_while_it_is_open_is_noticed(snapshot: Snapshot, tmp_path: Path) -> None:
    merge(snapshot.file, [tmp_path / "other"])
    with pytest.raises(ShapewrightError, match="replaced since it was opened"):
        snapshot.files(snapshot.entries[0])


def _rewritten(
    file: Path, comment: bytes, listed: bytes | None = None, changed: Mapping[str, bytes] | None = None
) -> None:
    """The same archive with another comment, another list, and other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | dict(changed or {})
    members[LIST] = members[LIST] if listed is None else listed
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = comment


def test_a_library_for_caches_in_another_state_is_another(snapshot: Snapshot, tmp_path: Path) -> None:
    assert code(snapshot, DENSE, cache="streamed") == "cache"
    streamed = pulled(tmp_path / "streamed", task(cache="streamed"), "streamed")
    both = merge(tmp_path / "both.snapshot", [tmp_path / "dense", streamed])

    assert [entry.cache.value for entry in both.entries] == ["streamed", "warm"]
    assert code(both, task(cache="streamed")) == code(both, DENSE, cache="streamed") == "streamed"
    assert code(both, DENSE) == code(both, DENSE.workload.key, TARGET) == "dense"
    alone = merge(tmp_path / "alone.snapshot", [streamed])
    assert code(alone, DENSE.workload.key, TARGET) == "streamed", "the only one that there is"
    assert code(alone, DENSE) == "cache", "a task says which it means"
