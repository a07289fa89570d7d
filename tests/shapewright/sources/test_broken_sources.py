"""Sources that are broken: what is broken is left out with a reason, once, and the rest serves."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest

from shapewright.sources.directory import Directory
from shapewright.sources.finder import finder_of
from shapewright.sources.libraries import kept_folder
from shapewright.sources.source import Match
from tests.shapewright.answering import answering
from tests.shapewright.libraries import altered
from tests.shapewright.sources.breaking import FOLDERS, SERVICES, SNAPSHOTS, snapshot
from tests.shapewright.sources.test_sources import SQUARE, UNKNOWN
from tests.shapewright.torch.models import WIDTH
from tests.shapewright.unprivileged import run_unprivileged
from tuner.program.target import native

FITTING_NOBODY = ("threads is 2", "workload is another")
"""Folders that are whole as far as they are looked at: what they say fits nothing that is asked for."""


SIZES = {"m": "16*T", "n": WIDTH, "k": WIDTH}


def told(source: object, threads: int = 1) -> tuple[Match | str, list[str], list[str]]:
    """What a finder says of SQUARE, its notes, and the warnings."""
    finder = finder_of(source, threads=threads)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        match = finder.find(SQUARE)
        finder.find(UNKNOWN)
    return match, finder.notes, [str(each.message) for each in caught]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_broken_folder_is_left_out_and_the_others_serve(name: str, libraries: Path, tmp_path: Path) -> None:
    FOLDERS[name](libraries / "square", tmp_path / "both" / "a")
    match, _, _ = told(tmp_path / "both", threads=100_000 if "100000" in name else 1)
    assert isinstance(match, str)
    altered(libraries / "square", tmp_path / "both" / "b")
    match, notes, warned = told(tmp_path / "both")
    assert isinstance(match, Match)
    if name in FITTING_NOBODY:
        assert (notes, warned) == ([], [])
    else:
        assert all(text.startswith(f"{tmp_path / 'both' / 'a'} is left out: ") for text in notes)
        assert (len(notes), len(warned)) == (1, 1)


def test_what_is_left_out_is_told_once_with_the_reason(libraries: Path, tmp_path: Path) -> None:
    for name in ("without target", "threads is 100000", "manifest is nested", "manifest is a pipe"):
        FOLDERS[name](libraries / "square", tmp_path / "both" / name)
    altered(libraries / "square", tmp_path / "both" / "whole")
    match, notes, warned = told(tmp_path / "both")
    assert isinstance(match, Match)
    (only,) = warned
    reasons = ("has no target", "says 100000 threads", "is nested too deep", "manifest.json: is not a regular file")
    assert all(any(reason in note for note in notes) and reason in only for reason in reasons)


def test_a_library_that_says_another_workload_is_not_taken_for_it(libraries: Path, tmp_path: Path) -> None:
    workload = json.loads((libraries / "square" / "manifest.json").read_bytes())["workload"]
    altered(libraries / "up", tmp_path / "a", workload=workload)
    match, notes, _ = told(tmp_path)
    assert isinstance(match, str)
    assert "workload" in notes[0]


def test_links_in_a_circle_are_followed_once(libraries: Path, tmp_path: Path) -> None:
    shutil.copytree(libraries / "square", tmp_path / "all" / "square")
    for number in range(200):
        (tmp_path / "all" / f"again-{number}").symlink_to(tmp_path / "all")
    (tmp_path / "all" / "itself").symlink_to(tmp_path / "all" / "itself")
    source = Directory(tmp_path / "all", native())
    assert isinstance(source.find(SQUARE, 1), Match)
    assert len(source.folders()) == 1
    assert source.left_out == {}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_broken_snapshot_is_away(name: str, libraries: Path, tmp_path: Path) -> None:
    shutil.copytree(libraries / "square", tmp_path / "one")
    file = snapshot(tmp_path / "one", tmp_path / "one.snapshot")
    SNAPSHOTS[name](file)
    match, _, warned = told(file)
    assert isinstance(match, str)
    assert len(warned) <= 1
    match, _, _ = told([file, libraries])
    assert isinstance(match, Match)


@pytest.mark.parametrize("name", SERVICES)
def test_a_broken_service_is_away_or_has_nothing(name: str, libraries: Path) -> None:
    with answering(SERVICES[name]) as url:
        match, _, warned = told(url)
        assert isinstance(match, str)
        assert len(warned) <= 2
        match, _, _ = told([url, libraries])
        assert isinstance(match, Match)


def test_what_was_kept_and_is_damaged_leaves_its_place(libraries: Path, tmp_path: Path) -> None:
    shutil.copytree(libraries / "square", tmp_path / "one")
    file = snapshot(tmp_path / "one", tmp_path / "one.snapshot")
    match, _, _ = told(file)
    assert isinstance(match, Match)
    (kept_folder() / match.library.digest / "library.so").write_bytes(b"damaged")
    again, notes, warned = told(file)
    assert isinstance(again, Match)
    assert (notes, warned) == ([], [])


def test_folders_and_files_that_are_closed_are_left_out(libraries: Path, tmp_path: Path) -> None:
    """In a process of a user whom permissions stop."""
    for name in ("closed", "manifest", "library", "whole"):
        shutil.copytree(libraries / "square", tmp_path / "all" / name)
    (tmp_path / "all" / "closed").chmod(0)
    (tmp_path / "all" / "manifest" / "manifest.json").chmod(0)
    (tmp_path / "all" / "library" / "library.so").chmod(0)
    program = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from shapewright.sources.finder import finder_of\n"
        "from tuner.program.job.build import make_workload\n"
        f"square = make_workload('dense', {SIZES}, epilogue=['bias'])\n"
        "finder = finder_of(sys.argv[1])\n"
        "print(finder.find(square).library.directory)\n"
        "print(*finder.notes, sep='\\n')\n"
        "print(finder_of(sys.argv[1] + '/closed/square').find(square))\n"
    )
    ran = run_unprivileged([sys.executable, "-c", program, str(tmp_path / "all")], tmp_path)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == str(tmp_path / "all" / "whole")
    assert "closed" in ran.stdout
    assert "Permission denied" in ran.stdout
    assert "Traceback" not in ran.stderr
