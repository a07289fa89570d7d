"""A real browser on a real service. Every page that a test opens is watched: what it logs, and whom it asks."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

from tests.serving import register_local, serving
from tuner.storage.sql import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Response

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
Theme = Literal["light", "dark"]
WAIT_MS = 90_000
DESK, PHONE = (1280, 900), (390, 844)
SCREENSHOTS = Path(os.environ.get("SHAPEWRIGHT_SCREENSHOTS", "build/screenshots"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  (only here may it be missing)
    except ImportError:
        pytest.skip("playwright is not installed: pip install 'shapewright[dev]'")
    if chromium() is None:
        pytest.skip("no Chromium is on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = launch(playwright)
        yield launched
        launched.close()


def chromium() -> str | None:
    """The system's own, if there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))


@dataclass
class Visitor:
    """Somebody signed in at the service, and everything that went wrong on the pages they opened."""

    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Patterns of complaints that a test means to cause."""

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("response", self._look)
        page.on("request", lambda request: self._check_place(request.url))
        page.goto(self.url.rstrip("/") + path)
        return page

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(said.text)

    def _look(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status} {response.url}")

    def _check_place(self, url: str) -> None:
        parts, own = urlsplit(url), urlsplit(self.url)
        here = parts.netloc == own.netloc and parts.path.startswith(own.path)
        if parts.scheme not in ("data", "blob") and not here:
            self.complaints.append(f"asked elsewhere: {url}")

    def unexpected(self) -> list[str]:
        return [text for text in self.complaints if not any(re.search(known, text) for known in self.expected)]


Visit = Callable[..., Visitor]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def storage(storage: Storage) -> Storage:
    register_local(storage)
    return storage


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage) as at:
        yield at


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """``visit(storage, url)``: a visitor, who must have nothing to complain of when the test is over.

    Signed in by a link of their own; ``storage`` may be the path of a link that somebody else was given.
    """
    visitors: list[Visitor] = []

    def arrive(
        storage: Storage | str,
        url: str,
        size: tuple[int, int] = DESK,
        theme: Theme = "light",
        expected: tuple[str, ...] = (),
    ) -> Visitor:
        width, height = size
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB")
        visitor = Visitor(context, url, expected=expected)
        visitors.append(visitor)
        link = storage if isinstance(storage, str) else f"/login?token={storage.create_login('tests', 60.0)}"
        # The page that it leads to is drawn where a test opens it.
        answer = context.request.get(url.rstrip("/") + link)
        assert answer.ok, answer.status
        return visitor

    yield arrive
    for visitor in visitors:
        visitor.context.close()
    assert [text for visitor in visitors for text in visitor.unexpected()] == []


@pytest.fixture
def visitor(storage: Storage, url: str, visit: Visit) -> Visitor:
    # In this order, for the visitor to leave before the service does.
    return visit(storage, url)


def drawn(page: Page, name: str, times: int = 1) -> None:
    """Wait until a figure of a job's page was drawn that often; it is scrolled to first."""
    place = page.locator(f"#figure-{name} :is(.plot, .parallel)")
    place.scroll_into_view_if_needed()
    page.wait_for_function(
        "([place, times]) => Number(place.dataset.drawn || 0) >= times", arg=[place.element_handle(), times]
    )


def settle(page: Page) -> None:
    """Wait until every figure of a page was drawn; each is scrolled to, and the page then to its top."""
    for place in page.locator(".plot, .parallel").all():
        place.scroll_into_view_if_needed()
        page.wait_for_function("place => place.dataset.drawn", arg=place.element_handle())
    page.evaluate("scrollTo(0, 0)")


def shoot(page: Page, name: str) -> None:
    """A screenshot of the whole page, for people to look at, once every figure on it was drawn."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    settle(page)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
