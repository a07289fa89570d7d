"""What every Storage promises about one-time tokens: used once, in time, for a key of their own."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.contract.samples import LONG_S
from tests.contract.test_storage_at_once import at_once, connections
from tuner.storage.sql import Storage


def test_a_token_gives_a_key_that_is_listed_and_can_be_revoked(storage: Storage) -> None:
    token = storage.create_login("browser", LONG_S)
    assert storage.list_keys() == ()

    redeemed = storage.redeem_login(token)

    assert redeemed is not None
    key, secret = redeemed
    assert (key.name, key.revoked_at) == ("browser", None)
    assert storage.find_key(secret) == key
    assert storage.list_keys() == (key,)
    storage.revoke_key(key.id)
    assert storage.find_key(secret) is None


def test_a_token_is_not_a_key_and_a_key_is_no_token(storage: Storage) -> None:
    token = storage.create_login("browser", LONG_S)
    _, secret = storage.create_key("ci")

    assert storage.find_key(token) is None
    assert storage.redeem_login(secret) is None


def test_a_token_works_once(storage: Storage) -> None:
    token = storage.create_login("browser", LONG_S)

    assert storage.redeem_login(token) is not None
    assert storage.redeem_login(token) is None
    assert len(storage.list_keys()) == 1


@pytest.mark.parametrize("wrong", ["", " ", "nothing", "\0", "\udcff", "ä" * 5000])
def test_a_token_that_was_never_made_gives_nothing(storage: Storage, wrong: str) -> None:
    storage.create_login("browser", LONG_S)

    assert storage.redeem_login(wrong) is None
    assert storage.list_keys() == ()


def test_an_expired_token_gives_nothing_and_others_stay_good(storage: Storage) -> None:
    late, good = storage.create_login("browser", 0.001), storage.create_login("browser", LONG_S)
    time.sleep(0.01)

    assert storage.redeem_login(late) is None
    newer = storage.create_login("browser", LONG_S)
    assert storage.redeem_login(late) is None
    assert storage.redeem_login(good) is not None
    assert storage.redeem_login(newer) is not None


def test_tokens_are_long_and_all_different(storage: Storage) -> None:
    tokens = {storage.create_login("browser", LONG_S) for _ in range(20)}

    assert len(tokens) == 20
    # 256 bits in base64.
    assert all(len(token) >= 43 for token in tokens)


def test_of_many_who_use_a_token_at_once_one_gets_a_key(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        for round_ in range(1, 9):
            token = storages[0].create_login("browser", LONG_S)

            result = at_once([partial(storage.redeem_login, token) for storage in storages])

            assert sum(redeemed is not None for redeemed in result) == 1
            assert len(storages[0].list_keys()) == round_


def test_the_end_of_a_login_revokes_the_key_that_came_of_it(storage: Storage) -> None:
    redeemed = storage.redeem_login(storage.create_login("browser", LONG_S))
    assert redeemed is not None
    key, secret = redeemed

    assert storage.end_login(key.id)
    assert storage.find_key(secret) is None
    (revoked,) = storage.list_keys()
    assert storage.end_login(key.id)
    assert storage.list_keys() == (revoked,), "the time of the first revocation stays"


def test_the_end_of_a_login_leaves_keys_of_other_makes_alone(storage: Storage) -> None:
    storage.redeem_login(storage.create_login("browser", LONG_S))
    key, secret = storage.create_key("browser")

    assert not storage.end_login(key.id)
    assert not storage.end_login("key-none")
    assert storage.find_key(secret) == key
