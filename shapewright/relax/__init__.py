"""Tuned libraries in modules of Relax. Imports TVM.

import shapewright as sw

module = sw.relax.ApplyTuned("libraries")(module)
print(sw.relax.report())
executable = tvm.compile(module, "llvm")       # kernels are linked into what it exports
"""

from __future__ import annotations

from shapewright.relax.applying import ApplyTuned, report
from shapewright.sources.reports import Report

__all__ = ["ApplyTuned", "Report", "report"]
