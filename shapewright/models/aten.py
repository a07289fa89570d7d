"""The normal form of PyTorch's graphs: ATen's operators, functional, the composite ones decomposed.

``torch.export`` and ``torch.compile`` come to the same graph in it, so that the workloads that ``sw.extract`` finds are
those that a compiled model asks for. Functionalisation by AOTAutograd knows what is written in place from schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shapewright.models.einsum import spelled_einsum
from shapewright.models.fast_paths import fast_paths
from shapewright.models.spelled import spelled


def decomposed(program: Any) -> Any:
    """A ``torch.export.ExportedProgram`` in the normal form."""
    with _products_spelled_out(program.graph_module):
        return program.run_decompositions({**_composites(), **fused()})


@contextmanager
def _products_spelled_out(module: Any) -> Iterator[None]:
    """A context in which a graph calls ``spelled_einsum``: a table of decompositions takes composite operators only if
    PyTorch knew of them when it was asked first."""
    import torch  # noqa: PLC0415

    opaque = torch.ops.aten.einsum.default
    changed = module.graph.find_nodes(op="call_function", target=opaque)
    try:
        for node in changed:
            node.target = spelled_einsum
        yield
    finally:
        for node in changed:
            node.target = opaque


def fused() -> dict[Any, Callable[..., Any]]:
    """The decompositions of operators that do the work of several."""
    return {**fast_paths(), **spelled()}


def _composites() -> dict[Any, Callable[..., Any]]:
    """The decompositions of operators that are composite, which AOTAutograd always carries out; no others."""
    import torch  # noqa: PLC0415 - a second and hundreds of megabytes, for those who have a model of it

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and has_kernel(op.name(), "CompositeImplicitAutograd")
    }
