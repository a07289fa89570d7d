"""Lock files: `pull --lock` writes them, `pull --locked` gets just these files or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shapewright.lock import read_lock, write_lock
from shapewright.snapshot import merge
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tests.shapewright.snapshot.samples import pulled, task
from tests.shapewright.test_cli_libraries import made, wide
from tuner.errors import InvalidInput
from tuner.library.package import LIBRARY, MANIFEST, SEAL, seal_of


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_later_builds_get_the_very_files_that_were_locked(
    shapewright: Shapewright, bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = wide(64), wide(64, threads=4)
    artifact = made(bed, job, b"first")
    made(bed, other, b"threads")
    for name, source in (("job", job), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(source))
        line = ("pull", tmp_path / f"{name}.json", "-o", tmp_path / "libs" / name, "--lock", tmp_path / "libs.lock")
        ran = shapewright(*line, "--json")
        assert (ran.code, ran.json["lock"]) == (0, str(tmp_path / "libs.lock")), ran.err
    newer = made(bed, job, b"faster", against=artifact.digest)
    assert shapewright("pull", tmp_path / "job.json", "-o", tmp_path / "now", "--json").json["digest"] == newer.digest

    ran = shapewright("pull", "--locked", tmp_path / "libs.lock", "-o", tmp_path / "build", "--json")

    assert ran.code == 0, ran.err
    assert contents(tmp_path / "build" / "libs") == contents(tmp_path / "libs")
    assert [each["directory"] for each in ran.json["libraries"]] == [
        str(tmp_path / "build" / "libs" / name) for name in ("job", "other")
    ]
    assert [each.directory for each in read_lock(tmp_path / "libs.lock")] == ["libs/job", "libs/other"]
    # Nothing is asked for that is there already: this service does not answer.
    monkeypatch.setenv("SHAPEWRIGHT_URL", "http://127.0.0.1:9")
    assert shapewright("pull", "--locked", tmp_path / "libs.lock", "-o", tmp_path / "build").code == 0
    (tmp_path / "build" / "libs" / "job" / LIBRARY).unlink()
    assert shapewright("pull", "--locked", tmp_path / "libs.lock", "-o", tmp_path / "build").code == 3


def test_locked_libraries_come_from_a_snapshot_without_a_service(shapewright: Shapewright, tmp_path: Path) -> None:
    folders = [pulled(tmp_path / "libs" / str(n), task(n)) for n in (64, 96)]
    write_lock(tmp_path / "x.lock", folders)
    snapshot = merge(tmp_path / "x.snapshot", folders)
    pull = ("pull", "--locked", tmp_path / "x.lock", "--from")

    assert shapewright(*pull, snapshot.file, "-o", tmp_path / "a").code == 0
    assert shapewright(*pull, tmp_path / "libs", "-o", tmp_path / "b").code == 0
    missing = shapewright(*pull, folders[0], "-o", tmp_path / "c", "--json")

    assert contents(tmp_path / "a" / "libs") == contents(tmp_path / "b" / "libs") == contents(tmp_path / "libs")
    assert (missing.code, "does not hold library" in missing.error["message"]) == (5, True)
    assert not (tmp_path / "c").exists()


def test_a_library_with_another_manifest_is_refused_and_nothing_is_written(
    shapewright: Shapewright, tmp_path: Path
) -> None:
    folders = [pulled(tmp_path / "libs" / str(n), task(n)) for n in (64, 96)]
    write_lock(tmp_path / "x.lock", folders)
    manifest = folders[1] / MANIFEST
    # Still whole, with the same machine code and dispatch table, and so of the same digest.
    other = json.loads(manifest.read_text()) | {"job_id": "job-2"}
    manifest.write_text(json.dumps(other | {SEAL: seal_of(other)}))

    ran = shapewright(
        "pull", "--locked", tmp_path / "x.lock", "--from", tmp_path / "libs", "-o", tmp_path / "a", "--json"
    )

    assert ran.code == 2
    assert f"{MANIFEST} of library" in ran.error["message"] and "locked for libs/96" in ran.error["message"]
    assert not (tmp_path / "a").exists()


def test_a_library_that_is_pulled_again_is_locked_anew(tmp_path: Path) -> None:
    first = pulled(tmp_path / "lib", task(), "first")
    before = write_lock(tmp_path / "x.lock", [first])
    pulled(tmp_path / "lib", task(), "second")

    after = write_lock(tmp_path / "x.lock", [first])

    assert [each.directory for each in after] == ["lib"]
    assert before[0].digest != after[0].digest
    text = (tmp_path / "x.lock").read_text()
    write_lock(tmp_path / "x.lock", [first])
    assert (tmp_path / "x.lock").read_text() == text


def test_a_lock_is_of_folders_beside_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with pytest.raises(InvalidInput, match="is not below"):
        write_lock(tmp_path / "deep" / "x.lock", [pulled(tmp_path / "lib", task())])
    assert not (tmp_path / "deep" / "x.lock").exists()


@pytest.mark.parametrize("change", ["format", "version", "up", "absolute", "files", "list", "text"])
def test_a_file_that_is_no_lock_is_refused(tmp_path: Path, change: str) -> None:
    file = tmp_path / "x.lock"
    write_lock(file, [pulled(tmp_path / "lib", task())])
    data = json.loads(file.read_text())
    (library,) = data["libraries"]
    if change in ("format", "version"):
        data[change] = 7
    library["directory"] = {"up": "a/../../x", "absolute": "/etc"}.get(change, "lib")
    if change == "list":
        library["files"] = []
    if change == "files":
        library["files"] = {"../x": "0", MANIFEST: "0"}
    file.write_text("[" if change == "text" else json.dumps(data))
    with pytest.raises(InvalidInput, match="version 7" if change == "version" else "is not a lock file"):
        read_lock(file)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (["--locked", "x.lock", "wl-0"], "WORKLOAD"),
        (["--locked", "x.lock", "--threads", "2"], "--threads"),
        (["--locked", "x.lock", "--range", "m=1"], "--range"),
        (["--locked", "none.lock"], "--locked"),
        (["wl-0", "--from", "lib", "--job", "latest"], "--job"),
        (["--from", "lib"], None),
        ([], None),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    shapewright: Shapewright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str], field: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lock(tmp_path / "x.lock", [pulled(tmp_path / "lib", task())])
    ran = shapewright("pull", *line, "-o", tmp_path / "out", "--json")
    assert (ran.code, ran.error.get("field")) == (2, field)
