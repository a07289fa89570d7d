"""Retrying calls to a database that is unavailable for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tuner.storage import LeaseLost, StorageUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

LIMIT_S = 600.0
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeats a call while the database is unavailable, with exponential backoff, for ``limit_s`` in all."""

    limit_s: float = LIMIT_S
    first_wait_s: float = FIRST_WAIT_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Callable[[], T], lease_lost: Callable[[], bool] = lambda: False) -> T:
        """The value of ``call()``, repeated for as long as it raises StorageUnavailable.

        Raises StorageUnavailable after ``limit_s``, and LeaseLost as soon as ``lease_lost()`` is true: the worker that
        has the job now does the work again.
        """
        wait_s, deadline = self.first_wait_s, self.clock() + self.limit_s
        while True:
            if lease_lost():
                raise LeaseLost("the lease was lost; nothing more was written")
            try:
                return call()
            except StorageUnavailable as error:
                if self.clock() + wait_s > deadline:
                    raise
                log.warning("the database is unavailable (%s); retrying in %g s", error, wait_s)
            self.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
