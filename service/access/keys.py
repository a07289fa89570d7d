"""API keys as requests bring them: found in the database, and remembered for a short time."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from tuner.storage import ApiKey, StorageUnavailable, is_unguessable
from tuner.storage.sql import OperatorStorage

MOST = 4096
"""Keys remembered; those not used for longest are forgotten first."""
UNKNOWN_THREADS = 4
USE_EVERY_S = 60.0
"""How often the last use of a key is written at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    key: ApiKey
    at_s: float


class Keys:
    """Finds keys by their secret. One that was found is good for ``ttl_s`` seconds without another look: a key that is
    revoked or expires is refused that much later at most, or at once in the process that was told to ``forget`` it.
    Unknown secrets are never remembered.
    """

    def __init__(self, storage: OperatorStorage, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._ttl_s = ttl_s
        self._clock = clock
        self._found: OrderedDict[str, _Found] = OrderedDict()
        self._used_s: dict[str, float] = {}
        # Threads of their own: however many wrong keys come, no known one waits behind them.
        self._unknown = CapacityLimiter(UNKNOWN_THREADS)
        self._writer = ThreadPoolExecutor(1, "key-use")

    def remembered(self, secret: str) -> ApiKey | None:
        """The key, if it was found within the last ``ttl_s`` seconds."""
        result = self._found.get(secret)
        if result is None or self._clock() - result.at_s >= self._ttl_s:
            return None
        self._note_use(result.key.id)
        return result.key

    def was_good(self, secret: str) -> bool:
        """Whether this was a key's secret when it was last looked up."""
        return secret in self._found

    def may_be_good(self, secret: str) -> bool:
        """Whether it is looked up however many wrong ones came from its address: nobody can guess one, so that others
        there, or pages in its owner's browser, must not keep it out."""
        return self.was_good(secret) or is_unguessable(secret)

    async def find(self, secret: str) -> ApiKey | None:
        """The key as the database has it now. Raises StorageUnavailable."""
        asked_at_s = self._clock()
        limiter = None if self.was_good(secret) else self._unknown
        key = await to_thread.run_sync(self._storage.find_key, secret, limiter=limiter)
        if key is None:
            self.forget(secret)
            return None
        self._found[secret] = _Found(key, asked_at_s)
        self._found.move_to_end(secret)
        while len(self._found) > MOST:
            self._found.popitem(last=False)
        self._note_use(key.id)
        return key

    def forget(self, secret: str) -> None:
        self._found.pop(secret, None)

    def _note_use(self, key_id: str) -> None:
        """Written by a thread of its own: no request waits for it."""
        now_s = self._clock()
        if now_s - self._used_s.get(key_id, -USE_EVERY_S) < USE_EVERY_S:
            return
        if len(self._used_s) > MOST:
            self._used_s.clear()
        self._used_s[key_id] = now_s
        self._writer.submit(self._write_use, key_id)

    def _write_use(self, key_id: str) -> None:
        try:
            self._storage.touch_keys([key_id], USE_EVERY_S)
        except StorageUnavailable as error:
            _log.info("the use of key %s was not noted: %s", key_id, error)
