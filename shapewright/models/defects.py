"""Where a defect of our own ends: at the node that it occurred at, never in what the user runs."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_told: set[str] = set()


def defect(error: Exception, where: str) -> str:
    """The reason for which ``where`` is left. Logged with its traceback, once for each kind in a process."""
    message = " ".join(str(error).split())
    reason = f"a defect of Shapewright: {type(error).__name__}: {message}".removesuffix(": ")
    if reason not in _told:
        _told.add(reason)
        logger.warning("%s is left, for %s", where, reason, exc_info=error)
    return reason
