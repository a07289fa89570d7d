"""The folder that a session of a device works in: bounded while it runs, removed when it has died."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

from tuner.measure.confinement import FOLDER_BYTES

log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
"""What a file takes at least."""


class FolderWatch:
    """Ends a session that fills its folder, and removes what it leaves there. TVM's server works in the folder of the
    session that it serves, and in ``home`` otherwise. The processes that it has ended are added to
    ``asked``."""

    def __init__(self, home: Path, asked: set[int]) -> None:
        self._home = home
        self._asked = asked

    def look(self, server: threading.Thread) -> None:
        """End the session that ``server`` has started, if it has one and its folder is full."""
        with suppress(OSError):  # it has ended
            folder = Path.cwd()
            if folder == self._home or not is_full(folder):
                return
            for pid in map(int, Path(f"/proc/self/task/{server.native_id}/children").read_text().split()):
                # Of a crash the candidate is blamed. A handler of its own does not help it for long.
                os.kill(pid, signal.SIGKILL if pid in self._asked else signal.SIGXFSZ)
                self._asked.add(pid)
                log.warning("session %d is ended: its folder is full", pid)

    def clear(self) -> None:
        """Go back from the folder of a session that has died."""
        folder: Path | None = None
        with suppress(FileNotFoundError):
            folder = Path.cwd()
        os.chdir(self._home)
        if folder is not None and folder != self._home:
            shutil.rmtree(folder, ignore_errors=True)


def is_full(folder: Path) -> bool:
    """Whether the files in and below it take more than FOLDER_BYTES; an empty one takes a block."""
    found, waiting = 0, [folder]
    while waiting and found <= FOLDER_BYTES:
        with suppress(OSError):  # removed meanwhile
            for entry in os.scandir(waiting.pop()):
                with suppress(OSError):
                    found += max(BLOCK_BYTES, entry.stat(follow_symlinks=False).st_size)
                    waiting += [Path(entry)] if entry.is_dir(follow_symlinks=False) else []
                if found > FOLDER_BYTES:
                    break
    return found > FOLDER_BYTES
