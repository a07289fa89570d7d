"""Every link of the pages leads to a file, and to a heading of it; no page names one that is gone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name_of, without_code

LINK = re.compile(r"\]\(([^)\s]+)\)")
GONE = re.compile(r"docs/(?:guide|extending|operations|architecture|programs|security)\.md")


def anchors(page: Path) -> set[str]:
    """Of each heading what GitHub and MkDocs make of it."""
    titles = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", title) for title in titles)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(without_code(page.read_text())):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_no_file_names_a_page_that_is_gone() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=False, capture_output=True, text=True).stdout
    endings = (".py", ".md", ".yaml", ".yml", ".sh", ".c")
    files = [ROOT / name for name in tracked.splitlines() if name.endswith(endings)]
    files = [file for file in files if file.is_file()] or list(PAGES)
    assert [name_of(file) for file in files if file != Path(__file__) and GONE.search(file.read_text())] == []
    pages = (page for file in files for page in re.findall(r"\bdocs/[a-z/-]+\.md", file.read_text()))
    assert [page for page in pages if not (ROOT / page).exists() and not GONE.search(page)] == []
