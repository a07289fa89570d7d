"""Shapewright: tuned kernels for tensor programs whose shapes are dynamic.

import shapewright as sw

T = sw.ShapeVar("T", range(1, 129))
task = sw.SearchTask(sw.ops.dense, args=dict(m=16 * T, n=2304, k=768), shape_vars=(T,))
library = sw.tune(task, trials=256).build()
library(x, library.pack(w), out)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shapewright import ops
from tuner import __version__ as __version__
from tuner.errors import InvalidInput, ShapewrightError
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload, WorkloadInstance

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.client_async import AsyncClient
    from shapewright.library import Library
    from shapewright.loading import load
    from shapewright.models.extract import extract
    from shapewright.packed import PackedWeight
    from shapewright.progress import Progress
    from shapewright.session import TuneResult
    from shapewright.session import tune_here as tune
    from shapewright.snapshot.reading import Snapshot

__all__ = [
    "AsyncClient",
    "Client",
    "InvalidInput",
    "Library",
    "PackedWeight",
    "Progress",
    "SearchTask",
    "ShapeVar",
    "ShapewrightError",
    "Snapshot",
    "TuneResult",
    "Workload",
    "WorkloadInstance",
    "extract",
    "load",
    "ops",
    "tune",
]

_LAZY = {
    "AsyncClient": ("shapewright.client_async", "AsyncClient"),
    "Client": ("shapewright.client", "Client"),
    "Library": ("shapewright.library", "Library"),
    "PackedWeight": ("shapewright.packed", "PackedWeight"),
    "Progress": ("shapewright.progress", "Progress"),
    "Snapshot": ("shapewright.snapshot.reading", "Snapshot"),
    "TuneResult": ("shapewright.session", "TuneResult"),
    "extract": ("shapewright.models.extract", "extract"),
    "load": ("shapewright.loading", "load"),
    "relax": ("shapewright.relax", ""),
    "torch": ("shapewright.torch", ""),
    "tune": ("shapewright.session", "tune_here"),
}


_EXTRAS = {"TuneResult": "tune", "extract": "models", "relax": "tune", "torch": "models", "tune": "tune"}


def __getattr__(name: str) -> Any:
    """Parts with heavier dependencies are imported at their first use: a build script need not pay for a client."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module, attribute = _LAZY[name]
    try:
        value = getattr(import_module(module), attribute) if attribute else import_module(module)
    except ModuleNotFoundError as error:
        from shapewright import extras  # noqa: PLC0415

        raise extras.of_error(error, _EXTRAS.get(name)) or error from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Also what is imported at its first use."""
    return sorted({*globals(), *_LAZY} - {"TYPE_CHECKING", "Any", "annotations"})
