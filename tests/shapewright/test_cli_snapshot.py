"""`shapewright snapshot`: of a service, of directories, of other snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shapewright.snapshot import Snapshot, offers_of
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tests.shapewright.snapshot.samples import pulled, task
from tests.shapewright.test_cli_libraries import made, wide


def test_it_holds_what_the_service_serves(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    old = made(bed, wide(64), b"old")
    new = made(bed, wide(64), b"new", against=old.digest)
    wider = made(bed, wide(128), b"covers more, and is no better")
    threads = made(bed, wide(64, threads=4), b"another number of threads")
    other = made(bed, wide(64, workload={"op": "dense", "args": {"m": "16*T", "n": 64, "k": 32}}), b"another workload")
    file = tmp_path / "all.snapshot"

    ran = shapewright("snapshot", "-o", file, "--json")

    assert ran.code == 0, ran.err
    snapshot = Snapshot(file)
    assert {entry.digest for entry in snapshot.entries} == {each.digest for each in (new, wider, threads, other)}
    assert {each["created_at"] for each in ran.json["libraries"]} == {
        each.created_at for each in (new, wider, threads, other)
    }
    assert (ran.json["digest"], ran.json["bytes"]) == (snapshot.digest, file.stat().st_size)
    assert ran.json["libraries"][0]["made_for"].startswith("m=16..")
    again = shapewright("snapshot", "-o", tmp_path / "again.snapshot", "--json").json
    assert again["digest"] == snapshot.digest

    job = tmp_path / "job.json"
    job.write_text(json.dumps(wide(64)))
    one = shapewright("snapshot", "-o", file, job, "--threads", 4, "--json").json
    assert [each["digest"] for each in one["libraries"]] == [threads.digest]
    merged = shapewright("snapshot", "-o", file, other.workload_key, "--from", file, "--json").json
    assert {each["digest"] for each in merged["libraries"]} == {threads.digest, other.digest}
    nothing = shapewright("snapshot", "-o", tmp_path / "none", job, "--target", "llvm-none", "--json")
    assert (nothing.code, (tmp_path / "none").exists()) == (5, False)


def test_directories_and_snapshots_are_merged_without_a_service(shapewright: Shapewright, tmp_path: Path) -> None:
    slow, fast = (pulled(tmp_path / name, task(), name, seconds) for name, seconds in (("a", 2e-4), ("b", 1e-4)))
    other = pulled(tmp_path / "other", task(96))
    first = shapewright("snapshot", "-o", tmp_path / "first", "--from", slow, "--from", other)
    assert first.out.splitlines()[-1] == f"{tmp_path / 'first'}: 2 libraries"

    best = shapewright("snapshot", "-o", tmp_path / "all", "--from", tmp_path / "first", "--from", fast, "--json").json
    both = shapewright(
        "snapshot", "-o", tmp_path / "all", "--from", slow, "--from", fast, "--keep", "all", "--json"
    ).json

    digests = {name: offers_of(tmp_path / name)[0].entry.digest for name in ("a", "b", "other")}
    assert {each["digest"] for each in best["libraries"]} == {digests["b"], digests["other"]}
    assert {each["digest"] for each in both["libraries"]} == {digests["a"], digests["b"]}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (["-o", "x"], None),
        (["-o", ""], "--output"),
        (["-o", "/proc/none/x", "--from", "lib"], "--output"),
        (["-o", "x", "--from", "none"], "--from"),
        (["-o", "x", "--from", "empty"], "--from"),
    ],
)
def test_what_cannot_be_written_is_refused(
    shapewright: Shapewright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str], field: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    pulled(tmp_path / "lib", task())
    ran = shapewright("snapshot", *line, "--url", "http://127.0.0.1:9", "--json")
    assert (ran.code, ran.error.get("field")) == (3 if field is None else 2, field)
    assert not (tmp_path / "x").exists()
