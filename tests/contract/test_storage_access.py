"""What every Storage promises about API keys: scopes, owners, expiry and use. Runs on each database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tuner.errors import InvalidInput
from tuner.storage import NewKey, Quota, Scope
from tuner.storage.access import EVERY_SCOPE, NO_QUOTA, parse_scopes
from tuner.storage.sql import Storage


def test_a_key_is_found_with_all_it_was_made_with(storage: Storage) -> None:
    quota = Quota(open_jobs=3, trials=1000, seconds=60.5)

    key, secret = storage.create_key("ci", made=NewKey((Scope.SUBMIT,), "ada", 3600.0, quota))

    assert storage.find_key(secret) == key
    assert storage.list_keys() == (key,)
    assert (key.scopes, key.owner, key.quota, key.last_used_at) == ((Scope.SUBMIT,), "ada", quota, None)
    assert key.expires_at is not None
    left = datetime.fromisoformat(key.expires_at) - datetime.now(UTC)
    assert timedelta(minutes=58) < left <= timedelta(hours=1, seconds=5)


def test_a_key_that_says_nothing_is_its_own_owner_and_may_do_everything(storage: Storage) -> None:
    key, _ = storage.create_key("old")

    assert (key.owner, key.scopes, key.expires_at, key.quota) == (key.id, EVERY_SCOPE, None, NO_QUOTA)


def test_an_expired_key_is_not_found(storage: Storage) -> None:
    _, secret = storage.create_key("short", made=NewKey(ttl_s=0.001))
    time.sleep(0.01)

    assert storage.find_key(secret) is None
    assert len(storage.list_keys()) == 1


def test_the_last_use_is_written_once_in_a_while(storage: Storage) -> None:
    key, _ = storage.create_key("ci")
    other, _ = storage.create_key("other")

    storage.touch_keys([key.id, key.id, "key-none"], 60.0)
    first = [each.last_used_at for each in storage.list_keys()]
    storage.touch_keys([key.id], 60.0)
    again = [each.last_used_at for each in storage.list_keys()]
    time.sleep(0.01)
    storage.touch_keys([key.id], 0.001)
    later = storage.list_keys()[0].last_used_at

    assert first[0] is not None
    assert first == again == [first[0], None]
    assert later is not None
    assert later > first[0]
    assert storage.list_keys()[1] == other


@pytest.mark.parametrize("key_ttl_s", [None, 3600.0])
def test_the_key_of_a_login_may_expire(storage: Storage, key_ttl_s: float | None) -> None:
    redeemed = storage.redeem_login(storage.create_login("browser", 60.0), key_ttl_s)

    assert redeemed is not None
    assert (redeemed[0].expires_at is None) is (key_ttl_s is None)


def test_each_scope_includes_the_ones_before_it() -> None:
    allowed = {scope: [other for other in Scope if scope.includes(other)] for scope in Scope}

    assert allowed == {
        Scope.READ: [Scope.READ],
        Scope.SUBMIT: [Scope.READ, Scope.SUBMIT],
        Scope.PROMOTE: [Scope.READ, Scope.SUBMIT, Scope.PROMOTE],
        Scope.ADMIN: [Scope.READ, Scope.SUBMIT, Scope.PROMOTE, Scope.ADMIN],
    }


@pytest.mark.parametrize("names", [[], ["root"], ["read", "Admin"]])
def test_other_scopes_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_scopes(names)
    assert caught.value.field == "scope"
