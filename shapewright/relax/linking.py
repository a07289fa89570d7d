"""Tuned libraries as modules that TVM links into a build, each under a name of its own. Imports TVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shapewright.recompiling import ir_of, verify
from tuner.errors import ShapewrightError
from tuner.library.codegen import compiled
from tuner.library.machine_code import linked, object_code
from tuner.library.package import ENTRY, check_files, dispatcher_of, read_files

if TYPE_CHECKING:
    from shapewright.checking import Checker
    from shapewright.library import Library

PREFIX = "__tvm_ffi_"
"""What TVM puts before the name of a function that can be called from outside."""


@dataclass(frozen=True, slots=True)
class Linkable:
    """``module`` exports ``name``, which takes operands as the library's entry does."""

    name: str
    module: Any


_linkables: dict[str, Linkable] = {}
"""A cache by digest: a model is built again more often than its libraries change."""


def linkable(library: Library, checker: Checker) -> Linkable:
    """The library compiled under a name of its own, and verified on this machine. Raises ShapewrightError."""
    if library.digest not in _linkables:
        _linkables[library.digest] = _made(library, checker)
    return _linkables[library.digest]


def _made(library: Library, checker: Checker) -> Linkable:
    files, digest = read_files(library.directory), library.digest
    manifest = check_files(files)
    if manifest["digest"] != digest:
        raise ShapewrightError(f"{library.directory} has another library than the one that was loaded from it")
    dispatcher = dispatcher_of(files, manifest, library.directory)
    name, module = f"shapewright_{digest[:32]}", ir_of(files, manifest)
    entry = module.get_global_var(ENTRY)
    module.update_func(entry, module[entry].with_attr("global_symbol", name))
    executable = compiled(dispatcher.task, module)
    # The device that verifies calls what is exported as ENTRY.
    alias = {PREFIX + ENTRY: PREFIX + name}
    try:
        binary = linked([object_code(executable)], dispatcher.task.known_target, alias)
    except (RuntimeError, ValueError) as error:
        raise ShapewrightError(f"it could not be linked ({error}): apt-get install gcc, or set CC") from error
    verify(checker, dispatcher, binary)
    return Linkable(name, executable.mod)
