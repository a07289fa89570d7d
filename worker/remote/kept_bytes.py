"""What a worker keeps of a search's builds: in memory as long as it is little, the rest in files."""

from __future__ import annotations

import itertools
import logging
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

log = logging.getLogger(__name__)

MAX_BYTES = 256 * 2**20
"""Bytes of one search in memory: the binaries of some thousands of candidates."""


class KeptBytes:
    """Bytes by number. Of more than ``most_bytes`` those that were kept first go to files of a temporary directory:
    what was built last is needed soonest. For use from several threads."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._memory: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def keep(self, held: bytes) -> int:
        """The number that ``get`` gives them back for."""
        with self._lock:
            number = next(self._numbers)
            self._memory[number] = held
            self._size += len(held)
            try:
                while self._size > self._most_bytes:
                    self._spill()
            except OSError as error:
                # A search is worth more than the memory that it takes.
                log.warning("builds of a search stay in memory, %d MiB: %s", self._size // 2**20, error)
            return number

    def get(self, number: int) -> bytes:
        """Raises KeyError for a number that was not given out, or that was closed since."""
        with self._lock:
            if (held := self._memory.get(number)) is not None:
                return held
            if self._folder is None:
                raise KeyError(number)
            try:
                return self._file(self._folder, number).read_bytes()
            except FileNotFoundError:
                raise KeyError(number) from None

    def close(self) -> None:
        """Forget all, and remove the files."""
        with self._lock:
            self._memory.clear()
            self._size = 0
            folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def _spill(self) -> None:
        """Move what was kept first to a file. Raises OSError, and keeps it where it is."""
        number, held = next(iter(self._memory.items()))
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="shapewright-search-", ignore_cleanup_errors=True)
        self._file(self._folder, number).write_bytes(held)
        del self._memory[number]
        self._size -= len(held)

    @staticmethod
    def _file(folder: tempfile.TemporaryDirectory[str], number: int) -> Path:
        return Path(folder.name) / str(number)
