"""Processes with a stand-in for NVIDIA's driver (tests/tuner/library/gpu/driver.c): no GPU, no Triton is needed."""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parent / "tuner" / "library" / "gpu"
DRIVER = "libcuda.so.1"
COMPILE_S = 120.0


def compile_driver(folder: Path) -> None:
    """Put the stand-in into a folder, for those who have it in LD_LIBRARY_PATH, or load it first."""
    line = ["gcc", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}"]
    line += [str(SOURCES / name) for name in ("driver.c", "running.c")]
    subprocess.run([*line, "-o", str(folder / DRIVER)], check=True, timeout=COMPILE_S)


@contextmanager
def process_with_gpus(folder: Path, start: Callable[[str], object]) -> Iterator[ProcessPoolExecutor]:
    """A process that has called ``start`` with the path of the stand-in."""
    context = multiprocessing.get_context("spawn")
    library = str(folder / DRIVER)
    with ProcessPoolExecutor(1, mp_context=context, initializer=start, initargs=(library,)) as pool:
        yield pool
