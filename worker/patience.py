"""Writing to a database that may be away for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tuner.storage import LeaseLost, StorageUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Tries a call to the database again until it is back, with waits that double, for ``limit_s`` in all."""

    limit_s: float = PATIENCE_S
    first_wait_s: float = FIRST_WAIT_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Callable[[], T], lost: Callable[[], bool] = lambda: False) -> T:
        """``call()``, again for as long as it raises StorageUnavailable; that is raised when patience is at its end.

        Raises LeaseLost as soon as ``lost()`` says so: whoever has the job now does the work again.
        """
        wait_s, deadline = self.first_wait_s, self.clock() + self.limit_s
        while True:
            if lost():
                raise LeaseLost("the lease was lost; nothing more was written")
            try:
                return call()
            except StorageUnavailable as error:
                if self.clock() + wait_s > deadline:
                    raise
                log.warning("the database is away (%s); trying again in %g s", error, wait_s)
            self.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
