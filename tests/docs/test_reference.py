"""The generated parts of docs/reference are what the generator gives now: ``make reference`` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.generate import PART, PARTS, REFERENCE, filled
from tests.docs.pages import PAGES, name_of

GENERATED = [page for page in PAGES if PART.search(page.read_text())]


@pytest.mark.parametrize("page", GENERATED, ids=name_of)
def test_generated_parts_are_as_the_code_is(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "make reference"


def test_every_part_is_on_one_page_of_the_reference() -> None:
    names = [found[2] for page in GENERATED for found in PART.finditer(page.read_text())]
    assert sorted(names) == sorted(PARTS)
    assert {page.parent for page in GENERATED} == {REFERENCE}
