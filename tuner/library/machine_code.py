"""From TVM's modules to shared objects for a target, also for one of another architecture than this machine's.

Kernels call nothing that a linker would have to find: a loader gives them TVM's runtime and the C library. So code for
another architecture needs a linker that knows it, and neither a compiler nor a C library for it. Imports TVM.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.support.cc import create_shared

from tuner.errors import ShapewrightError
from tuner.program.cpus import SPOKEN, TRIPLES, features_of
from tuner.program.target import Target

Link = Callable[..., None]
LLVM_FEATURES = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "asimddp": "+dotprod",
    "i8mm": "+i8mm",
}
"""Features that rules ask for, which a CPU may have beyond those of its ``mcpu``."""


class NoLinker(ShapewrightError):
    """Nothing here links for the architecture of a target."""


def tvm_target(target: Target) -> Any:
    """The target as TVM describes it."""
    description = {"kind": target.kind, "mcpu": target.mcpu, "num-cores": target.hardware.cores}
    if _is_foreign(target):
        description["mtriple"] = TRIPLES[target.architecture]
    known = features_of(target.mcpu)
    further = [LLVM_FEATURES[name] for name in target.hardware.features if name in LLVM_FEATURES and name not in known]
    return tvm.target.Target(description | ({"mattr": further} if further else {}))


def shared_object(executable: Any, target: Target) -> bytes:
    """The bytes of a shared object with the code of what ``tvm.compile`` returned. Raises NoLinker."""
    link = _link_with(linker_for(target.architecture)) if _is_foreign(target) else None
    with tempfile.TemporaryDirectory(prefix="shapewright-build-") as folder:
        path = Path(folder) / "library.so"
        executable.export_library(str(path), fcompile=link)
        return path.read_bytes()


def object_code(executable: Any) -> bytes:
    """The bytes of an object file with the code of what ``tvm.compile`` returned."""
    with tempfile.TemporaryDirectory(prefix="shapewright-build-") as folder:
        path = Path(folder) / "code.o"
        executable.mod.write_to_file(str(path))
        return path.read_bytes()


def linked(objects: Sequence[bytes], target: Target, aliases: Mapping[str, str]) -> bytes:
    """The bytes of a shared object of ``objects``. ``aliases``: by a name that one of them uses, what it means.

    What an object calls is that of this library, whatever others in the process are called. Raises NoLinker.
    """
    options = ["-Bsymbolic", *(f"--defsym={name}={symbol}" for name, symbol in aliases.items())]
    with tempfile.TemporaryDirectory(prefix="shapewright-link-") as folder:
        paths = [Path(folder) / f"{number}.o" for number in range(len(objects))]
        for path, content in zip(paths, objects, strict=True):
            path.write_bytes(content)
        output, names = Path(folder) / "library.so", [str(path) for path in paths]
        if _is_foreign(target):
            _link_with(linker_for(target.architecture), options)(str(output), names)
        else:
            create_shared(str(output), names, [f"-Wl,{option}" for option in options])
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


def _link_with(linker: str, options: Sequence[str] = ()) -> Link:
    """As ``export_library`` calls it: makes a shared object of object files."""

    def link(output: str, objects: Sequence[str], **_: object) -> None:
        command = [linker, "-shared", *options, "-o", output, *objects]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{linker} failed: {done.stderr.strip()[-2000:]}")

    return link
