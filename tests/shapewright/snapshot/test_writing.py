"""Snapshots as they are written: the same bytes for the same libraries, one library for each place, all or nothing."""

from __future__ import annotations

import itertools
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapewright.snapshot import Offer, Snapshot, merge, offers_of, write_snapshot
from shapewright.snapshot.entries import Entry
from shapewright.snapshot.writing import chosen, library_folders
from tests.shapewright.snapshot.samples import made, pulled, task
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library.package import LIBRARY

TASKS = (task(), task(96), task(threads=2), task(shape_vars={"T": {"min": 1, "max": 32}}))


def offer(place: int, code: int, seconds: float | None, day: int | None) -> Offer:
    files = made(TASKS[place], f"code {code}", seconds).files
    return Offer(Entry.of_files(files, None if day is None else f"2026-01-0{day}T00:00:00Z"), lambda: files)


OFFERS = st.builds(
    offer,
    st.integers(0, len(TASKS) - 1),
    st.integers(0, 3),
    st.none() | st.sampled_from((0.9e-4, 1e-4, 1.01e-4, 2e-4)),
    st.none() | st.integers(1, 3),
)


@given(st.lists(OFFERS, max_size=6), st.randoms(use_true_random=False), st.sampled_from(("best", "newest", "all")))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_depends_on_no_order_and_is_kept_again(offers: list[Offer], rng: object, keep: str) -> None:
    shuffled = list(offers)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]

    kept = chosen(offers, keep)

    assert [each.entry for each in kept] == [each.entry for each in chosen(shuffled, keep)]
    assert [each.entry for each in kept] == [each.entry for each in chosen(kept, keep)]
    assert {each.entry.place for each in kept} == {each.entry.place for each in offers}
    if keep != "all":
        assert len({each.entry.place for each in kept}) == len(kept)


def test_the_same_libraries_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [pulled(tmp_path / str(number), each) for number, each in enumerate(TASKS)]

    files = [
        merge(tmp_path / f"{number}.snapshot", order) for number, order in enumerate(itertools.permutations(folders))
    ]

    assert len({each.file.read_bytes() for each in files}) == 1
    again = merge(tmp_path / "again.snapshot", [files[0].file])
    assert again.file.read_bytes() == files[0].file.read_bytes()
    one, rest = merge(tmp_path / "one", folders[:1]), merge(tmp_path / "rest", folders[1:])
    assert merge(one.file, [one.file, rest.file]).file.read_bytes() == files[0].file.read_bytes(), "into itself, too"


def test_libraries_are_looked_for_where_they_are_written_and_nowhere_else(tmp_path: Path) -> None:
    own = [pulled(tmp_path / name, TASKS[0]) for name in (".", "b", "b/c")]
    for stranger in ("too/far/down", ".hidden"):
        pulled(tmp_path / stranger, TASKS[0])
    (tmp_path / "link").symlink_to(own[1])
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a page"}')
    assert [folder.resolve() for folder in library_folders(tmp_path)] == [folder.resolve() for folder in own]
    assert library_folders(tmp_path / "web") == [tmp_path / "web"], "what is named is said to be none"
    assert library_folders(tmp_path / "web" / "manifest.json") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_folders_of_another_user_are_not_entered(tmp_path: Path) -> None:
    folder = pulled(tmp_path / "all" / "theirs", TASKS[0])
    os.chown(folder, 12345, 12345)
    assert library_folders(tmp_path / "all") == []
    assert library_folders(folder) == [folder], "but for one that is named"


def test_of_two_libraries_for_one_place_the_faster_is_kept_beyond_noise(tmp_path: Path) -> None:
    old, new = (pulled(tmp_path / name, TASKS[0], name, 1e-4) for name in ("a", "b"))
    first = min(map(digest, (old, new)))
    assert kept(tmp_path, [old, new]) == [first], "as fast, and nobody says which is older"

    slow, fast = pulled(tmp_path / "slow", TASKS[0], "slow", 2e-4), pulled(tmp_path / "fast", TASKS[0], "fast", 1e-4)
    assert kept(tmp_path, [slow, fast]) == [digest(fast)]
    guessed = pulled(tmp_path / "guessed", TASKS[0], "only predicted to be as fast", None)
    assert kept(tmp_path, [slow, guessed]) == [digest(slow)] or digest(guessed) < digest(slow)
    assert kept(tmp_path, [slow, fast], "all") == sorted((digest(slow), digest(fast)))


def test_the_newest_is_kept_where_that_is_wanted() -> None:
    slow, fast = offer(0, 1, 2e-4, 3), offer(0, 2, 1e-4, 1)

    assert chosen([slow, fast], "newest") == [slow]
    assert chosen([slow, fast], "best") == [fast]
    with pytest.raises(InvalidInput, match="best, newest, all"):
        chosen([slow], "fastest")


def test_a_library_of_another_protocol_replaces_none() -> None:
    measured = offer(0, 1, 2e-4, 1)
    other = Offer(Entry.from_json(offer(0, 2, 1e-5, 2).entry.to_json() | {"protocol": "v1"}), offer(0, 2, 1e-5, 2).read)
    assert chosen([measured, other]) == [measured]


def test_folders_below_a_directory_are_found_as_tune_writes_them(tmp_path: Path) -> None:
    for each in TASKS[:2]:
        pulled(tmp_path / "out" / each.workload.key / each.known_target.fingerprint, each)
    pulled(tmp_path / "out", TASKS[2])

    assert len(offers_of(tmp_path / "out")) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="has no library"):
        offers_of(tmp_path / "empty")


def test_a_damaged_library_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    good, bad = pulled(tmp_path / "good", TASKS[0]), pulled(tmp_path / "bad", TASKS[1])
    before = merge(tmp_path / "x.snapshot", [good]).file.read_bytes()
    (bad / LIBRARY).write_bytes(b"altered")

    with pytest.raises(ShapewrightError, match=rf"bad: {LIBRARY} is not what was built"):
        merge(tmp_path / "x.snapshot", [good, bad])
    with pytest.raises(ShapewrightError, match=r"is .* now"):
        # Replaced between the time it was looked at and the time it was written.
        stale = Offer(offers_of(good)[0].entry, lambda: made(TASKS[0], "another").files)
        write_snapshot(tmp_path / "x.snapshot", [stale])

    assert (tmp_path / "x.snapshot").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad", "good", "x.snapshot"]


def test_a_snapshot_is_an_archive_that_other_tools_read(tmp_path: Path) -> None:
    folder = pulled(tmp_path / "one", TASKS[0])
    snapshot = merge(tmp_path / "x.snapshot", [folder])

    with zipfile.ZipFile(snapshot.file) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == "snapshot.json"
        assert archive.read(f"libraries/{digest(folder)}/{LIBRARY}") == b"code"
    assert Snapshot(snapshot.file).digest == snapshot.digest


def kept(tmp_path: Path, folders: list[Path], keep: str = "best") -> list[str]:
    return [entry.digest for entry in merge(tmp_path / "kept.snapshot", folders, keep).entries]


def digest(folder: Path) -> str:
    return offers_of(folder)[0].entry.digest
