"""The documents as their reader gets them: files on a disk, no server, no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import WAIT_MS
from tests.docs.site import build_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.together("browser")


@pytest.mark.soak
def test_the_site_is_searched_without_a_network(browser: Browser, tmp_path: Path) -> None:
    site = build_site(tmp_path)
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((site / "howto" / "index.html").as_uri())
    page.click("input[name=query]")
    page.keyboard.type("roll-back")
    page.locator(".md-search-result__link").first.wait_for()
    found = {link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()}
    assert any("name-a-library.html" in link for link in found)
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []
    assert said == []
    page.close()
