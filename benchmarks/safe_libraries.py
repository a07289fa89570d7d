"""Libraries of kernels that are right and not fast, for whoever looks at results alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shapewright.download import write
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.schedule import default_kernel


def write_libraries(tasks: Iterable[SearchTask], folder: Path) -> None:
    """One for each task, for this machine, in a folder of its own."""
    for task in (each.on(native()) for each in tasks):
        library = build_library(Dispatcher(task, (default_kernel(task),), 0, Leaf(0)), None)
        write(library.files, folder / task.workload.key)
