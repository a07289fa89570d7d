"""Styles and scripts: from the service itself, revalidated by their ETags."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient


def test_plotly_comes_from_the_installed_package(api: TestClient) -> None:
    packed = api.get("/static/plotly.min.js")
    plain = api.get("/static/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert packed.text == plain.text
    assert "Plotly" in plain.text
    again = api.get("/static/plotly.min.js", headers={"If-None-Match": packed.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("name", ["job.js", "dashboard.css", "plotly.min.js", "figures.json"])
def test_browsers_ask_whether_what_they_keep_is_current(api: TestClient, name: str) -> None:
    answer = api.get(f"/static/{name}")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")


def test_a_current_script_is_not_sent_again(api: TestClient) -> None:
    etag = api.get("/static/job.js").headers["ETag"]
    again = api.get("/static/job.js", headers={"If-None-Match": etag})
    assert (again.status_code, again.headers["Cache-Control"], again.content) == (304, "no-cache", b"")
