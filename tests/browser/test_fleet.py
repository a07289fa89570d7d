"""The page of 200 devices in a real browser: it fits its window, nothing lies over anything, it filters and follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import DESK, PHONE, Theme, Visit, Visitor, shoot
from tests.contract.samples import job_spec, leased
from tests.fleets import at_work, measured
from tests.serving import serving
from tuner.storage.sql import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.together("browser")
OVERLAPS = """() => {
  const found = [];
  const check = (boxes, what) => boxes.forEach((one, index) => boxes.slice(index + 1).forEach((other) => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (wide > 1 && high > 1) found.push(what);
  }));
  const box = (element) => element.getBoundingClientRect();
  document.querySelectorAll(".devices tbody tr").forEach((row) => {
    check([...row.children].map(box), `cells of ${row.dataset.id}`);
    for (const part of row.querySelectorAll(".lane, button, .state")) {
      const inner = box(part), outer = box(part.closest("td"));
      if (inner.right > outer.right + 1 || inner.left < outer.left - 1) found.push(`beyond a cell: ${row.dataset.id}`);
    }
  });
  check([...document.querySelectorAll(".devices tbody tr")].map(box), "rows");
  check([...document.querySelectorAll(".cell")].map(box), "cells of the overview");
  check([...document.querySelectorAll("#filter > *, #live > *")].map(box), "parts of the page");
  return found;
}"""


def rows(page: Page) -> list[str]:
    names: list[str] = page.locator(".devices tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.id)")
    return names


@pytest.mark.parametrize(
    ("size", "theme"),
    [
        pytest.param(DESK, "light", id="desk-light", marks=pytest.mark.soak),
        pytest.param(PHONE, "dark", id="phone-dark", marks=pytest.mark.soak),
    ],
)
def test_two_hundred_devices_fit_and_are_filtered(
    storage: Storage, url: str, visit: Visit, size: tuple[int, int], theme: Theme
) -> None:
    ids = at_work(storage, 200)
    visitor = visit(storage, url, size, theme)
    page = visitor.open("/devices")
    assert len(rows(page)) == len(ids) + 1
    assert page.locator(".lane").count() == len(ids) + 1
    assert page.locator(".lane:has(path)").count() > 100
    shoot(page, f"fleet-{'phone' if size == PHONE else 'desk'}-{theme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate(OVERLAPS) == []

    page.get_by_label("Device, reason or job").fill("edge-002")
    page.wait_for_function("() => document.querySelectorAll('.devices tbody tr').length === 1")
    assert rows(page) == ["edge-002.example"]
    assert "q=edge-002" in page.url
    page.get_by_label("Device, reason or job").fill("")
    page.get_by_label("State").select_option("away")
    page.wait_for_function("() => document.querySelectorAll('.devices tbody tr').length === 20")
    assert sorted(rows(page)) == sorted(ids[4::10])

    page.get_by_role("link", name=ids[4], exact=True).click()
    page.locator("h1", has_text=ids[4]).wait_for()
    shoot(page, f"device-{'phone' if size == PHONE else 'desk'}-{theme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.soak
def test_the_lanes_follow_and_a_device_is_quarantined_and_released(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open("/devices")
    assert page.locator(".lane path").count() == 0
    lease = leased(storage, job_spec(device="local", name="measured just now"))
    measured(storage, lease, [("local-0", 5.0)])
    page.locator(".lane path").wait_for(state="attached")
    page.locator(".works", has_text="measured just now").wait_for()
    page.get_by_role("button", name="Quarantine local-0").click()
    page.locator(".state", has_text="quarantined").first.wait_for()
    page.get_by_role("button", name="Release local-0").click()
    page.locator("td .state", has_text="busy").wait_for()


@pytest.mark.soak
def test_the_page_works_without_scripts(storage: Storage, visit: Visit) -> None:
    ids = at_work(storage, 12)
    with serving(storage) as url:
        visitor = visit(storage, url)
        signed_in = visitor.context.storage_state()
        browser = visitor.context.browser
        assert browser is not None
        context = browser.new_context(java_script_enabled=False, storage_state=signed_in)
        page = context.new_page()
        page.goto(f"{url.rstrip('/')}/devices")
        assert page.locator(".devices tbody tr").count() == len(ids) + 1
        page.get_by_label("Key").select_option("edge")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**key=edge**")
        assert page.locator(".devices tbody tr").count() == len(ids[2::3])
        assert page.locator(".lane path").count() > 0
        context.close()
