"""Join tokens of devices: made, listed, revoked, used, expired; and the devices that were refused."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tuner.device_auth import stored_key_of
from tuner.program.target import native
from tuner.storage import Conflict, DeviceToken, Joined, NotFound, TokenState
from tuner.storage import device_tokens as bounds
from tuner.storage.sql import Storage
from tuner.storage.sql import device_tokens as tokens
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import device_tokens, refused_devices

HOUR_S = 3600.0


def let_pass(storage: Storage, table: object, **moments: float) -> None:
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        values = {name: later(seconds) for name, seconds in moments.items()}
        connection.execute(update(table).values(**values))  # type: ignore[arg-type]


def only(storage: Storage) -> DeviceToken:
    (token,) = storage.list_device_tokens()
    return token


def test_a_token_is_shown_once_and_what_is_kept_is_not_the_token(storage: Storage) -> None:
    token, text = storage.create_device_token("rack", HOUR_S, "the boards of hall 2", "key-1")
    assert text.startswith("swd_")
    assert only(storage) == token
    assert (token.key, token.note, token.state, token.required) == (
        "rack", "the boards of hall 2", TokenState.VALID, True,
    )  # fmt: skip
    assert (token.revoked_at, token.last_used_at) == (None, None)
    assert token.expires_at > token.created_at
    (key,) = storage.join_keys()
    assert (key.token, key.stored_key) == (token, stored_key_of(text))
    assert text not in repr(key)
    entry = storage.list_audit(subject=token.id).items[0]
    assert (entry.actor, entry.action) == ("key-1", "device-token.create")
    assert entry.detail == {"key": "rack", "note": token.note, "expires_at": token.expires_at}


def test_tokens_are_listed_newest_first_and_differ(storage: Storage) -> None:
    made = [storage.create_device_token("rack", HOUR_S) for _ in range(3)]
    assert [token.id for token in storage.list_device_tokens()] == [token.id for token, _ in reversed(made)]
    assert len({text for _, text in made}) == 3


def test_a_token_expires_by_the_clock_of_the_database(storage: Storage) -> None:
    storage.create_device_token("rack", HOUR_S)
    let_pass(storage, device_tokens, expires_at=-1.0)
    assert only(storage).state is TokenState.EXPIRED
    assert storage.join_keys()[0].token.state is TokenState.EXPIRED


def test_a_token_is_revoked_once_and_stays_listed(storage: Storage) -> None:
    token, _ = storage.create_device_token("rack", HOUR_S)
    revoked = storage.revoke_device_token(token.id, "key-1")
    assert revoked.state is TokenState.REVOKED
    assert storage.revoke_device_token(token.id, "key-2") == revoked == only(storage)
    actors = [entry.actor for entry in storage.list_audit(subject=token.id).items if entry.action.endswith("revoke")]
    assert actors == ["key-1"]
    let_pass(storage, device_tokens, expires_at=-1.0)
    assert only(storage).state is TokenState.REVOKED
    with pytest.raises(NotFound, match="no device token 'dt-none'"):
        storage.revoke_device_token("dt-none")


def test_there_is_a_most_of_valid_tokens(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_VALID", 2)
    first, _ = storage.create_device_token("rack", HOUR_S)
    storage.create_device_token("rack", HOUR_S)
    with pytest.raises(Conflict, match="revoke those"):
        storage.create_device_token("rack", HOUR_S)
    storage.revoke_device_token(first.id)
    storage.create_device_token("rack", HOUR_S)


def test_a_device_that_joined_is_remembered_and_its_token_was_used(storage: Storage) -> None:
    token, _ = storage.create_device_token("rack", HOUR_S)
    device = storage.register_device("rack-1", "rack", native(), {}, Joined(token.id, "a"))
    assert device.joined == Joined(token.id, "a")
    used = only(storage).last_used_at
    assert used is not None
    # By a worker that asks for no tokens.
    assert storage.register_device("rack-1", "rack", native(), {}).joined == Joined(token.id, "a")
    assert storage.register_device("rack-1", "rack", native(), {}, Joined(token.id, "b")).joined == Joined(
        token.id, "b"
    )
    assert only(storage).last_used_at == used, "it is written once a minute"
    let_pass(storage, device_tokens, last_used_at=-120.0)
    storage.register_device("rack-1", "rack", native(), {}, Joined(token.id, "b"))
    assert only(storage).last_used_at > used  # type: ignore[operator]
    assert storage.register_device("rack-2", "rack", native(), {}).joined is None


def test_refused_devices_are_listed_with_the_reason_until_they_are_gone(storage: Storage) -> None:
    storage.refuse_device("b", "rack", "10.0.0.7:9091", "it brings no token")
    (first,) = storage.list_refused_devices()
    storage.refuse_device("b", "rack", "10.0.0.7:9091", "its token has expired")
    storage.refuse_device("b", "rack", "10.0.0.8:9091", "it brings no token")
    storage.refuse_device("a", "edge", "10.0.0.7:9091", "it brings no token")
    found = storage.list_refused_devices()
    assert [(each.key, each.id, each.address, each.reason) for each in found] == [
        ("edge", "a", "10.0.0.7:9091", "it brings no token"),
        ("rack", "b", "10.0.0.7:9091", "its token has expired"),
        ("rack", "b", "10.0.0.8:9091", "it brings no token"),
    ]
    assert found[1].first_at == first.first_at
    assert storage.list_devices() == (), "refusing registers nothing"
    storage.accept_device("b", "10.0.0.8:9091")
    assert len(storage.list_refused_devices()) == 2
    let_pass(storage, refused_devices, seen_at=-bounds.REFUSED_FOR_S - 1)
    assert storage.list_refused_devices() == ()


def test_made_up_devices_do_not_fill_the_database(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_REFUSED", 3)
    for number in range(6):
        storage.refuse_device(f"{number}" + 500 * "x", "rack" * 500, f"10.0.0.{number}:9091", "no" * 2000)
    found = storage.list_refused_devices()
    assert len(found) <= 4  # two may have come in one tick of the clock
    assert found[-1].id.startswith("5")
    assert max(len(each.reason) for each in found) == 1000
    assert storage.list_audit().items == ()


def test_only_tokens_that_close_no_key_are_ever_deleted(storage: Storage) -> None:
    own, _ = storage.create_device_token("local", HOUR_S, required=False)
    open_, _ = storage.create_device_token("local", HOUR_S, required=False)
    closing, _ = storage.create_device_token("rack", HOUR_S)
    for token in (own, closing):
        storage.revoke_device_token(token.id)
    last, _ = storage.create_device_token("rack", HOUR_S)
    assert [token.id for token in storage.list_device_tokens()] == [last.id, closing.id, open_.id]
