"""Bytes that a worker keeps for a search: few in memory, all of them there until they are closed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from worker.remote.kept_bytes import KeptBytes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_is_beyond_the_limit_lies_in_files_until_it_is_closed(folder: Path) -> None:
    kept = KeptBytes(most_bytes=100)
    numbers = [kept.keep(bytes([at]) * 40) for at in range(10)]
    assert [kept.get(number) for number in numbers] == [bytes([at]) * 40 for at in range(10)]
    (files,) = folder.iterdir()
    assert len(list(files.iterdir())) == 8, "the last two are in memory"
    kept.close()
    kept.close()
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyError):
        kept.get(numbers[0])


def test_little_takes_no_files(folder: Path) -> None:
    kept = KeptBytes(most_bytes=100)
    assert kept.get(kept.keep(b"x" * 100)) == b"x" * 100
    assert kept.get(kept.keep(b"")) == b""
    assert list(folder.iterdir()) == []


def test_where_no_file_can_be_written_all_stays_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    kept = KeptBytes(most_bytes=10)
    numbers = [kept.keep(bytes([at]) * 40) for at in range(3)]
    assert [kept.get(number) for number in numbers] == [bytes([at]) * 40 for at in range(3)]
