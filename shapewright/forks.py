"""Locks of a module, in a process that is forked: a thread that held one is not there any more to let it go."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _thread import RLock


def lock() -> RLock:
    """A lock that is free in a forked process: whoever forks waits until no other thread has it. To be made once, when
    a module is loaded: it is kept for ever."""
    made = threading.RLock()
    os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
