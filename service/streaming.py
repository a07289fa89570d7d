"""Answers that are made piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from anyio import CapacityLimiter, to_thread


async def in_turn(pieces: Iterator[bytes], limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    """A thread of ``limiter`` is held for each piece alone: a slow reader holds none."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=limiter)) is not None:
        if piece:
            yield piece
