"""Tables of trials over HTTP, as files, and on their page."""

from __future__ import annotations

import csv
import io
import re
import sys

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from tests.contract.samples import leased, results
from tests.searched import Tools, searched
from tests.serving import assert_problem
from tuner.records import ErrorKind
from tuner.storage import Job
from tuner.storage.sql import Storage


@pytest.fixture
def job(storage: Storage) -> Job:
    tools = Tools(crashes=lambda kernel: int(kernel.id, 16) % 3 == 0)
    return searched(storage, tools, budget={"trials": 32})


def rows_of(api: TestClient, job: Job, **query: str) -> list[dict[str, str]]:
    answer = api.get(f"/v1/jobs/{job.id}/trials/file", params=query)
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert f"{job.id}-0-trials.csv" in answer.headers["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_a_table_is_filtered_ordered_and_read_in_parts(api: TestClient, job: Job) -> None:
    path = f"/v1/jobs/{job.id}/trials/table"
    first = api.get(path, params={"order": "latency", "limit": 5, "error": "none"}).json()
    second = api.get(path, params={"order": "latency", "limit": 5, "error": "none", "cursor": first["cursor"]}).json()

    latencies = [line["latency_s"] for line in first["items"] + second["items"]]
    assert latencies == sorted(latencies)
    assert len({line["seq"] for line in first["items"] + second["items"]}) == 10
    assert first["items"][0]["choices"].keys() >= {"m_tile", "n_vectors"}
    facets = api.get(f"/v1/jobs/{job.id}/trials/facets").json()["items"]
    assert sum(facet["trials"] for facet in facets) == job.trials
    for query in ({"error": "nonsense"}, {"cursor": "x"}, {"order": "best"}, {"limit": 501}):
        assert_problem(api.get(path, params=query), 422)
    assert_problem(api.get(path, params={"task": 1}), 404)


def test_trials_are_taken_as_csv_and_parquet(api: TestClient, job: Job) -> None:
    rows = rows_of(api, job)
    assert len(rows) == job.trials
    told = api.get(f"/v1/jobs/{job.id}/trials", params={"limit": 2000}).json()["items"]
    for row, trial in zip(rows, told, strict=True):
        assert int(row["seq"]) == trial["seq"]
        assert row["shape_T"] == str(int(trial["instance"]["T"]))
        assert row["latency_s"] == ("" if trial["latency_s"] is None else repr(trial["latency_s"]))
        assert row["axis_m_tile"] == str(trial["kernel"]["values"]["mr"])
    failed = rows_of(api, job, error="any")
    assert {row["error_kind"] for row in failed} == {"crash"}
    assert 0 < len(failed) < len(rows)

    answer = api.get(f"/v1/jobs/{job.id}/trials/file", params={"format": "parquet"})
    table = pq.read_table(io.BytesIO(answer.content))
    assert table.num_rows == len(rows)
    assert table.column_names == list(rows[0])
    assert table.column("axis_m_tile").to_pylist() == [int(row["axis_m_tile"]) for row in rows]
    assert table.column("latency_s").null_count == len(failed)


def test_text_of_a_trial_is_no_formula_of_a_spreadsheet(api: TestClient, storage: Storage) -> None:
    lease = leased(storage)
    bad = results(1, latency_s=None, error_kind=ErrorKind.BUILD, error='=HYPERLINK("x")')
    storage.append_results(lease, lease.tasks[0].id, bad)
    assert rows_of(api, lease.job)[0]["error"].startswith("'=")


def test_without_pyarrow_the_service_says_what_to_install(
    api: TestClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = api.get(f"/v1/jobs/{job.id}/trials/file", params={"format": "parquet"})
    assert_problem(answer, 422)
    assert "shapewright[parquet]" in answer.json()["detail"]


def test_the_page_shows_trials_with_what_choices_mean(api: TestClient, job: Job) -> None:
    page = api.get(f"/jobs/{job.id}/trials", params={"error": "any", "order": "kernel", "descending": "true"}).text
    assert "crash" in page
    assert re.search(r'<span title="[^"]{8,}">m_tile=\d+</span>', page)
    assert 'aria-sort="descending"' in page
    assert "trials/file?task=0&amp;error=any&amp;format=csv" in page
    assert "No trial matches" in api.get(f"/jobs/{job.id}/trials?instance=T=3").text
    assert "Nothing has been tried yet" in api.get(f"/jobs/{leased_job(api)}/trials").text
    whole = api.get(f"/jobs/{job.id}").text
    assert f"/jobs/{job.id}/trials?task=0" in whole
    lines = api.get(f"/fragments/jobs/{job.id}/instances").text
    assert lines.count("<tr>") == 1 + 4
    assert "T=20" in lines


def leased_job(api: TestClient) -> str:
    """A job without trials."""
    body = {"workload": {"op": "dense", "args": {"m": 8, "n": 8, "k": 8}}, "budget": {"trials": 1}}
    return str(api.post("/v1/jobs", json=body).json()["id"])
