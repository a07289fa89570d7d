"""Shared objects of TVM's modules for a target, also for one of another architecture than this machine's.

Kernels call nothing that a linker would have to find: a loader gives them TVM's runtime and the C library. So code for
another architecture needs a linker that knows it, and neither a compiler nor a C library for it. Imports TVM.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm.support.cc import get_cc

from tuner.errors import MachineFailed, ShapewrightError
from tuner.program.target import Target
from tuner.program.target.cpu_names import SPOKEN, TRIPLES, features_of

LLVM_FEATURES = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "amx_tile": "+amx-tile",
    "amx_bf16": "+amx-bf16",
    "amx_int8": "+amx-int8",
    "amx_fp16": "+amx-fp16",
    "asimddp": "+dotprod",
    "i8mm": "+i8mm",
}
"""Features that rules need, which a CPU may have beyond those of its ``mcpu``."""
UNNAMED = frozenset({
    "sse4a", "xop", "fma4", "tbm",
    "avxvnni", "avxvnniint8", "avxvnniint16", "avxifma", "avxneconvert", "avx10.1", "avx10.2",
    "egpr", "ndd", "nf", "ccmp", "cf", "ppx", "push2pop2", "zu",
    "cssc", "mops",
})  # fmt: skip
"""Features that LLVM selects instructions of wherever an ``mcpu`` has them, and that no target names. A library is
refused only for features that its target names, so its code goes without these."""

LINK_TRIES = 2
"""A linker that fails is started again: what it lacked for a moment, memory above all, is no fault of the code."""
ROOM_BYTES = 1 << 16
"""The least room that linking needs beside twice its objects: a lack of it says why it failed."""


class NoLinker(MachineFailed):
    """Nothing here links for the architecture of a target."""


class LinkFailed(ShapewrightError):
    """A linker that links other code refuses these objects."""


def tvm_target(target: Target, level: int | None = None) -> Any:
    """The target as TVM describes it. ``level``: how much LLVM optimises, from 0 to 3; None for as much as it can."""
    cpu = {"kind": target.kind, "mcpu": target.mcpu}
    if _is_foreign(target):
        cpu["mtriple"] = TRIPLES[target.architecture]
    known = features_of(target.mcpu)
    changed = [LLVM_FEATURES[name] for name in target.hardware.features if name in LLVM_FEATURES and name not in known]
    changed += _without_unnamed(**cpu)
    more = {"mattr": changed} if changed else {}
    optimised = {} if level is None else {"opt-level": level}
    return tvm.target.Target({**cpu, "num-cores": target.hardware.cores, **more, **optimised})


@cache
def _without_unnamed(**cpu: str) -> tuple[str, ...]:
    features = map(str, tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(cpu)))
    return tuple(f"-{name}" for name in sorted(UNNAMED.intersection(features)))


def shared_object(executable: Any, target: Target) -> bytes:
    """The bytes of a shared object with the code of what ``tvm.compile`` returned. Raises as ``linked`` does."""
    return linked([object_code(executable)], target, {})


def object_code(executable: Any) -> bytes:
    """The bytes of an object file with the code of what ``tvm.compile`` returned."""
    # In memory: LLVM ends the whole process where a disk is full.
    with os.fdopen(os.memfd_create("code.o"), "rb") as file:
        executable.mod.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def linked(objects: Sequence[bytes], target: Target, aliases: Mapping[str, str]) -> bytes:
    """The bytes of a shared object of ``objects``. ``aliases``: by a name that one of them uses, what it means.

    What an object calls is that of this library, whatever others in the process are called. Raises LinkFailed, and
    MachineFailed or OSError where no code could be linked.
    """
    options = ["-Bsymbolic", *(f"--defsym={name}={symbol}" for name, symbol in aliases.items())]
    linker = _linker(target)
    with tempfile.TemporaryDirectory(prefix="shapewright-link-") as folder:
        paths = [Path(folder) / f"{number}.o" for number in range(len(objects))]
        for path, content in zip(paths, objects, strict=True):
            path.write_bytes(content)
        output = Path(folder) / "library.so"
        _link(linker, options, output, paths)
        return output.read_bytes()


def linker_for(architecture: str) -> str:
    """The path of a linker for another architecture: GNU's for that one, or LLVM's for all. Raises NoLinker."""
    names = (f"{TRIPLES[architecture]}-ld", "ld.lld")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        package = f"binutils-{TRIPLES[architecture].replace('_', '-')}"
        raise NoLinker(
            f"no linker for {SPOKEN[architecture]} is on the PATH, neither {names[0]} nor {names[1]}: "
            f"install one, on Debian and Ubuntu by apt-get install {package}, or lld"
        )
    return found


def _is_foreign(target: Target) -> bool:
    return target.architecture != platform.machine()


@dataclass(frozen=True)
class _Linker:
    """What links for a target. ``prefix``: what an option of it begins with."""

    command: tuple[str, ...]
    prefix: str = ""
    libraries: tuple[str, ...] = ()

    def line(self, options: Iterable[str], output: Path, objects: Iterable[Path]) -> list[str]:
        own = (self.prefix + option for option in options)
        return [*self.command, *own, "-o", str(output), *map(str, objects), *self.libraries]


def _linker(target: Target) -> _Linker:
    """Raises NoLinker."""
    if _is_foreign(target):
        return _Linker((linker_for(target.architecture), "-shared"))
    # A compiler's driver adds libraries of its own: to read that of C++ takes longer than all the rest.
    return _Linker((c_compiler(), "-shared", "-fPIC", "-nostdlib"), "-Wl,", ("-lm", "-lc", "-lgcc"))


def c_compiler() -> str:
    """The path of a C compiler of this machine. Raises NoLinker."""
    compiler = get_cc()
    if compiler is None:
        raise NoLinker("no C compiler is on the PATH: apt-get install gcc, or set CXX")
    return str(compiler)


def _link(linker: _Linker, options: Sequence[str], output: Path, objects: Sequence[Path]) -> None:
    """Raises LinkFailed, MachineFailed."""
    line = linker.line(options, output, objects)
    for _ in range(LINK_TRIES):
        problem = _problem_of(line)
        if problem is None:
            return
    why = _problem_of_machine(linker, output, objects)
    if why is not None:
        raise MachineFailed(f"nothing can be linked here: {why}")
    raise LinkFailed(problem)


def _problem_of(line: Sequence[str]) -> str | None:
    """Why a linker did not do it; None if it did. Raises MachineFailed if it cannot be started, or was killed."""
    try:
        done = subprocess.run(line, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise MachineFailed(f"{line[0]} cannot be started: {error.strerror}") from error
    if not done.returncode:
        return None
    said = done.stdout.decode(errors="replace").strip()[-2000:]
    return f"{line[0]} failed (exit status {done.returncode}): {said}"


def _problem_of_machine(linker: _Linker, output: Path, objects: Sequence[Path]) -> str | None:
    """Why ``linker`` would fail here over any code: there is no room, or it cannot even link the first object without
    the others. None if it would not."""
    try:
        with output.open("wb") as file:
            file.write(bytes(ROOM_BYTES + 2 * sum(path.stat().st_size for path in objects)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return str(error)
    return _problem_of(linker.line((), output, objects[:1]))
