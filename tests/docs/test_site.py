"""The site builds, its links lead somewhere, and it reads without a network."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import ROOT
from tests.docs.site import build_site

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""What a browser loads by itself, and the attribute that says from where."""
REMOTE = re.compile(r"^(?:https?:)?//")


class Read(HTMLParser):
    """What a page loads, where it links to, and its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADED and given.get("rel") != "canonical":
            self.loaded.append(given.get(LOADED[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    return {file: Read(file.read_text()) for file in site.rglob("*.html")}


def test_every_page_is_there(site: Path) -> None:
    wanted = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    wanted = {page.with_name("index.html") if page.stem == "README" else page for page in wanted}
    assert wanted <= {page.relative_to(site) for page in site.rglob("*.html")}


def test_every_block_of_code_is_shown_as_one(pages: dict[Path, Read]) -> None:
    assert [page.name for page in pages if "```" in page.read_text()] == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Read]) -> None:
    remote = {address for read in pages.values() for address in read.loaded if REMOTE.match(address)}
    assert remote == set()
    # Bundled: a diagram's library would be fetched where a page has such a block, so no page may have one.
    assert not [page for page in pages if 'class="mermaid"' in page.read_text()]
    styles = [style.read_text() for style in site.rglob("*.css")]
    assert len(styles) >= 3
    assert not [text for text in styles if re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", text)]


def test_what_is_loaded_is_there(pages: dict[Path, Read]) -> None:
    for page, read in pages.items():
        files = {unquote(re.split("[?#]", address)[0]) for address in read.loaded if not address.startswith("data:")}
        if page.name != "404.html":
            assert [file for file in files if file and not (page.parent / file).is_file()] == []


def test_every_link_leads_to_a_page_and_a_heading(pages: dict[Path, Read]) -> None:
    wrong = []
    for page, read in pages.items():
        for link in dict.fromkeys(read.links):
            address, _, anchor = unquote(link).partition("#")
            target = (page.parent / address).resolve() if address else page
            if page.name == "404.html" or re.match(r"[a-z]+:", link):
                continue
            known = pages.get(target)
            if not target.is_file() or (anchor and known and anchor not in known.ids and anchor != "__skip"):
                wrong.append(f"{page.name}: {link}")
    assert wrong == []


def test_the_search_finds_pages_by_their_words(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"].split("#")[0] for entry in index["docs"] if "--roll-back" in entry["text"]}
    assert "reference/cli.html" in places
