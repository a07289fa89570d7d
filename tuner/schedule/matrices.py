"""Weights as matrices for GPUs, packed where they are: by NumPy, PyTorch, or whatever speaks the Array API."""

from __future__ import annotations

import sys
from typing import Any

from tuner.errors import InvalidInput
from tuner.schedule.layout import MatrixLayout


def pack_matrix(layout: MatrixLayout, array: Any) -> Any:
    """``array`` as a contiguous matrix. Raises InvalidInput for an array whose library does not say how to permute."""
    library = _library_of(array)
    moved = _permuted(library, library.reshape(array, layout.dims), layout.order)
    return _contiguous(library, library.reshape(moved, layout.matrix))


def _library_of(array: Any) -> Any:
    """The module whose functions take the array."""
    namespace = getattr(array, "__array_namespace__", None)
    if namespace is not None:
        return namespace()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    raise InvalidInput("", f"{type(array).__name__} cannot be packed", "a tensor of PyTorch, or of the Array API")


def _permuted(library: Any, array: Any, order: tuple[int, ...]) -> Any:
    permute = getattr(library, "permute_dims", None) or library.permute
    return permute(array, order)


def _contiguous(library: Any, matrix: Any) -> Any:
    """A copy in memory of its own, row after row."""
    result = library.empty(tuple(matrix.shape), dtype=matrix.dtype, device=matrix.device)
    result[...] = matrix
    return result
