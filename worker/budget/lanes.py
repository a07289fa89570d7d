"""Searches of one job side by side, each lane in a thread of its own."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tuner.measure import BuilderLost, DeviceLost, Interrupted
from tuner.search.tuning import Cancelled, Finishing
from tuner.storage import LeaseLost, StorageUnavailable

log = logging.getLogger(__name__)

_RANKS: Mapping[type[Exception], int] = {
    # Also raised by each lane that was stopped because of another's error.
    Cancelled: 0,
    Interrupted: 0,
    # The job may be tried again, unless something says otherwise.
    DeviceLost: 1,
    BuilderLost: 1,
    Finishing: 2,
    # Nothing can be written any more.
    StorageUnavailable: 4,
    LeaseLost: 5,
}
"""Ranks of the errors that lanes raise: what decides most of the job's end has the highest."""
DEFECT = 3
"""The rank of any other error: it would come again, and is reported even where the job is cancelled."""
EXIT = 6
"""The rank of what is no error: the process ends."""


def side_by_side(lane: Callable[[int], None], lanes: int) -> None:
    """Call ``lane`` with each number below ``lanes``, in threads; return when all have returned.

    A single one is called by this thread. Raises what decides most of what they raise, the first of several such, and
    logs the rest. Whoever raises must see to it that the others return.
    """
    if lanes == 1:
        lane(0)
        return
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            lane(number)
        except BaseException as error:  # Raised below, by the thread that asked for it.
            errors.append(error)

    with ThreadPoolExecutor(lanes, thread_name_prefix="lane") as threads:
        for number in range(lanes):
            # In the context of the job, so that log lines name it.
            threads.submit(contextvars.copy_context().run, call, number)
    if errors:
        raise _deciding(errors)


def _deciding(errors: Sequence[BaseException]) -> BaseException:
    # The first of the highest rank: ``max`` keeps the order.
    result = max(errors, key=_rank)
    for error in errors:
        if error is not result and not isinstance(error, (Cancelled, Interrupted, Finishing)):
            log.warning("a lane raised %s: %s; what counts is %r", type(error).__name__, error, result)
    return result


def _rank(error: BaseException) -> int:
    other = DEFECT if isinstance(error, Exception) else EXIT
    return next((rank for kind, rank in _RANKS.items() if isinstance(error, kind)), other)
