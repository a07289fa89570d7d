"""The routes of join tokens, and refused devices on the list and on the dashboard."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from tests.serving import assert_problem
from tuner.device_auth import stored_key_of
from tuner.program.target import native
from tuner.storage import Joined, NewKey, Scope
from tuner.storage.sql import Storage
from tuner.storage.sql import device_tokens as tokens

PATH = "/v1/devices/tokens"
DAY_S = 86400.0


def test_a_token_is_made_listed_and_revoked(api: TestClient, storage: Storage) -> None:
    answer = api.post(PATH, json={"key": "rack", "expires_s": DAY_S, "note": "hall 2"})
    assert answer.status_code == 201
    made = answer.json()
    text = made.pop("token")
    assert made["state"] == "valid"
    assert (made["key"], made["note"], made["revoked_at"], made["last_used_at"]) == ("rack", "hall 2", None, None)
    assert storage.join_keys()[0].stored_key == stored_key_of(text)
    assert api.get(PATH).json() == {"items": [made]}
    assert text not in api.get(PATH).text and storage.join_keys()[0].stored_key not in api.get(PATH).text
    revoked = api.delete(f"{PATH}/{made['id']}")
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    assert api.delete(f"{PATH}/{made['id']}").json() == revoked.json()
    assert api.get(PATH).json() == {"items": [revoked.json()]}
    assert_problem(api.delete(f"{PATH}/dt-none"), 404)
    (key,) = storage.list_keys()
    assert {entry.actor for entry in storage.list_audit(subject=made["id"]).items} == {key.id}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "key"),
        ({"key": ""}, "key"),
        ({"key": " rack"}, "key"),
        ({"key": "ra\nck"}, "key"),
        ({"key": "x" * 201}, "key"),
        ({"key": 7}, "key"),
        ({"key": "rack", "expires_s": 59}, "expires_s"),
        ({"key": "rack", "expires_s": 367 * DAY_S}, "expires_s"),
        ({"key": "rack", "expires_s": "NaN"}, "expires_s"),
        ({"key": "rack", "note": "x" * 201}, "note"),
        ({"key": "rack", "note": "\x00"}, "note"),
        ({"key": "rack", "device": "board"}, "device"),
    ],
)
def test_a_wrong_token_is_a_problem_that_names_the_field(
    api: TestClient, storage: Storage, body: dict[str, Any], field: str
) -> None:
    answer = api.post(PATH, json=body)
    assert_problem(answer, 422)
    assert answer.json()["field"] == field
    assert storage.list_device_tokens() == ()


def test_tokens_are_for_administrators(storage: Storage) -> None:
    token, _ = storage.create_device_token("rack", DAY_S)
    for scope in (Scope.READ, Scope.SUBMIT):
        secret = storage.create_key(scope, made=NewKey((scope,)))[1]
        with TestClient(create_app(storage), headers={"Authorization": f"Bearer {secret}"}) as api:
            for answer in (api.get(PATH), api.post(PATH, json={"key": "rack"}), api.delete(f"{PATH}/{token.id}")):
                assert_problem(answer, 403)
    assert storage.list_device_tokens() == (token,)


def test_too_many_tokens_are_a_conflict(api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_VALID", 1)
    assert api.post(PATH, json={"key": "rack"}).status_code == 201
    assert_problem(api.post(PATH, json={"key": "rack"}), 409)


def test_devices_name_their_token_and_refused_ones_are_told_with_the_reason(api: TestClient, storage: Storage) -> None:
    token, _ = storage.create_device_token("rack", DAY_S)
    storage.register_device("rack-1", "rack", native(), {}, Joined(token.id, "a"))
    assert "Refused" not in api.get("/fragments/devices").text
    storage.refuse_device("<b>board", "rack", "10.0.0.7:9091", "it brings no token")
    listed = api.get("/v1/devices").json()
    assert {each["id"]: each["token_id"] for each in listed["items"]} == {"local-0": None, "rack-1": token.id}
    (refused,) = listed["refused"]
    assert (refused["id"], refused["address"], refused["reason"]) == (
        "<b>board", "10.0.0.7:9091", "it brings no token",
    )  # fmt: skip
    for path in ("/devices", "/fragments/devices"):
        page = api.get(path).text
        assert "&lt;b&gt;board" in page and "it brings no token" in page and "10.0.0.7:9091" in page
