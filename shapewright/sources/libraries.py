"""Loaded libraries by digest: a compiled or exported model names them so, in this process and in later ones.

Every library that a model uses is kept on disk, in a folder of its digest, so that the model can be loaded where its
source is not at hand. Files are written whole or not at all, and are checked against their digests when they are read.
"""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shapewright import defaults
from shapewright.download import write
from tuner.errors import ShapewrightError
from tuner.library.package import FILES
from tuner.plain_files import is_folder

if TYPE_CHECKING:
    from shapewright.library import Library

SPIN = "TVM_THREAD_POOL_SPIN_COUNT"
"""How long a thread of TVM's pool waits actively for work. It would take the cores that PyTorch's threads run on."""

_provided: dict[str, Path] = {}
_loaded: dict[str, Library] = {}
_lock = threading.Lock()


def kept_folder() -> Path:
    """Where libraries are kept, each in a folder of its digest."""
    return defaults.data_dir() / "libraries"


def fetched(digest: str, fetch: Callable[[Path], object]) -> Path:
    """The folder that ``fetch`` wrote the library of that digest into: the one where it is kept, if it can be."""
    folder = kept_folder() / digest
    try:
        fetch(folder)
    except OSError:
        # What cannot be kept serves this process; `keep` says so.
        folder = Path(tempfile.mkdtemp(prefix="shapewright-")) / digest
        fetch(folder)
    return folder


def load_library(directory: Path) -> Library:
    """The library in ``directory``, loaded once for each digest. Raises ShapewrightError."""
    os.environ.setdefault(SPIN, "0")
    from shapewright.library import library_in  # noqa: PLC0415 - after the pool's setting

    library = library_in(directory)
    with _lock:
        return _loaded.setdefault(library.digest, library)


def library_of(digest: str) -> Library:
    """The library of that digest: one that is loaded, or one that was kept. Raises ShapewrightError."""
    with _lock:
        library = _loaded.get(digest)
    if library is not None:
        return library
    folder = _provided.get(digest, kept_folder() / digest)
    if not is_folder(folder):
        raise ShapewrightError(
            f"the model needs the library {digest[:12]}, which is neither loaded nor in {kept_folder()}: "
            "load what has it, as in sw.torch.provide(SOURCE), or set SHAPEWRIGHT_DATA_DIR to where it was kept"
        )
    library = load_library(folder)
    if library.digest != digest:
        raise ShapewrightError(f"{folder} holds the library {library.digest[:12]}, not {digest[:12]}: remove it")
    return library


def keep(library: Library) -> None:
    """Keep the files of a loaded library for later processes; where that fails, say so and go on."""
    folder = kept_folder() / library.digest
    if is_folder(folder):
        return
    try:
        files = {
            name: (library.directory / name).read_bytes() for name in FILES if (library.directory / name).is_file()
        }
        defaults.data_dir().mkdir(0o700, parents=True, exist_ok=True)
        write(files, folder)
    except OSError as error:
        warnings.warn(
            f"the library {library.digest[:12]} cannot be kept in {kept_folder()} ({error}): "
            "a model that uses it can be loaded in another process only after sw.torch.provide(SOURCE)",
            stacklevel=2,
        )


def provide(folders: Mapping[str, Path]) -> None:
    """Note where the libraries of these digests lie, for models that are loaded later."""
    with _lock:
        _provided.update(folders)
