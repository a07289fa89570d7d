"""Where commands write: directories of odd names, disks that are full, links, a directory that another one uses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shapewright.cli.exclusive import LOCK, exclusive
from shapewright.defaults import sqlite_url
from shapewright.replacing import replaced
from shapewright.snapshot.writing import write_snapshot
from tests.shapewright.conftest import Shapewright
from tests.shares import every
from tuner.errors import InvalidInput
from tuner.storage.sql import open_storage, upgrade

ODD = ("a?b", "?mode=memory&cache=shared", "a%20b", "a%2Fb", "%", "a#b", "a b", "ü", "a:b", "a&b=c;d", "'\"$", "\n")
FULL = Path("/dev/full")


@pytest.mark.parametrize("name", every(2, ODD))
def test_the_database_lies_in_the_directory_that_was_named(
    name: str, shapewright: Shapewright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "all" / name
    place.parent.mkdir()
    assert shapewright("db", "upgrade", "--data-dir", place).code == 0
    assert (place / "tuning.db").is_file()
    assert [each.name for each in place.parent.iterdir()] == [name]
    assert shapewright("keys", "create", "ci", "--data-dir", place).code == 0
    assert [key["name"] for key in shapewright("keys", "list", "--data-dir", place, "--json").json] == ["ci"]
    assert shapewright("db", "backup", place / "copy.db", "--data-dir", place).code == 0
    assert shapewright("db", "restore", place / "copy.db", "--replace", "--data-dir", place).code == 0
    # As a part of `up` gets it.
    monkeypatch.setenv("SHAPEWRIGHT_DATABASE_URL", sqlite_url(place / "tuning.db"))
    assert [key["name"] for key in shapewright("keys", "list", "--json").json] == ["ci"]


@pytest.mark.parametrize("name", every(2, ODD, first=1))
def test_the_records_of_a_directory_are_read_where_it_is(name: str, shapewright: Shapewright, tmp_path: Path) -> None:
    place = tmp_path / "all" / name
    place.mkdir(parents=True)
    upgrade(sqlite_url(place / "tuning.db"))
    open_storage(sqlite_url(place / "tuning.db")).close()
    ran = shapewright("report", place, "-o", tmp_path / "page.html")
    assert "no job" in ran.err
    assert [each.name for each in place.parent.iterdir()] == [name]


def test_a_path_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not text in UTF-8"):
        sqlite_url(tmp_path / os.fsdecode(b"\xff"))


@pytest.mark.parametrize("holder", ["tune", "up"])
def test_one_tune_or_up_at_a_time_has_a_directory(
    holder: str, shapewright: Shapewright, job_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with exclusive(tmp_path / "out", holder):
        ran = shapewright("tune", job_file, "-o", tmp_path / "out", "--json")
    assert (ran.code, ran.error["field"]) == (2, "--output")
    who = "another tune" if holder == "tune" else "up"
    assert f"in use by pid {os.getpid()} ({who}); stop it, or choose another with" in ran.error["message"]
    assert not (tmp_path / "out" / "tuning.db").exists(), "the first one's search is left alone"
    with exclusive(tmp_path / "out", "tune"):
        ran = shapewright("up", "--data-dir", tmp_path / "out", "--json")
    assert f"in use by pid {os.getpid()} (tune)" in ran.error["message"]


def test_a_lock_file_that_is_a_link_is_not_written_through(
    shapewright: Shapewright, data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    (data_dir / LOCK).symlink_to(tmp_path / "precious")
    ran = shapewright("up", "--json")
    assert ran.code == 2
    assert "is a link, which is not followed; remove it" in ran.error["message"]
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_is_replaced_whole_and_no_link_is_followed(tmp_path: Path) -> None:
    precious, file = tmp_path / "precious", tmp_path / "file"
    precious.write_text("precious")
    file.symlink_to(precious)
    (tmp_path / "file.part").symlink_to(precious)
    with pytest.raises(ZeroDivisionError), replaced(file) as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert file.readlink() == precious
    with replaced(file) as out:
        out.write(b"whole")
    assert (file.read_text(), precious.read_text(), file.is_symlink()) == ("whole", "precious", False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "file.part", "precious"]


LINES = (
    ("ops",),
    ("ops", "--json"),
    ("--help",),
    ("keys", "list"),
    ("keys", "list", "--json"),
    ("jobs", "--json", "--url", "http://127.0.0.1:1"),
    ("--version",),
    ("nothing",),
)


@pytest.mark.parametrize("line", every(3, LINES))
def test_a_full_disk_is_an_error_that_says_so(line: tuple[str, ...], data_dir: Path) -> None:
    with FULL.open("wb") as stdout:
        ran = subprocess.run(
            [sys.executable, "-m", "shapewright", *line], stdout=stdout, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    prints_nothing = ran.returncode == 3 and "--json" not in line
    if "ops" in line or "--help" in line or "--version" in line:
        assert (ran.returncode, ran.stderr.splitlines()) == (
            2, ["shapewright: cannot write: No space left on device; make room, or write elsewhere"],
        )  # fmt: skip
    else:
        assert ran.returncode in (2, 3)
        assert ran.stderr.startswith("shapewright: ") or prints_nothing
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert "defect" not in ran.stderr


@pytest.mark.parametrize(
    "line", [("keys", "list"), ("keys", "list", "--json"), ("device-tokens", "list"), ("keys", "-h"), ("--version",)]
)
def test_a_reader_that_leaves_is_no_failure(
    line: tuple[str, ...], shapewright: Shapewright, bed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: object, err: bool = False, **__: object) -> None:
        if not err:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("shapewright.cli.output.click.echo", leave)
    monkeypatch.setattr("click.decorators.echo", leave)
    monkeypatch.setattr("sys.stdout", sys.stdout)  # click puts another in its place
    assert shapewright(*line).code == 0
    assert shapewright("keys", "revoke", "key-none", "--json").code == 5, "what failed has failed"


@pytest.mark.parametrize("closed", every(4, [">&- 2>&-", "2>/dev/full", ">&-", "2>&-"]))
def test_a_program_without_streams_does_its_work(closed: str, data_dir: Path) -> None:
    line = f"'{sys.executable}' -m shapewright db upgrade {closed}"
    ran = subprocess.run(line, shell=True, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (data_dir / "tuning.db").is_file()


def test_files_on_a_full_disk_are_named(shapewright: Shapewright, bed: object, data_dir: Path) -> None:
    ran = shapewright("export", FULL, "--json")
    assert ran.code == 2
    assert "No space left on device" in ran.error["message"]
    assert FULL.is_char_device(), "a device is not replaced by a file"
    assert not [each for each in Path("/dev").iterdir() if "full" in each.name and each != FULL]
    with pytest.raises(InvalidInput, match="is no file to be replaced"):
        write_snapshot(FULL, [])
