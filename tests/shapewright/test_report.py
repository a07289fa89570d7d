"""`shapewright report`: one file that holds everything, of a service's job or of a directory."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shapewright import Client
from shapewright.report import ReportedJob, ReportedTask, from_service, render
from tests.calibrated import FOUND
from tests.fakes import TASK, measured
from tests.serving import lease
from tests.shapewright.cli_bed import SMALL_JOB, Bed, complete
from tests.shapewright.conftest import Shapewright
from tests.tuner.figures.searches import finished
from tuner.figures import FIGURES, SearchView
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.schedule import default_kernel
from tuner.storage import JobEvent, JobState, NewEvent
from tuner.storage.sql import Storage, open_storage, upgrade

NASTY = "调优 </script><script>alert(1)</script> <img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """What is in a report: its text, the JSON in it, its elements, and every address that it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.data: dict[str, Any] = {}
        self.words: list[str] = []
        self._reading: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "data")]
        self._reading = tag
        if named.get("type") == "application/json":
            self._reading = f"json {named.get('data-figure') or named.get('id')}"

    def handle_endtag(self, tag: str) -> None:
        self._reading = None

    def handle_data(self, data: str) -> None:
        if self._reading and self._reading.startswith("json "):
            self.data[self._reading.removeprefix("json ")] = json.loads(data)
        elif self._reading not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def search(storage: Storage, name: str = "small", run: bool = True) -> str:
    """A job whose search has come to a library, or is at work still."""
    document: Any = read_yaml(SMALL_JOB.encode())
    spec = parse_job({**document, "name": name})
    job_id = storage.create_job(spec.on(native()))[0].id
    held = lease(storage)
    row = held.tasks[0]
    kernel = default_kernel(row.task)
    storage.append_results(held, row.id, measured(row.task, kernel, *row.task.instances))
    storage.append_events(held, [NewEvent("log", {"message": f"of {name}"})])
    if run:
        complete(storage, held)
    return job_id


def recorded(directory: Path, name: str = "small") -> str:
    """A directory as `tune` leaves it; the job's id."""
    directory.mkdir(exist_ok=True)
    url = f"sqlite:///{directory / 'tuning.db'}"
    upgrade(url)
    storage = open_storage(url)
    try:
        return search(storage, name)
    finally:
        storage.close()


def check(page: Page, tasks: int = 1) -> None:
    """The file holds every figure, and names nothing outside itself."""
    assert page.addresses == []
    assert "link" not in page.tags
    figures = [name for name in page.data if name not in ("themes", "config")]
    assert figures == [f"{name}-{task}" for task in range(tasks) for name in FIGURES]
    for name in figures:
        assert {"data", "layout"} <= set(page.data[name])
    for spec in FIGURES.values():
        assert spec.title in page.text
        assert spec.caption in page.text


def test_a_directory_becomes_one_file(shapewright: Shapewright, tmp_path: Path) -> None:
    job_id = recorded(tmp_path / "out")
    file = tmp_path / "report.html"
    ran = shapewright("report", tmp_path / "out", "-o", file, "--json")
    assert ran.code == 0, ran.err
    assert ran.json == {"file": str(file), "job_id": job_id, "state": "COMPLETED", "tasks": 1}
    text = file.read_text(encoding="utf-8")
    page = Page(text)
    check(page)
    assert "1.50x over the default (best so far in the search)." in page.text
    for expected in (job_id, "COMPLETED", "of small", "dense(m=16*T, n=64, k=32)", "T=16"):
        assert expected in page.text
    latencies = page.data["latency_by_shape-0"]["data"]
    assert "default (theory)" in [trace["name"] for trace in latencies]
    assert "Plotly.newPlot" in text
    assert "Plotly, Inc." in text


def test_of_several_jobs_in_a_directory_the_newest_is_reported(shapewright: Shapewright, tmp_path: Path) -> None:
    recorded(tmp_path / "out", "first")
    newest = recorded(tmp_path / "out", "second")
    ran = shapewright("report", tmp_path / "out", "-o", tmp_path / "r.html", "--json")
    assert ran.json["job_id"] == newest


def test_a_job_of_a_service_becomes_the_same_file(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    job_id = search(bed.storage)
    ran = shapewright("report", job_id, "-o", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    assert job_id in ran.out
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    check(page)
    assert "1.50x over the default (best so far in the search)." in page.text
    bands = page.data["dispatch-0"]["data"]
    assert len(bands) == 2
    points = next(t for t in page.data["latency_by_shape-0"]["data"] if t["name"] == "default (theory)")
    assert points["x"] == [instance.shape["T"] for instance in bed.storage.search_tasks(job_id)[0].task.instances]
    assert points["text"][0].startswith("T=1, ")


def test_the_report_of_a_job_has_the_levels_of_the_device_that_was_calibrated_for_it(bed: Bed) -> None:
    job = bed.storage.create_job(parse_job(read_yaml(SMALL_JOB.encode())).on(native()))[0]
    with Client(bed.url, (bed.data_dir / "client.key").read_text().strip()) as client:
        assert from_service(client, job.id).tasks[0].view.levels is None
        bed.storage.device_calibrated("local-0", replace(FOUND, threads=2))
        bed.storage.device_calibrated("local-0", FOUND)
        assert from_service(client, job.id).tasks[0].view.levels == FOUND.levels


def test_a_job_that_runs_is_reported_as_it_stands(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    job_id = search(bed.storage, run=False)
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(shapewright("report", job_id, "-o", tmp_path / "r.html").code), daemon=True
    )
    thread.start()
    thread.join(60)
    assert codes == [0], "it must not wait for the job's end"
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    check(page)
    assert "RUNNING" in page.text
    assert "No library has been built" in json.dumps(page.data["dispatch-0"])


def test_another_jobs_library_is_not_taken_for_this_ones(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    job_id = search(bed.storage, run=False)
    bed.storage.finish_job(lease_of(bed.storage, job_id), JobState.FAILED, "no luck")
    search(bed.storage)
    assert shapewright("report", job_id, "-o", tmp_path / "r.html").code == 0
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "No library has been built" in json.dumps(page.data["dispatch-0"])
    assert "no luck" in page.text


def lease_of(storage: Storage, job_id: str) -> Any:
    """The lease that a job is held with."""
    from tuner.storage import Lease  # noqa: PLC0415

    job = storage.get_job(job_id)
    return Lease(job, storage.search_tasks(job_id), job.worker or "", job.epoch)


def test_names_and_messages_are_text(tmp_path: Path, shapewright: Shapewright) -> None:
    recorded(tmp_path / "out", NASTY)
    assert shapewright("report", tmp_path / "out", "-o", tmp_path / "r.html").code == 0
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    check(page)
    assert "img" not in page.tags
    assert page.tags.count("script") == len(FIGURES) + 4
    assert f"of {NASTY}" in page.text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.mkdir(), "there is no tuning.db"),
        (lambda path: path.touch(), "is not a directory"),
        (lambda path: None, "is not a directory"),
        (lambda path: (path.mkdir(), (path / "tuning.db").write_text("no database at all")), "tuning.db"),
        (lambda path: (path.mkdir(), upgrade(f"sqlite:///{path / 'tuning.db'}")), "no job is recorded"),
    ],
)
def test_a_directory_that_is_none_is_refused(shapewright: Shapewright, tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "place")
    ran = shapewright("report", tmp_path / "place", "-o", tmp_path / "r.html", "--json")
    assert ran.code == 2
    assert says in ran.error["message"]
    assert not (tmp_path / "r.html").exists()


def test_a_job_that_is_not_there_is_told(shapewright: Shapewright, bed: Bed, tmp_path: Path) -> None:
    ran = shapewright("report", "no-such-job", "-o", tmp_path / "r.html", "--json")
    assert ran.code == 5
    assert "shapewright jobs" in ran.error["message"]


def test_without_a_service_an_id_means_nothing(shapewright: Shapewright, free_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port}"
    assert shapewright("report", "some-job", "-o", tmp_path / "r.html", "--url", url).code == 3


def test_a_file_that_cannot_be_written_is_named(shapewright: Shapewright, tmp_path: Path) -> None:
    recorded(tmp_path / "out")
    ran = shapewright("report", tmp_path / "out", "-o", tmp_path / "no" / "r.html", "--json")
    assert ran.code == 2
    assert str(tmp_path / "no" / "r.html") in ran.error["message"]


def job_of(*views: SearchView, summary: dict[str, Any] | None = None, events: int = 0) -> ReportedJob:
    tasks = tuple(ReportedTask(place, "native", view) for place, view in enumerate(views))
    told = tuple(JobEvent("j", n + 1, "log", {"message": f"message {n}"}, "2026-01-01") for n in range(events))
    return ReportedJob({"id": "j", "name": "", "state": "RUNNING", "trials": 0, "summary": summary or {}}, tasks, told)


def test_several_tasks_have_a_total_in_the_headline_and_figures_each() -> None:
    parts = ({"objective_s": 1.0, "speedup_vs_default": 1.0}, {"objective_s": 3.0, "speedup_vs_default": 2.0})
    summary = {"tasks": {str(place): part for place, part in enumerate(parts)}}
    page = Page(render(job_of(finished(), finished(seed=1), summary=summary)))
    check(page, tasks=2)
    assert "1.75x over the default (best so far in the search)." in page.text
    assert "2.00x over the default (best so far in the search)" in page.text


def test_a_job_without_anything_is_a_page_that_says_so() -> None:
    page = Page(render(job_of(SearchView(TASK))))
    check(page)
    assert "Nothing to compare yet." in page.text
    assert all(not figure["data"] for name, figure in page.data.items() if name.endswith("-0"))


def test_a_long_log_keeps_its_end() -> None:
    text = render(job_of(SearchView(TASK), events=1500))
    assert "500 earlier ones are left out" in Page(text).text
    assert "message 1499" in text
    assert "message 499<" not in text


def test_instances_are_a_table_for_those_who_cannot_see_figures() -> None:
    text = Page(render(job_of(finished()))).text
    row = re.search(r"T=128 1 (k\d+ · \w{6}) ([\d.]+ µs) ([\d.]+ µs) ([\d.]+ µs)", text)
    assert row is not None


def test_the_script_is_safe_to_stand_in_a_page() -> None:
    from tuner.figures import script  # noqa: PLC0415

    assert "<!--" not in script()
    assert "</script" not in script().lower()
