"""The pages of devices over real storage."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from tests.calibrated import FOUND
from tests.fleets import NO_ANSWER, at_work
from tests.service.dashboard.test_pages import main_of
from tuner.program.target import native
from tuner.program.target.calibration import Calibration
from tuner.storage import NewKey, Scope
from tuner.storage.sql import Storage


def shown(api: TestClient, query: str = "") -> list[str]:
    page = api.get(f"/devices?{query}")
    assert page.status_code == 200
    return re.findall(r'<tr data-id="([^"]*)"', page.text)


def test_devices_are_shown_by_key_filtered_and_sorted(api: TestClient, storage: Storage) -> None:
    ids = at_work(storage, 40)
    assert sorted(shown(api)) == sorted([*ids, "local-0"])
    assert shown(api, "key=edge") == sorted(name for name in ids if name.startswith("edge"))
    assert shown(api, "q=RACK-000") == ["rack-000.example"]
    quarantined = shown(api, "state=quarantined")
    assert set(quarantined) == {ids[1], ids[21], ids[11]}
    assert set(shown(api, "q=does+not+answer")) == {ids[1], ids[21]}
    assert shown(api, "state=none&key=local") == ["local-0"]
    assert set(shown(api, "key=rack&order=failures")[:2]) <= set(quarantined)
    assert shown(api, "key=edge&order=last+seen")[0] in ids[4::10]
    busiest = [api.get(f"/v1/devices/{name}").json() for name in shown(api, "key=rack&order=utilisation")]
    used = [each["activity"]["utilisation"] for each in busiest]
    assert used == sorted(used, reverse=True)
    assert "No device matches" in api.get("/devices?q=nothing+like+it").text
    assert api.get("/devices?order=beauty").status_code == 422


def test_the_page_has_states_with_reasons_queues_lanes_and_buttons(api: TestClient, storage: Storage) -> None:
    ids = at_work(storage, 40)
    page = main_of(api.get("/devices").text)
    assert "until it is released: its fan is loud" in page
    assert re.search(rf"\d+ s</time> left|\d+ s left</time>: {re.escape(NO_ANSWER[:15])}", page)
    assert "0 jobs running, 2 waiting" in page
    assert "3 jobs running, 0 waiting" in page
    assert page.count('<svg class="lane"') == len(ids) + 1
    assert 'data-action="release"' in page
    assert 'data-action="quarantine"' in page
    assert "bert-base ffn_up" in page
    fragment = api.get("/fragments/devices?key=edge").text
    assert "<html" not in fragment
    assert "edge-002.example" in fragment


def test_the_calibration_of_a_device_is_on_its_page_and_in_its_documents(api: TestClient, storage: Storage) -> None:
    assert "None yet" in main_of(api.get("/devices/local-0").text)
    assert api.get("/v1/devices/local-0").json()["device"]["calibrations"] == []
    storage.device_calibrated("local-0", FOUND)
    page = main_of(api.get("/devices/local-0").text)
    assert "None yet" not in page
    assert all(text in page for text in ("5.0 %", "20.0 %", "3.10 GHz", "L1 230 GB/s", FOUND.target))
    (device,) = api.get("/v1/devices").json()["items"]
    assert [Calibration.from_json(each) for each in device["calibrations"]] == [FOUND]
    storage.device_calibrated("local-0", replace(FOUND, threads=2, levels=None))
    assert "–" in main_of(api.get("/devices/local-0").text)


def test_the_page_of_a_device_has_its_history(api: TestClient, storage: Storage) -> None:
    ids = at_work(storage, 12)
    page = api.get(f"/devices/{ids[0]}").text
    for said in ("bert-base ffn_up", "crash: signal 11", "Latest trials", "device.register", "node-0", 'class="lane"'):
        assert said in page, said
    assert NO_ANSWER in api.get(f"/devices/{ids[1]}").text
    assert "device.quarantine" in api.get(f"/devices/{ids[1]}").text
    assert 'class="lane"' in api.get(f"/fragments/devices/{ids[0]}?seconds=900").text
    assert api.get("/devices/none").status_code == 404
    assert api.get("/fragments/devices/none").status_code == 404


def test_the_audit_trail_is_for_administrators(storage: Storage) -> None:
    reader = storage.create_key("reader", made=NewKey((Scope.READ,)))[1]
    with TestClient(create_app(storage), headers={"Authorization": f"Bearer {reader}"}) as api:
        page = api.get("/devices/local-0").text
    assert "Shown to keys of scope admin" in page
    assert "device.register" not in page


def test_ids_and_reasons_are_escaped_and_any_id_has_a_page(api: TestClient, storage: Storage) -> None:
    name = "a/b <script>?"
    storage.register_device(name, "<i>", native(), {"<b>": "<u>"})
    storage.quarantine_device(name, "<script>alert(1)</script>", "key-1")
    page = main_of(api.get("/devices").text)
    assert not re.search(r"<(script|i|b|u)>", page)
    [link] = [each for each in re.findall(r'<th scope="row"><a href="([^"]*)"', page) if "script" in each]
    assert "&lt;script&gt;" in main_of(api.get(link).text)


def test_no_more_rows_than_fit_and_it_is_said(
    api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dashboard.fleet.MAX_ROWS", 5)
    at_work(storage, 12)
    assert len(shown(api)) == 5
    assert "8 more devices match" in api.get("/devices").text
