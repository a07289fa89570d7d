"""Open event streams end when their key does, and no others."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.contract.samples import job_spec
from tests.serving import serving
from tuner.storage import NewKey
from tuner.storage.sql import Storage, open_storage

QUICK = Settings(key_cache_s=0.1)
LIMIT_S = 20.0


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage, QUICK) as result:
        yield result


class Follower(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, url: str, secret: str) -> None:
        super().__init__(daemon=True)
        self._url, self._headers = url, {"Authorization": f"Bearer {secret}"}
        self.lines: list[str] = []
        self.opened = threading.Event()

    def run(self) -> None:
        with httpx.stream("GET", self._url, headers=self._headers, timeout=LIMIT_S) as answer:
            for line in answer.iter_lines():
                self.lines.append(line)
                self.opened.set()


def test_a_stream_ends_when_its_key_is_revoked(storage: Storage, url: str) -> None:
    job, _ = storage.create_job(job_spec())
    keys = [storage.create_key("follower") for _ in range(2)]
    ended, stays = followers = [Follower(f"{url}/v1/jobs/{job.id}/events", secret) for _, secret in keys]
    for follower in followers:
        follower.start()
        assert follower.opened.wait(LIMIT_S)

    storage.revoke_key(keys[0][0].id)

    ended.join(LIMIT_S)
    assert not ended.is_alive()
    assert ": the API key was revoked or has expired" in ended.lines
    assert stays.is_alive()
    storage.request_cancel(job.id)
    stays.join(LIMIT_S)
    assert ": end" in stays.lines


def test_a_stream_ends_when_its_key_expires(storage: Storage, url: str, database: Path) -> None:
    job, _ = storage.create_job(job_spec())
    _, secret = storage.create_key("short", made=NewKey(ttl_s=3600.0))
    follower = Follower(f"{url}/v1/jobs/{job.id}/events", secret)
    follower.start()
    assert follower.opened.wait(LIMIT_S)

    with closing(sqlite3.connect(database, timeout=LIMIT_S)) as connection, connection:
        connection.execute("UPDATE api_keys SET expires_at = '2026-01-01T00:00:00.000Z'")

    follower.join(LIMIT_S)

    assert not follower.is_alive()
    assert ": the API key was revoked or has expired" in follower.lines


def test_a_revoked_key_is_refused_within_the_bound(storage: Storage, url: str, database: Path) -> None:
    """Another process revokes it, as `keys revoke` does."""
    key, secret = storage.create_key("ci")
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{url}/v1/jobs", headers=headers).status_code == 200
    other = open_storage(f"sqlite:///{database}")
    other.revoke_key(key.id)
    other.close()
    end = time.monotonic() + LIMIT_S
    while httpx.get(f"{url}/v1/jobs", headers=headers).status_code == 200:
        assert time.monotonic() < end, "the key is good for ever"
