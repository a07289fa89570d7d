"""What a program of ``torch.export`` may be called with: structure, types, sizes. Each kind is looked at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export._tree_utils import reorder_kwargs
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_structure

from shapewright.torch.small_sizes import other_shape
from tuner.errors import InvalidInput

MOST_KNOWN = 4096
"""Kinds of inputs that are remembered: a kind for each combination of sizes."""
SCALARS = (bool, int, float, complex, str, type(None), Enum, torch.dtype, torch.device)
TRACED_FROM = 2
"""The least size that PyTorch traces programs for."""
EXPORT_AGAIN = "export the program with a dynamic dim that holds it"
COMPILE = 'torch.compile(model, backend="shapewright"), which takes any model and size'


@dataclass(frozen=True, slots=True)
class Given:
    """An input as it was exported: a tensor, a size, or anything else, which is part of the program.
    ``is_written``: the program writes to it."""

    name: str
    value: Any
    is_written: bool = False

    @property
    def is_passed(self) -> bool:
        """Whether the compiled program takes it."""
        return isinstance(self.value, torch.Tensor | torch.SymInt)


class Inputs:
    """The inputs of ``program``, whose graph is ``module``, compiled under the guards of ``env``. Safe to use from
    several threads."""

    def __init__(
        self, program: ExportedProgram, module: fx.GraphModule, given: Sequence[Given], env: ShapeEnv | None
    ) -> None:
        self._structure, self._module = program.call_spec.in_spec, module
        self._given, self._env, self._ranges = tuple(given), env, program.range_constraints
        # A row of arguments by their places, which need not be flattened.
        self._is_flat = tree_structure(((0,) * len(given), {})) == self._structure
        self._kept = [place for place, each in enumerate(given) if each.is_passed]
        self._are_all_passed = len(self._kept) == len(given)
        self._written = [place for place, each in enumerate(given) if each.is_written]
        self._known: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, as the compiled program takes them. Raises InvalidInput."""
        is_flat = self._is_flat and not kwargs and len(args) == len(self._given)
        flat = list(args) if is_flat else self._flat(args, kwargs)
        kind = tuple(map(_kind_of, flat))
        copied = self._known.get(kind)
        if copied is None:
            copied = tuple(self._checked(flat))
            if len(self._known) < MOST_KNOWN:
                self._known[kind] = copied
        if self._written:
            self._check_memory(flat)
        for place in copied:
            flat[place] = flat[place].contiguous()
        return flat if self._are_all_passed else [flat[place] for place in self._kept]

    def _flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        try:
            flat: list[Any]
            flat, structure = tree_flatten((args, reorder_kwargs(dict(kwargs), self._structure)))
        except ValueError as error:
            raise InvalidInput("inputs", " ".join(str(error).split()), f"as exported: {self._structure}") from None
        if structure != self._structure:
            raise InvalidInput("inputs", f"have the structure {structure}", f"as exported: {self._structure}")
        return flat

    def _checked(self, flat: Sequence[Any]) -> Iterator[int]:
        """The places of tensors that have gaps, or their axes in another order. Raises InvalidInput."""
        sizes: dict[sympy.Symbol, int] = {}
        for place, (given, value) in enumerate(zip(self._given, flat, strict=True)):
            if isinstance(given.value, torch.Tensor):
                self._check_tensor(given, value, sizes)
                if not value.is_contiguous():
                    if given.is_written:
                        raise InvalidInput(given.name, "has gaps, and the program writes to it", ".contiguous()")
                    yield place
            elif isinstance(given.value, torch.SymInt):
                if isinstance(value, bool) or not isinstance(value, int):
                    raise InvalidInput(given.name, f"{value!r} is no size", "an int")
                self._check_size(given.name, given.value, value, sizes)
            elif type(value) is not type(given.value) or _of_scalar(value) != _of_scalar(given.value):
                raise InvalidInput(
                    given.name, f"is {value!r}", f"{given.value!r}, as exported, or export the program again"
                )
        self._check_guards(sizes)
        if any(size < TRACED_FROM for size in sizes.values()):
            self._check_small([flat[place] for place in self._kept], sizes)

    def _check_tensor(self, given: Given, value: Any, sizes: dict[sympy.Symbol, int]) -> None:
        known: torch.Tensor = given.value
        if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
            raise InvalidInput(given.name, f"{type(value).__name__} is no plain tensor", "a torch.Tensor")
        for what in ("dtype", "device", "layout"):
            if getattr(value, what) != getattr(known, what):
                raise InvalidInput(given.name, f"has the {what} {getattr(value, what)}", f"{getattr(known, what)}")
        if value.dim() != known.dim():
            raise InvalidInput(given.name, f"has {value.dim()} dims", f"{known.dim()}: {tuple(known.shape)}")
        for axis, (size, its) in enumerate(zip(known.shape, value.shape, strict=True)):
            self._check_size(f"{given.name}.shape[{axis}]", size, its, sizes)

    def _check_memory(self, flat: Sequence[Any]) -> None:
        """What the program writes to one input nobody reads from another: it was traced so."""
        for place in self._written:
            for other, value in enumerate(flat):
                if other != place and isinstance(value, torch.Tensor) and _overlap(flat[place], value):
                    problem = f"shares memory with {self._given[other].name}, and the program writes to it"
                    raise InvalidInput(self._given[place].name, problem, ".clone()")

    def _check_size(self, name: str, size: int | torch.SymInt, value: int, sizes: dict[sympy.Symbol, int]) -> None:
        expected = self._expression(size).xreplace(_integers(sizes))
        if len(expected.free_symbols) == 1:
            (symbol,) = expected.free_symbols
            sizes[symbol] = its = _solved(expected, symbol, value)
            allowed = self._ranges.get(symbol)
            if allowed is not None and not (its >= 0 and allowed.lower <= its <= allowed.upper):
                raise InvalidInput(name, f"{value} is out of range", _remedy(allowed, expected))
            expected = expected.xreplace(_integers(sizes))
        if expected != value:
            raise InvalidInput(name, f"is {value}", f"{expected}, or {EXPORT_AGAIN}")

    def _check_guards(self, sizes: Mapping[sympy.Symbol, int]) -> None:
        """What was decided while the program was compiled has to hold for these sizes, too."""
        if self._env is None:
            return
        for guard in self._env.guards:
            if self._env.replace(guard.expr).xreplace(_integers(sizes)) == sympy.false:
                text = ", ".join(f"{symbol} = {value}" for symbol, value in sizes.items())
                raise InvalidInput(
                    "inputs", f"sizes {text} do not satisfy {guard.expr}, a guard of the compilation", EXPORT_AGAIN
                )

    def _check_small(self, passed: Sequence[Any], sizes: Mapping[sympy.Symbol, int]) -> None:
        if other := other_shape(self._module, passed, _integers(sizes)):
            text = ", ".join(f"{symbol} = {value}" for symbol, value in sizes.items())
            raise InvalidInput("inputs", f"sizes {text} give another shape than others do at {other}", COMPILE)

    def _expression(self, size: int | torch.SymInt) -> sympy.Expr:
        if isinstance(size, torch.SymInt):
            return self._env.replace(size.node.expr) if self._env is not None else size.node.expr
        return sympy.Integer(size)


def _kind_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return type(value), value.shape, value.stride(), value.dtype, value.device
    # What else there may be is the program's own, which it keeps.
    return type(value), _of_scalar(value) if isinstance(value, SCALARS) else id(value)


def _of_scalar(value: Any) -> Any:
    """What tells a scalar from others: 0.0 from -0.0, and NaN from none but other numbers."""
    return repr(value) if isinstance(value, float) else value


def _integers(sizes: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol: sympy.Integer(value) for symbol, value in sizes.items()}


def _solved(expression: sympy.Expr, symbol: sympy.Symbol, value: int) -> int:
    """Of which size the expression is ``value``; below 0 if of none."""
    if expression == symbol:
        return value
    found = [each for each in sympy.solve(expression - value, symbol) if each.is_Integer]
    return int(found[0]) if found else -1


def _remedy(allowed: Any, expression: sympy.Expr) -> str:
    most = "" if allowed.upper > sys.maxsize else f" to {allowed.upper}"
    symbols = ", ".join(map(str, expression.free_symbols))
    return f"{expression} with {symbols} from {allowed.lower}{most}, or {EXPORT_AGAIN}"


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie in the same memory, gaps between their elements included."""
    if other.layout is not torch.strided or one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    (first, end), (begin, last) = map(_extent, (one, other))
    return first < last and begin < end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the one behind its last."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = tensor.data_ptr()
    return first, first + (elements * tensor.itemsize if tensor.numel() else 0)
