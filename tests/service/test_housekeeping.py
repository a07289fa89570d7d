"""What the service does though nobody asks for it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from service.housekeeping import keep_house
from tests.contract.samples import expire, leased
from tests.measuring import wait_for
from tests.serving import serving
from tuner.storage import JobState, StorageUnavailable
from tuner.storage.sql import Storage


def test_a_service_without_workers_ends_abandoned_jobs(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.housekeeping.keep_house.__defaults__", (0.05,))
    lease = leased(storage)
    storage.request_cancel(lease.job.id)
    expire(storage, lease)
    with serving(storage):
        wait_for(lambda: storage.get_job(lease.job.id).state is JobState.CANCELLED)


class Away:
    """A database that is away the first time."""

    calls = 0

    def end_abandoned(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise StorageUnavailable("gone")
        if self.calls == 2:
            raise RuntimeError("a defect")


def test_it_goes_on_after_an_outage_and_after_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    away = Away()

    async def run() -> None:
        keeping = asyncio.create_task(keep_house(away, 0.001))  # type: ignore[arg-type]
        while away.calls < 4:
            await asyncio.sleep(0.001)
        keeping.cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "abandoned jobs wait: gone" in caplog.text
    assert "a defect" in caplog.text
