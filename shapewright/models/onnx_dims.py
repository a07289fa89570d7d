"""Sizes and dtypes as an ONNX file declares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shapewright.models.graph import Shape
from shapewright.models.model import Place
from tuner.errors import InvalidInput
from tuner.program.language.dims import MAX_DIM, DimExpr, parse_dim
from tuner.program.language.shape_vars import is_name

SYMBOL_LENGTH = 30
"""Characters of a name that become part of a symbol."""


class Dims:
    """The dims of one file: sizes, expressions over symbols, names that no variable can have, and those not given.

    Every symbol is the name of a shape variable. ``places``: by symbol the dims of inputs that have its size.
    """

    def __init__(self, graph: Any) -> None:
        self.places: dict[str, list[Place]] = {}
        self._symbols: dict[tuple[str, bool], str] = {}
        self._taken = frozenset().union(*(_symbols(value.type) for value in _values(graph)))

    def input(self, value: Any) -> tuple[Shape | None, str]:
        """Shape and dtype of an input, whose sizes that are not given are symbols of their own."""
        if not value.type.tensor_type.HasField("shape"):
            return None, dtype_of(value.type.tensor_type.elem_type)
        shape = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            known = self._dim(dim)
            shape.append(self._symbol(f"{value.name}_{axis}", is_shared=False) if known is None else known)
            if shape[-1].constant is None:
                self.places.setdefault(str(shape[-1]), []).append((value.name, axis))
        return tuple(shape), dtype_of(value.type.tensor_type.elem_type)

    def told(self, kind: Any) -> tuple[Shape | None, str]:
        """Shape and dtype of another value, None where a size is not given."""
        dtype = dtype_of(kind.tensor_type.elem_type)
        if not kind.tensor_type.HasField("shape"):
            return None, dtype
        dims = [self._dim(dim) for dim in kind.tensor_type.shape.dim]
        known = tuple(dim for dim in dims if dim is not None)
        return known if len(known) == len(dims) else None, dtype

    def _dim(self, dim: Any) -> DimExpr | None:
        """A size, the text of an expression, or a name. Some exporters write -1 for what they do not know."""
        if dim.HasField("dim_value"):
            return DimExpr.of(int(dim.dim_value)) if 0 <= dim.dim_value <= MAX_DIM else None
        if not dim.dim_param:
            return None
        expression = _parsed(dim.dim_param)
        return self._symbol(dim.dim_param) if expression is None else expression

    def _symbol(self, text: str, is_shared: bool = True) -> DimExpr:
        """The symbol of a name; ``is_shared``: of what the file calls by that name."""
        key = text, is_shared
        if key not in self._symbols:
            kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in text)[:SYMBOL_LENGTH]
            symbol = kept if kept[:1].isalpha() else f"d_{kept}"
            if is_shared:
                symbol = f"{symbol}_{len(self._symbols)}"
            while symbol in self._taken or symbol in self._symbols.values():
                symbol += "_"
            self._symbols[key] = symbol
        return DimExpr.var(self._symbols[key])


def _values(graph: Any) -> Iterator[Any]:
    yield from (*graph.input, *graph.value_info, *graph.output)


def _symbols(kind: Any) -> frozenset[str]:
    parsed = (_parsed(dim.dim_param) for dim in kind.tensor_type.shape.dim)
    return frozenset().union(*(each.variables for each in parsed if each is not None))


def _parsed(text: str) -> DimExpr | None:
    """An expression over names that shape variables can have; a number is the name of a size that is not known."""
    try:
        expression = parse_dim(text)
    except InvalidInput:
        return None
    return expression if expression.constant is None and all(map(is_name, expression.variables)) else None


def dtype_of(number: Any) -> str:
    """NumPy's name of an element type, empty where there is none."""
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(number).name)
    except (KeyError, ValueError, TypeError):
        return ""
