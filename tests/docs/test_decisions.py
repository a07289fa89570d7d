"""The pages of decisions and their index."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, name_of

FOLDER = DOCS / "decisions"
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))
ROW = re.compile(r"^\| (\d+) \| \[(.+?)\]\((\S+?)\) \| (\d{4}-\d\d-\d\d) \| .+ \| (.+) \|$", re.MULTILINE)
STATUS = re.compile(r"(?:stands|changed by \[|superseded by \[)")
SCREEN = (64, 120)
"""Lines of a page, and characters of a line: what one sees at a time. A longer line counts as several."""


def test_every_decision_is_in_the_index_under_its_number_and_title() -> None:
    there = []
    for page in DECISIONS:
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert page.name.startswith(f"{int(number):04d}-")
        there.append((number, title, page.name))
    assert [row[:3] for row in ROW.findall((FOLDER / "README.md").read_text())] == there


def test_every_decision_has_a_date_and_a_status() -> None:
    rows = ROW.findall((FOLDER / "README.md").read_text())
    assert rows
    assert all(date.fromisoformat(when) for _, _, _, when, _ in rows)
    assert [number for number, *_, status in rows if not STATUS.match(status)] == []


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_fits_a_screen(page: Path) -> None:
    lines, width = SCREEN
    assert sum(max(1, -(-len(line) // width)) for line in page.read_text().splitlines()) <= lines


def test_what_was_measured_for_a_decision_is_linked_from_it() -> None:
    for note in (DOCS / "measurements").glob("decision-*.md"):
        number = note.stem.removeprefix("decision-")
        (page,) = FOLDER.glob(f"{number}-*.md")
        assert f"../measurements/{note.name}" in page.read_text()
