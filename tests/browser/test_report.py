"""A report as its reader gets it: one file, no service, no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shapewright.client import Client
from shapewright.report import from_service, render
from tests.browser.conftest import SCREENSHOTS
from tests.browser.pages import searched
from tests.serving import serving
from tuner.figures import FIGURES
from tuner.storage.sql import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.together("browser"), pytest.mark.soak]


def test_a_report_opens_without_the_service(storage: Storage, browser: Browser, tmp_path: Path) -> None:
    job, file = searched(storage, name="<b>reported</b>"), tmp_path / "job.html"
    with serving(storage) as url, Client(url, storage.create_key("reader")[1]) as client:
        file.write_text(render(from_service(client, job.id)))
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    places = page.locator(".plot").all()
    assert len(places) == len(FIGURES)
    for place in places:
        place.scroll_into_view_if_needed()
        page.wait_for_function("place => place.querySelector('svg.main-svg')", arg=place.element_handle())
    assert page.locator("h1").first.inner_text() == "<b>reported</b>"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert said == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "report-phone-dark.png", full_page=True)
    page.close()
