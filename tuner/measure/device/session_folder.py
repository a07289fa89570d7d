"""The folder that a session of a device works in: bounded while it runs, removed when it has died."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from tuner.measure.sandbox.confinement import FOLDER_BYTES
from tuner.measure.sandbox.removal import remove

log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
"""The least bytes that a file takes."""
DEEPEST = 100
"""Levels of folders. No honest session makes any."""
CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})


class FolderWatch:
    """Ends a session that fills its folder, and removes what it leaves there. TVM's server works in the folder of the
    session that it serves, and in ``home`` otherwise. The processes that it has ended are added to
    ``asked``."""

    def __init__(self, home: Path, asked: set[int]) -> None:
        self._home = home
        self._asked = asked
        self._last: Path | None = None

    def look(self, server: threading.Thread) -> None:
        """End the session that ``server`` has started, if it has one and its folder is full."""
        with suppress(OSError):  # it has ended
            folder = Path.cwd()
            if folder == self._home:
                return
            self._last = folder
            if not is_full(folder):
                return
            for pid in map(int, Path(f"/proc/self/task/{server.native_id}/children").read_text().split()):
                # Of a crash the candidate is blamed. A handler of its own does not help it for long.
                os.kill(pid, signal.SIGKILL if pid in self._asked else signal.SIGXFSZ)
                self._asked.add(pid)
                log.warning("session %d is ended: its folder is full", pid)

    def clear(self) -> None:
        """Go back from the folder of a session that has died."""
        # TVM's server may have left it, and then failed to remove it.
        folders = {self._last}
        with suppress(FileNotFoundError):
            folders.add(Path.cwd())
        os.chdir(self._home)
        self._last = None
        for folder in folders - {None, self._home}:
            assert folder is not None
            remove(folder)


def is_full(folder: Path) -> bool:
    """Whether the files in and below it take more than FOLDER_BYTES; an empty one takes a block. What cannot be looked
    into is full, too: a folder that is closed, or deeper than DEEPEST."""
    found, waiting = 0, [(folder, 0)]
    while waiting:
        inner, depth = waiting.pop()
        try:
            with os.scandir(inner) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        found += max(BLOCK_BYTES, entry.stat(follow_symlinks=False).st_size)
                        waiting += [(Path(entry), depth + 1)] if entry.is_dir(follow_symlinks=False) else []
                    if found > FOLDER_BYTES or depth >= DEEPEST:
                        return True
        except OSError as error:
            if error.errno in CLOSED:
                return True
    return False
