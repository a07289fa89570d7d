"""The pages over real storage: what stands on them, and what is escaped. How they look is for the browser's tests."""

from __future__ import annotations

import html
import re

import pytest
from fastapi.testclient import TestClient

from service.figures.searches import Searches
from tests.searched import Tools, searched, submitted
from tests.serving import JOB
from tuner.figures import FIGURES
from tuner.schedule.space import READABLE
from tuner.search.summary import SearchSummary, Stage
from tuner.storage import NewEvent
from tuner.storage.sql import Storage


def main_of(html: str) -> str:
    return html[html.index("<main") :]


def test_the_overview_lists_sorts_filters_and_pages(
    api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dashboard.pages.PAGE", 2)
    for name in ("delta", "alpha", "charlie"):
        submitted(storage, name=name)

    def names(query: str) -> list[str]:
        page = api.get(f"/?{query}")
        assert page.status_code == 200
        return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', page.text)

    assert names("") == ["charlie", "alpha"]
    assert names("page=2") == ["delta"]
    assert names("order=name&up=true") == ["alpha", "charlie"]
    assert names("q=DEL") == ["delta"]
    assert names("state=WAITING&q=l&order=name&up=true") == ["alpha", "charlie"]
    assert names("state=FAILED") == []
    # What the page's own links and form ask for, every one of them.
    page = api.get("/?order=trials&page=2").text
    links = [html.unescape(link) for link in re.findall(r'href="(\?[^"]*)"', page)]
    assert len(links) >= 5
    assert [api.get(f"/{link}").status_code for link in (*links, "?q=&state=&order=created&up=false")] == [200] * (
        len(links) + 1
    )
    assert "No job matches" in api.get("/?q=nothing").text


def test_a_wrong_query_is_refused_by_name(api: TestClient) -> None:
    assert api.get("/?state=LOST").status_code == 422
    assert api.get("/?page=0").status_code == 422


def test_names_are_escaped_everywhere(api: TestClient, storage: Storage) -> None:
    job = searched(storage, name="<script>alert(1)</script>", budget={"trials": 1})
    row = storage.search_tasks(job.id)[0]
    kernel = storage.list_trials(job.id)[0].result.kernel.id
    for path in (
        "/", f"/jobs/{job.id}", f"/jobs/new?from={job.id}", f"/compare?a={job.id}&b={job.id}",
        f"/workloads/{row.workload_key}", f"/jobs/{job.id}/kernels/{kernel}", "/compare?a=<script>",
    ):  # fmt: skip
        page = api.get(path)
        assert page.status_code == 200
        assert "<script>" not in main_of(page.text), path


def test_a_kernel_page_has_its_code_and_what_its_choices_mean(api: TestClient, storage: Storage) -> None:
    job = searched(storage)
    artifact = storage.latest_artifact(storage.search_tasks(job.id)[0].workload_key)
    kernel = artifact.dispatch["kernels"][0]
    page = api.get(f"/jobs/{job.id}/kernels/{kernel['id']}").text
    assert f"# {kernel['name']}" in page
    for axis in kernel["kernel"]["values"]:
        assert f"<code>{READABLE.get(axis, axis)}</code>" in page


def test_a_kernel_page_does_not_read_the_whole_search(
    api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred thousand trials that takes longer than a page may: its table of times comes after it."""
    job = searched(storage)
    trial = next(each for each in storage.list_trials(job.id) if each.result.ok)
    kernel, read = trial.result.kernel.id, []
    with monkeypatch.context() as patch:
        patch.setattr(Searches, "view", lambda *_: read.append(1))
        page = api.get(f"/jobs/{job.id}/kernels/{kernel}").text
    assert read == []
    address = f"/fragments/jobs/{job.id}/kernels/{kernel}/times?task=0"
    assert f'data-fragment="{address}"' in page
    lines = api.get(address).text
    [row] = storage.search_tasks(job.id)
    assert all(str(instance) in lines for instance in row.task.instances)
    none = api.get(f"/fragments/jobs/{job.id}/kernels/ffffffffffff/times").text
    assert none.count("<tr>") == len(row.task.instances) + 1


def test_a_job_that_is_built_says_how_far_it_is(api: TestClient, storage: Storage) -> None:
    job = api.post("/v1/jobs", json=JOB).json()
    lease = storage.lease_job("w1", 30.0)
    assert lease is not None
    building = SearchSummary(Stage.BUILD, trials=12, step=3, steps=8)
    event = NewEvent("progress", building.to_json())
    storage.append_results(lease, lease.tasks[0].id, [], [event], 1.0, building.to_json())
    page = api.get(f"/jobs/{job['id']}").text
    assert '<dd id="phase">building 3 of 8</dd>' in page
    last = api.get(f"/v1/jobs/{job['id']}").json()["summary"]
    assert (last["step"], last["steps"], last["activity"]) == (3, 8, "building 3 of 8")


def test_a_clone_holds_what_was_submitted(api: TestClient) -> None:
    job = api.post("/v1/jobs", json=JOB).json()
    page = api.get(f"/jobs/new?from={job['id']}").text
    assert "16*T" in page
    assert "bert-base qkv" in page


def test_a_job_file_is_checked_and_not_stored(api: TestClient, storage: Storage) -> None:
    result = api.post("/jobs/check", json=JOB)
    assert result.status_code == 200
    [task] = result.json()["tasks"]
    assert (task["shapes"], task["instances"], task["rule"]) == (128, 2, "x86_contraction, x86_strassen")
    wrong = api.post("/jobs/check", json={**JOB, "budget": {"trials": -1}})
    refused = api.post("/v1/jobs", json={**JOB, "budget": {"trials": -1}})
    assert wrong.status_code == refused.status_code == 422
    assert wrong.json() == refused.json()
    assert storage.list_jobs().items == ()


@pytest.mark.parametrize("path", ["/jobs/none", "/jobs/none/kernels/k", "/workloads/none"])
def test_what_is_not_there_is_404(api: TestClient, path: str) -> None:
    assert api.get(path).status_code == 404


def test_a_kernel_that_was_never_tried_is_404(api: TestClient, storage: Storage) -> None:
    job = searched(storage, budget={"trials": 1})
    assert api.get(f"/jobs/{job.id}/kernels/ffffffffffff").status_code == 404
    assert api.get(f"/jobs/{job.id}?task=1").status_code == 404


def test_nothing_on_a_page_names_another_host(api: TestClient, storage: Storage) -> None:
    job = searched(storage, budget={"trials": 1})
    for path in ("/", "/jobs/new", f"/jobs/{job.id}", "/devices", "/workloads", "/compare", "/static/dashboard.css"):
        assert not re.findall(r'(?:src|href|action|url)\s*[=(]\s*["\']?(?:https?:)?//', api.get(path).text), path


def test_each_target_of_a_job_leads_to_its_own_library(api: TestClient, storage: Storage) -> None:
    targets = [{"kind": "llvm", "mcpu": name, "num-cores": 2} for name in ("x86-64-v3", "x86-64-v4")]
    job = searched(storage, targets=targets, budget={"trials": 8})
    for row in storage.search_tasks(job.id):
        page = api.get(f"/jobs/{job.id}?task={row.position}").text
        link = f"/v1/workloads/{row.workload_key}/library?job={job.id}&target={row.target_fingerprint}"
        assert html.escape(link) in page
        assert api.get(link).status_code == 200


def test_numbers_of_a_task_are_its_own(api: TestClient, storage: Storage) -> None:
    workloads = [{"op": "dense", "args": {"m": "8*T", "n": n, "k": 32}} for n in (96, 64)]
    job = searched(storage, workload=..., workloads=workloads, budget={"trials": 40})
    for row in storage.search_tasks(job.id):
        trials = len(storage.records_of_task(row.id))
        assert f'id="trials">{trials} of' in api.get(f"/jobs/{job.id}?task={row.position}").text


def test_errors_keep_the_navigation(api: TestClient) -> None:
    for path in ("/jobs/none", "/no/such/page", "/?page=0"):
        page = api.get(path, headers={"Accept": "text/html"}).text
        assert '<nav aria-label="Main">' in page, path
        assert "Status 4" in page, path


def test_nothing_is_to_come_of_a_job_that_has_ended(api: TestClient, storage: Storage) -> None:
    job = searched(storage, Tools(crashes=lambda kernel: True))
    page = api.get(f"/jobs/{job.id}").text
    assert "yet" not in main_of(page)
    for name in FIGURES:
        figure = api.get(f"/v1/jobs/{job.id}/figures/{name}").text
        assert "yet" not in figure, name


def test_a_figure_without_data_says_why_in_plain_text(api: TestClient, storage: Storage) -> None:
    job = submitted(storage)
    layout = api.get(f"/v1/jobs/{job.id}/figures/dispatch").json()["layout"]
    assert layout["meta"]["nothing"] == "No library has been built."
