"""What a search tried, looked into: lines that are brushed, trials that are filtered, requests that are tried."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import Visitor, shoot
from tests.browser.pages import searched
from tuner.storage.sql import Storage

pytestmark = pytest.mark.together("browser")


@pytest.mark.soak
def test_kernels_are_brushed_trials_filtered_and_requests_tried(storage: Storage, visitor: Visitor) -> None:
    job = searched(storage)
    page = visitor.open(f"/jobs/{job.id}")

    # Parallel coordinates: a choice, then a stretch of an axis, then all again.
    found = page.locator(".parallel .found")
    page.locator(".parallel").scroll_into_view_if_needed()
    all_of_it = found.inner_text()
    count = int(re.match(r"(\d+) of (\d+)", all_of_it)[2])  # type: ignore[index]
    label = page.locator(".parallel .choice").first
    label.press("Enter")
    assert label.get_attribute("aria-pressed") == "true"
    kept = int(found.inner_text().split()[0])
    assert 0 < kept < count
    label.press("Enter")
    assert found.inner_text() == all_of_it
    zone = page.locator(".parallel .zone").first
    box = zone.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4, steps=3)
    page.mouse.up()
    assert 0 < int(found.inner_text().split()[0]) < count
    shoot(page, "parallel")
    page.get_by_role("button", name="Show all again").click()
    assert found.inner_text() == all_of_it
    assert page.locator(".parallel .name title").first.text_content()

    # Trials, by instance, then in another order.
    page.get_by_role("link", name="Trials", exact=True).click()
    page.get_by_label("Instance").select_option("T=7")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="Measured").click()
    page.wait_for_url("**order=latency**")
    rows = page.locator("table.trials tbody tr")
    rows.first.wait_for()
    assert set(rows.locator("td:nth-child(2)").all_inner_texts()) == {"T=7"}
    shoot(page, "trials")

    # A request, tried on the page of the API.
    page.get_by_role("link", name="API", exact=True).click()
    page.get_by_label("Find").fill("GET /v1/ops")
    operation = page.locator(".operation:visible").filter(has_text="GET /v1/ops")
    operation.locator("summary").first.click()
    operation.get_by_role("button", name="Try it").click()
    operation.locator(".answer pre:not([hidden])").wait_for()
    assert ": 200" in operation.locator(".answer [role=status]").inner_text()
    assert '"dense"' in operation.locator(".answer pre").inner_text()
    shoot(page, "api-tried")
