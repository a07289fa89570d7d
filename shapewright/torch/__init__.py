"""Tuned libraries in models of PyTorch.

    import shapewright as sw

    model = torch.compile(model, backend="shapewright", dynamic=True, options={"source": "libraries"})
    model = sw.torch.compile_exported(torch.export.export(model, inputs, dynamic_shapes=...), "libraries")
    model = sw.torch.unpacked(model)                       # of quantize_dynamic: layers that compilers read
    model = sw.torch.optimize(model, source="libraries")   # nothing is compiled: modules are swapped
    print(sw.torch.report(model))

A saved program that calls tuned libraries needs ``import shapewright.torch`` before it is loaded.
"""

from __future__ import annotations

from shapewright.sources.directory import provide
from shapewright.torch import op as _op  # noqa: F401 - registers torch.ops.shapewright.call
from shapewright.torch.exported import compile_exported
from shapewright.torch.optimizing import optimize
from shapewright.torch.packs import forget
from shapewright.torch.reports import Report, report
from shapewright.torch.unpacking import unpacked

__all__ = ["Report", "compile_exported", "forget", "optimize", "provide", "report", "unpacked"]
