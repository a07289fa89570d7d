"""Removes a folder that a candidate had to itself, whatever it has left there."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove(folder: Path) -> None:
    """Remove it with all below it. Never raises: what is left is logged.

    ``shutil.rmtree`` takes a Python frame for each level and a path has an end, so a tree can be too deep for them.
    Here the folders of every level are moved to the top before they are emptied.
    """
    try:
        _permit(folder)
        top = os.open(folder, FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        folder.rmdir()
    except FileNotFoundError:  # it is gone already
        return
    except OSError as error:
        log.warning("%s is not removed: %s", folder, error)


def _empty(top: int) -> None:
    waiting, prefix, moved = _folders_alone(top), uuid.uuid4().hex, 0
    while waiting:
        name = waiting.pop()
        # What cannot be removed is in the way of ``top``, too, and reported then.
        with suppress(OSError):
            here = os.open(name, FOLDER, dir_fd=top)
            try:
                for inner in _folders_alone(here):
                    moved += 1
                    os.rename(inner, f"{prefix}-{moved}", src_dir_fd=here, dst_dir_fd=top)
                    waiting.append(f"{prefix}-{moved}")
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)


def _folders_alone(here: int) -> list[str]:
    """Remove the files in ``here``: the names of its folders."""
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        with suppress(OSError):
            if is_folder:
                _permit(name, here)
            else:
                os.unlink(name, dir_fd=here)
    return [name for name, is_folder in found if is_folder]


def _permit(folder: Path | str, where: int | None = None) -> None:
    """Let its owner read, empty and move it. Root may, and would follow a link that another user puts there."""
    if os.geteuid() != 0:
        os.chmod(folder, 0o700, dir_fd=where)
