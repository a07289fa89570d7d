"""A library's kernels as an object file, and as a shared library that needs no TVM, from its files. Imports TVM.

The object is compiled from the library's own IR, all kernels and their entry as one module.
Libraries of earlier releases were built so: what is linked of the object must be the very bytes that were verified.
Others are linked from objects of single kernels, and what was compiled as a whole is verified again here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shapewright.checking import Checker
from shapewright.recompiling import ir_of, verify
from tuner.errors import ShapewrightError
from tuner.library.codegen import compiled
from tuner.library.dispatcher import Dispatcher
from tuner.library.machine_code import shared_object
from tuner.library.package import LIBRARY
from tuner.program.language.workload import JsonObject

LINK_S = 120.0
"""The time that a C compiler may take."""


def object_file(files: Mapping[str, bytes], manifest: JsonObject, dispatcher: Dispatcher, path: Path) -> None:
    """Write the kernels of a checked library as an object file. Raises ShapewrightError, NoLinker."""
    compiler()  # before TVM misses it: it links with one, too
    executable = compiled(dispatcher.task, ir_of(files, manifest))
    linked = shared_object(executable, dispatcher.task.known_target)
    if linked != files[LIBRARY]:
        with Checker() as checker:
            verify(checker, dispatcher, linked)
    executable.mod.write_to_file(str(path), "o")


def compiler() -> list[str]:
    """The C compiler: ``CC``, or ``cc``, or ``gcc``. Raises ShapewrightError."""
    named = shlex.split(os.environ.get("CC", ""))
    found = named or [name for name in ("cc", "gcc") if shutil.which(name)][:1]
    if not found or shutil.which(found[0]) is None:
        raise ShapewrightError("no C compiler is on the PATH: apt-get install gcc, or set CC")
    return found


def link(sources: Sequence[Path], include: Path, library: Path, exported: str) -> None:
    """Compile C sources, link them with objects, and export what begins with ``exported``. Raises ShapewrightError."""
    script = library.with_suffix(".map")
    script.write_text(f"{{ global: {exported}; {exported}_*; local: *; }};\n")
    options = [
        "-std=c11",
        "-O2",
        "-fPIC",
        "-shared",
        "-pthread",
        f"-I{include}",
        "-Wl,--no-undefined",
        "-Wl,--build-id=none",
    ]
    # Never unloaded: its threads run in it.
    options += [f"-Wl,--version-script={script}", f"-Wl,-soname,{library.name}", "-Wl,-z,nodelete,-z,noexecstack"]
    command = [*compiler(), *options, "-o", str(library), *map(str, sources), "-lm"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LINK_S)
    script.unlink()
    if done.returncode:
        raise ShapewrightError(f"{command[0]} could not make {library.name}: {done.stderr.strip()[-2000:]}")
