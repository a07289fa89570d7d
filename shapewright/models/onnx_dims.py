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
    """The dims of one file: sizes, expressions over symbols, and names that no variable can have.

    Every symbol is the name of a shape variable. ``places``: by symbol the dims of inputs that have its size.
    """

    def __init__(self, graph: Any) -> None:
        self.places: dict[str, list[Place]] = {}
        self._symbols: dict[str, str] = {}
        self._taken = frozenset().union(*(_symbols(value.type) for value in _values(graph)))

    def input(self, value: Any) -> tuple[Shape | None, str]:
        """Shape and dtype of an input, whose dims have sizes or names."""
        shape, dtype = self.told(value.type)
        for axis, dim in enumerate(shape or ()):
            if dim.constant is None:
                self.places.setdefault(str(dim), []).append((value.name, axis))
        return shape, dtype

    def told(self, kind: Any) -> tuple[Shape | None, str]:
        """Shape and dtype of a value, None where a size is not given."""
        dtype = dtype_of(kind.tensor_type.elem_type)
        if not kind.tensor_type.HasField("shape"):
            return None, dtype
        dims = [self._dim(dim) for dim in kind.tensor_type.shape.dim]
        known = tuple(dim for dim in dims if dim is not None)
        return known if len(known) == len(dims) else None, dtype

    def _dim(self, dim: Any) -> DimExpr | None:
        """A size, the text of an expression, or a name."""
        if dim.HasField("dim_value"):
            return DimExpr.of(int(dim.dim_value)) if 0 <= dim.dim_value <= MAX_DIM else None
        if not dim.dim_param:
            return None
        expression = _parsed(dim.dim_param)
        return self._symbol(dim.dim_param) if expression is None else expression

    def _symbol(self, text: str) -> DimExpr:
        """The symbol of what the file calls by a name that is none of a variable."""
        if text not in self._symbols:
            symbol = f"{_identifier(text)}_{len(self._symbols)}"
            while symbol in self._taken or symbol in self._symbols.values():
                symbol += "_"
            self._symbols[text] = symbol
        return DimExpr.var(self._symbols[text])


def name_dims(graph: Any) -> None:
    """Give each size of an input that is not known a name: inference follows that, and has another one for each value
    otherwise. Some exporters write -1 for what they do not know."""
    for dim in (dim for value in _values(graph) for dim in value.type.tensor_type.shape.dim):
        if not 0 <= dim.dim_value <= MAX_DIM:
            dim.ClearField("dim_value")
    taken = {symbol for value in _values(graph) for symbol in _symbols(value.type)}
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                name = f"{_identifier(value.name)}_{axis}"
                while name in taken:
                    name += "_"
                dim.dim_param = name
                taken.add(name)


def _identifier(text: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in text)[:SYMBOL_LENGTH]
    return kept if kept[:1].isalpha() else f"d_{kept}"


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
