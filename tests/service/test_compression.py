"""Answers are compressed for clients that accept it, and for no others."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient


@pytest.mark.parametrize("path", ["/v1/ops", "/static/plotly.min.js", "/static/service.js"])
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("identity", None),
        ("gzip;q=0", None),
        ("br, gzip ; q=0.000, deflate", None),
        ("x-gzipped", None),
    ],
)
def test_only_who_accepts_gzip_is_sent_it(api: TestClient, path: str, accepted: str, encoding: str | None) -> None:
    answer = api.get(path, headers={"Accept-Encoding": accepted})
    assert answer.status_code == 200
    assert answer.headers.get("Content-Encoding") == encoding
    assert "Accept-Encoding" in answer.headers["Vary"]
