"""The whole of it: `shapewright up` as users start it, a job written in the browser, its search watched to the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Visit, Visitor, drawn
from tests.browser.test_dashboard import expect
from tests.e2e.conftest import Up, start  # noqa: F401  (a fixture)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.together("browser")
JOB = """
name: watched
workload:
  op: dense
  args: {m: 8*T, n: 128, k: 64}
shape_vars:
  T: {min: 1, max: 16}
instances: [{T: 1}, {T: 5}, {T: 16}]
budget: {trials: 60, seconds: 200}
max_kernels: 3
"""


@pytest.mark.soak
def test_from_the_printed_link_to_the_code_of_a_kernel(start: Callable[..., Up], visit: Visit) -> None:  # noqa: F811
    up = start()
    visitor = visit(up.dashboard_url.removeprefix(up.url.rstrip("/")), up.url)
    page = visitor.open("/jobs/new")
    page.locator("#file").fill(JOB)
    expect(page, "#said", "This job can be submitted.")
    page.get_by_role("button", name="Submit").click()
    expect(page, "h1", "watched")
    drawn(page, "best_over_time", 2)
    drawn(page, "calibration", 2)
    look_around(visitor, page)
    expect(page, "#log", "baselines measured")
    expect(page, "h2", "The library")
    expect(page, "#state", "completed")
    # NumPy's products are left out where a loaded device is too slow for them.
    assert "the default" in page.locator("#headline").inner_text()
    for name in ("roofline", "latency_by_shape", "dispatch"):
        drawn(page, name)
    page.locator("tbody th a").first.click()
    expect(page, ".code", "T.")


def look_around(visitor: Visitor, page: Page) -> None:
    """Every other page, while the search goes on."""
    job = page.url.rpartition("/")[2]
    workload = page.locator("a[href*='/workloads/wl-']").first.get_attribute("href")
    # The device works only while the search goes on.
    shown = {"/devices": "Devices", "/": "Jobs", "/workloads": "Workloads", str(workload): "dense",
             f"/compare?a={job}&b={job}": "Compare", f"/jobs/new?from={job}": "New job"}  # fmt: skip
    for path, title in shown.items():
        other = visitor.open(path)
        expect(other, "h1", title)
        for place in other.locator(".plot").all():
            place.scroll_into_view_if_needed()
            other.wait_for_function("place => place.dataset.drawn", arg=place.element_handle())
        if path == "/devices":
            expect(other, ".state", "busy")
        other.close()
