"""Periodic work that no request starts, and that needs no worker."""

from __future__ import annotations

import asyncio
import logging

from anyio import to_thread

from tuner.storage import StorageUnavailable
from tuner.storage.sql import WorkerStorage

EVERY_S = 5.0

_log = logging.getLogger(__name__)


async def keep_house(storage: WorkerStorage, every_s: float = EVERY_S) -> None:
    """End jobs that are being cancelled and have no worker any more. Until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await to_thread.run_sync(storage.end_abandoned)
        except StorageUnavailable as error:
            _log.info("abandoned jobs wait: %s", error)
        except Exception:
            _log.exception("abandoned jobs could not be ended")
