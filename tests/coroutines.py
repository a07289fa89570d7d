"""Running coroutines in tests: a browser of another test may have left an event loop running in the main thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run(function: Callable[..., Coroutine[Any, Any, T]], *parts: Any) -> T:
    """The result of ``function(*parts)``, on an event loop of its own in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(function(*parts))).result()
