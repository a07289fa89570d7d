"""Links that sign a browser in: what `login-url` and `up` print."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from shapewright.cli.logins import login_link
from shapewright.cli.up import announce_ready
from shapewright.cli.up_parts import Plan
from tests.shapewright.cli_bed import Bed
from tests.shapewright.conftest import Shapewright
from tuner.errors import InvalidInput


def test_the_link_signs_a_browser_in_once(shapewright: Shapewright, bed: Bed) -> None:
    ran = shapewright("login-url", "--json")

    assert ran.code == 0
    assert set(ran.json) == {"url", "dashboard_url", "ttl_s"}
    assert ran.json["url"] == bed.url
    assert ran.json["ttl_s"] == 3600
    with httpx.Client() as browser:
        assert browser.get(ran.json["dashboard_url"]).status_code == 303
        assert browser.get(f"{bed.url}/v1/jobs").status_code == 200
    assert httpx.get(ran.json["dashboard_url"]).status_code == 401
    assert [key["name"] for key in shapewright("keys", "list", "--json").json] == ["tests", "browser"]


def test_a_person_gets_the_link_alone(shapewright: Shapewright, bed: Bed) -> None:
    ran = shapewright("login-url", "--url", "https://tuning.example/shapewright/")
    assert ran.out.startswith("https://tuning.example/shapewright/login?token=")
    assert ran.out.count("\n") == 1
    assert not bed.storage.list_keys()[1:], "a key is made only of a link that is opened"


@pytest.mark.parametrize("url", ["x.example", "ftp://x", "http://", "http://[x", "http://x/?a=b", "http://x/#a", "/"])
def test_what_is_no_address_is_refused(shapewright: Shapewright, bed: Bed, url: str) -> None:
    ran = shapewright("login-url", "--url", url, "--json")
    assert (ran.code, ran.error["field"]) == (2, "url")
    assert url in ran.error["message"]
    with pytest.raises(InvalidInput):
        login_link(bed.storage, url)


def test_without_a_database_there_is_no_link(shapewright: Shapewright, tmp_path: Path) -> None:
    ran = shapewright("login-url", "--data-dir", tmp_path / "none", "--json")
    assert ran.code == 3
    assert str(tmp_path / "none" / "tuning.db") in ran.error["message"]


@pytest.mark.parametrize("json_output", [True, False])
def test_up_prints_the_link_beside_the_address(bed: Bed, capsys: pytest.CaptureFixture[str], json_output: bool) -> None:
    plan = Plan(8321, bed.data_dir, bed.database_url, 1, 9190, bed.data_dir)
    link = login_link(bed.storage, replace(plan, port=8000).url)
    assert link.startswith("http://127.0.0.1:8000/login?token=")

    announce_ready(plan, link, json_output)

    out = capsys.readouterr().out
    if json_output:
        answer = json.loads(out)
        assert set(answer) == {"url", "dashboard_url", "data_dir", "pid"}
        assert (answer["url"], answer["dashboard_url"]) == ("http://127.0.0.1:8321/", link)
    else:
        assert out == f"ready: {link}\n"
