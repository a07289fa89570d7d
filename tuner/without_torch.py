"""TVM without PyTorch, in processes that are Shapewright's own.

TVM imports PyTorch wherever that is installed, in order to take its tensors as arguments. A device, a builder or a
worker never sees one, and would pay for it with a second of CPU and 200 MB in each process. Processes with VARIABLE in
their environment, which their children inherit, import TVM alone; PyTorch can be imported later. They look for garbage
less often, too: at Python's own interval that takes a tenth of the time of importing a compiler or a service.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

VARIABLE = "SHAPEWRIGHT_TVM_WITHOUT_TORCH"
ENVIRONMENT = {VARIABLE: "1"}
COLLECT_AFTER = 20_000
"""Allocations less deallocations before the youngest objects are looked through; Python's default is some hundreds."""


class _Finder:
    """Refuses to import PyTorch while TVM is being imported."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name == "torch" and any(map(_is_being_imported, ("tvm_ffi", "tvm"))):
            raise ModuleNotFoundError(f"TVM is imported without PyTorch ({VARIABLE})", name=name)
        return None


def _collect_less_often() -> None:
    youngest, *older = gc.get_threshold()
    gc.set_threshold(max(youngest, COLLECT_AFTER), *older)


def install() -> None:
    """Have this process, and those that it starts, import TVM without PyTorch from now on."""
    os.environ.update(ENVIRONMENT)
    _collect_less_often()
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def install_if_asked() -> None:
    """``install`` where the environment has VARIABLE."""
    if os.environ.get(VARIABLE):
        install()


def _is_being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))
