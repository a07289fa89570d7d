"""Keys that are remembered for a moment, and that are noted as used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from service.access import keys as module
from service.access.keys import Keys
from tests.fakes import FakeClock
from tuner.storage import ApiKey
from tuner.storage.sql import Storage

LIMIT_S = 20.0


class Counted:
    """A storage that counts how often keys are looked up."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.looked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def find_key(self, secret: str) -> ApiKey | None:
        self.looked += 1
        return self._storage.find_key(secret)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def test_a_key_is_good_for_a_moment_without_another_look(storage: Storage) -> None:
    key, secret = storage.create_key("ci")
    clock, counted = FakeClock(), Counted(storage)
    keys = Keys(counted, 2.0, clock)  # type: ignore[arg-type]

    assert keys.remembered(secret) is None
    assert asyncio.run(keys.find(secret)) == key
    storage.revoke_key(key.id)
    clock.now_s += 1.9
    assert keys.remembered(secret) == key
    clock.now_s += 0.2
    assert keys.remembered(secret) is None
    assert keys.was_good(secret)
    assert asyncio.run(keys.find(secret)) is None
    assert not keys.was_good(secret)
    assert counted.looked == 2


def test_a_key_that_is_forgotten_is_looked_up_at_once(storage: Storage) -> None:
    _, secret = storage.create_key("ci")
    keys = Keys(storage, 2.0)
    asyncio.run(keys.find(secret))

    keys.forget(secret)
    keys.forget("never seen")

    assert keys.remembered(secret) is None


def test_unknown_secrets_are_never_remembered(storage: Storage) -> None:
    keys = Keys(storage, 2.0)

    assert asyncio.run(keys.find("wrong")) is None

    assert not keys.was_good("wrong")


def test_no_more_keys_are_remembered_than_fit(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    keys = Keys(storage, 60.0)
    secrets = [storage.create_key(f"k{n}")[1] for n in range(3)]
    for secret in secrets:
        asyncio.run(keys.find(secret))

    assert [keys.was_good(secret) for secret in secrets] == [False, True, True]


def test_a_use_is_written_and_then_not_again_for_a_while(storage: Storage) -> None:
    _, secret = storage.create_key("ci")
    clock = FakeClock()
    keys = Keys(storage, 2.0, clock)

    asyncio.run(keys.find(secret))
    wait_until(lambda: storage.list_keys()[0].last_used_at is not None)
    first = storage.list_keys()[0].last_used_at
    for _ in range(3):
        clock.now_s += 1.0
        keys.remembered(secret)

    assert storage.list_keys()[0].last_used_at == first
