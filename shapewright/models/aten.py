"""The normal form of PyTorch's graphs: ATen's operators, functional, the composite ones decomposed.

``torch.export`` and ``torch.compile`` come to the same graph in it, so that the workloads that ``sw.extract`` finds are
those that a compiled model asks for. Functionalisation by AOTAutograd knows what is written in place from schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapewright.models.einsum import spelled_einsum
from shapewright.models.experts import grouped
from shapewright.models.fast_paths import calling, fast_paths
from shapewright.models.spelled import spelled


def decomposed(program: Any) -> Any:
    """A ``torch.export.ExportedProgram`` in the normal form."""
    import torch  # noqa: PLC0415

    # No decomposition: of composite operators a table takes those alone that PyTorch knew of when it was asked first.
    with calling(program.graph_module, {torch.ops.aten.einsum.default: spelled_einsum}):
        return program.run_decompositions({**_composites(), **fused()})


def fused() -> dict[Any, Callable[..., Any]]:
    """The decompositions of operators that do the work of several."""
    return {**fast_paths(), **spelled(), **grouped()}


def _composites() -> dict[Any, Callable[..., Any]]:
    """The decompositions of operators that are composite, which AOTAutograd always carries out; no others."""
    import torch  # noqa: PLC0415 - a second and hundreds of megabytes, for those who have a model of it

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and has_kernel(op.name(), "CompositeImplicitAutograd")
    }
