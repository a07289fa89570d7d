"""Pictures of every page in both themes, for a desk and a phone, and what axe-core says of them:

python -m tests.browser.screenshots [--out DIRECTORY] [PAGE ...]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.browser.conftest import PHONE, launch, settle
from tests.browser.pages import populated, serious
from tests.serving import register_local, serving
from tuner.storage.sql import open_storage, upgrade

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZES = {"desk": (1400, 900), "phone": PHONE}
THEMES = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--theme", choices=THEMES, action="append")
    parser.add_argument("page", nargs="*", help="all pages, if none is named")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{folder}/tuning.db"
        upgrade(url)
        with closing(open_storage(url)) as storage, closing(launch(playwright)) as browser:
            register_local(storage)
            pages = {name: path for name, path in populated(storage).items() if name in (given.page or [name])}
            with serving(storage) as at:
                for size in given.size or SIZES:
                    for theme in given.theme or THEMES:
                        link = f"{at}/login?token={storage.create_login('pictures', 60.0)}"
                        shoot(browser, link, pages, size, theme, given.out)


def shoot(browser: Browser, link: str, pages: dict[str, str], size: str, theme: str, out: Path) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, locale="en-GB")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(link)
    root = link.partition("/login")[0]
    for name, path in pages.items():
        page.goto(root + path)
        settle(page)
        page.screenshot(path=out / f"{name}-{size}-{theme}.png", full_page=True)
        tell(f"{name} {size} {theme}", serious(page), page.evaluate("document.documentElement.scrollWidth") > width)
    context.close()


def tell(what: str, found: Iterable[str], is_too_wide: bool) -> None:
    for finding in [*found, *(["wider than the screen"] if is_too_wide else [])]:
        print(f"{what}: {finding}", flush=True)


if __name__ == "__main__":
    main()
