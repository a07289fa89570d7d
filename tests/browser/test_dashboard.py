"""The dashboard as people use it: every page in a real browser, on a service that a search is recorded in."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import DESK, PHONE, Theme, Visit, Visitor, drawn, shoot
from tests.browser.pages import populated, searched, serious
from tests.conftest import MakeOnce
from tests.searched import SMALL, Tools, searching, submitted
from tests.serving import register_local, serving
from tuner.figures import FIGURES
from tuner.storage import JobState
from tuner.storage.sql import Storage, open_storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.together("browser")


def expect(page: Page, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=text).first.wait_for()


# -- a search, watched ------------------------------------------------------------------------------------------------
@pytest.mark.soak
def test_the_figures_of_a_running_search_move_and_it_can_be_cancelled(storage: Storage, visitor: Visitor) -> None:
    # It never ends by itself.
    with searching(storage, Tools(pause_s=0.2), budget={"trials": 5000}, policy="random") as job:
        page = visitor.open(f"/jobs/{job.id}")
        expect(page, "#state", "running")
        drawn(page, "best_over_trials", 3)
        before = int(page.locator("#trials").inner_text().split()[0].replace(",", ""))
        page.wait_for_function(
            "before => Number(document.getElementById('trials').textContent.split(' ')[0].replace(',', '')) > before",
            arg=before,
        )
        drawn(page, "calibration", 2)
        assert "left" in page.locator("#left").inner_text()
        page.get_by_role("button", name="Cancel").click()
        expect(page, "#state", "cancelled")
        expect(page, "#log", "cancelled")
        assert storage.get_job(job.id).state is JobState.CANCELLED
        page.get_by_role("button", name="Resume").wait_for()


@pytest.mark.soak
def test_a_job_that_ends_shows_its_library_without_being_asked_to(storage: Storage, visitor: Visitor) -> None:
    with searching(storage, Tools(pause_s=0.02), budget={"trials": 30}) as job:
        page = visitor.open(f"/jobs/{job.id}")
        expect(page, "h2", "The library")
        expect(page, "#state", "completed")
        assert "the default" in page.locator("#headline").inner_text()


@pytest.mark.soak
def test_the_overview_follows_jobs(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open("/")
    expect(page, ".empty", "No job has been submitted yet.")
    searched(storage, name="first of all")
    expect(page, ".jobs th", "first of all")
    expect(page, ".jobs .state", "completed")


@pytest.mark.soak
def test_the_layers_of_a_model_are_followed_to_the_end(storage: Storage, visitor: Visitor) -> None:
    workloads = [
        {"op": "dense", "args": {"m": "8*T", "n": n, "k": 32}, "count": count, "layers": [f"block.{n}"]}
        for n, count in ((96, 3), (64, 1))
    ]
    with searching(storage, Tools(pause_s=0.02), workload=..., workloads=workloads, name="a model") as job:
        page = visitor.open("/")
        page.get_by_role("link", name="2 workloads").click()
        page.wait_for_url(f"**/jobs/{job.id}/model")
        expect(page, ".model td", "block.96")
        expect(page, "#standing .state", "completed")
        expect(page, ".model td.number", " %")
        page.get_by_role("link", name="Share of time").click()
        page.wait_for_url("**order=share")
        expect(page, "#standing .headline", "the default")
        assert page.locator(".model tbody tr").count() == 2


@pytest.mark.soak
def test_a_page_outlives_the_service(sqlite_url: str, visit: Visit) -> None:
    with closing(open_storage(sqlite_url)) as storage:
        register_local(storage)
        with searching(storage, Tools(pause_s=0.05), budget={"trials": 5000}) as job:
            with serving(storage) as url:
                visitor = visit(storage, url, expected=("net::ERR", "Failed to load resource", "fetch", "503"))
                page = visitor.open(f"/jobs/{job.id}")
                drawn(page, "best_over_time")
            page.locator("#lost").wait_for(state="visible")
            with serving(storage, port=int(url.rstrip("/").rpartition(":")[2])):
                page.locator("#lost").wait_for(state="hidden")
                before = page.locator("#trials").inner_text()
                page.wait_for_function("before => document.getElementById('trials').textContent !== before", arg=before)


@pytest.mark.soak
def test_all_of_it_works_under_a_prefix(storage: Storage, visit: Visit) -> None:
    job = searched(storage)
    with serving(storage, root_path="/tools/sw") as url:
        visitor = visit(storage, url.rstrip("/").removesuffix("/tools/sw") + "/tools/sw")
        page = visitor.open("/")
        page.get_by_role("link", name=str(SMALL["name"])).click()
        drawn(page, "best_over_time")
        page.get_by_role("link", name="Clone").click()
        expect(page, "#said", "This job can be submitted.")
        page.get_by_role("button", name="Submit").click()
        expect(page, "#state", "waiting")
        page.get_by_role("button", name="Cancel").click()
        expect(page, "#state", "cancelled")
        page.get_by_role("link", name="Devices").click()
        expect(page, "h1", "Devices")
        assert storage.get_job(job.id).spec == storage.list_jobs().items[0].spec
        page.close()


# -- the form ---------------------------------------------------------------------------------------------------------
def test_a_job_is_written_checked_and_submitted(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open("/jobs/new")
    expect(page, "#said", "This job can be submitted.")
    visitor.expected = ("422",)
    text = page.locator("#file").input_value()
    page.locator("#file").fill(text.replace("768", "768*Q"))
    expect(page, "#said", "workload.args.k (line 4)")
    expect(page, "#said", "Remedy:")
    page.locator("#file").fill(text.replace("bert-base ffn_up", "written by hand"))
    expect(page, "#said", "This job can be submitted.")
    page.get_by_role("button", name="Submit").click()
    expect(page, "h1", "written by hand")
    [job] = storage.list_jobs().items
    assert (job.name, job.state) == ("written by hand", JobState.WAITING)


@pytest.mark.soak
def test_a_job_is_cloned(storage: Storage, visitor: Visitor) -> None:
    job = submitted(storage, name="the first one")
    page = visitor.open(f"/jobs/{job.id}")
    page.get_by_role("link", name="Clone").click()
    expect(page, "#said", "This job can be submitted.")
    page.keyboard.press("Tab")
    page.locator("#file").focus()
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/jobs/job-*")
    first, second = storage.list_jobs().items
    assert first.spec == second.spec


# -- every page, looked at --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def in_use(once: MakeOnce, sqlite_template: Path) -> Path:
    """The database of a service in use, and the paths of its pages: seven searches."""

    def make(folder: Path) -> None:
        shutil.copy(sqlite_template, folder / "tuning.db")
        with closing(open_storage(f"sqlite:///{folder / 'tuning.db'}")) as storage:
            register_local(storage)
            (folder / "pages.json").write_text(json.dumps(populated(storage)))

    return once("in-use", make)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("size", "theme"),
    [
        pytest.param(DESK, "light", id="desk-light"),
        pytest.param(PHONE, "dark", id="phone-dark"),
        pytest.param(DESK, "dark", id="desk-dark"),
        pytest.param(PHONE, "light", id="phone-light"),
    ],
)
def test_every_page_fits_its_screen(
    in_use: Path, tmp_path: Path, visit: Visit, size: tuple[int, int], theme: Theme
) -> None:
    shutil.copy(in_use / "tuning.db", tmp_path)
    with closing(open_storage(f"sqlite:///{tmp_path / 'tuning.db'}")) as storage, serving(storage) as url:
        visitor = visit(storage, url, size, theme, expected=("404",))
        for name, path in json.loads((in_use / "pages.json").read_text()).items():
            page = visitor.open(path)
            shoot(page, f"{name}-{'phone' if size == PHONE else 'desk'}-{theme}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], f"{name} is wider than the screen"
            assert serious(page) == [], name
            page.close()


@pytest.mark.soak
def test_every_figure_of_a_job_is_drawn(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open(f"/jobs/{searched(storage).id}")
    for name in FIGURES:
        drawn(page, name)
        # Nothing failed, and that is said.
        drawing = ".nothing" if name == "failures" else ":is(svg.main-svg, .parallel svg)"
        assert page.locator(f"#figure-{name} {drawing}").count() > 0


@pytest.mark.soak
def test_a_point_leads_to_its_kernel(storage: Storage, visitor: Visitor) -> None:
    job = searched(storage)
    page = visitor.open(f"/jobs/{job.id}")
    drawn(page, "calibration")
    # The topmost of the points, through the handler that a real click on it calls.
    box = page.locator("#figure-calibration .scatterlayer .points path").first.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url("**/kernels/*")
    expect(page, "h2", "Schedule")


@pytest.mark.soak
def test_colours_are_chosen_and_kept(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open("/")
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"


@pytest.mark.soak
def test_the_keyboard_reaches_everything_in_order(storage: Storage, visitor: Visitor) -> None:
    job = searched(storage)
    page = visitor.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.get_by_role("link", name=str(SMALL["name"])).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job.id}")


@pytest.mark.soak
def test_who_signs_out_is_out(storage: Storage, visitor: Visitor) -> None:
    page = visitor.open("/")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login**")
    page.goto(visitor.url)
    page.wait_for_url("**/login**")
