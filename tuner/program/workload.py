"""Workloads: an operator whose dims are expressions over shape variables, and the instances that occur of it."""

from __future__ import annotations

import hashlib
import json
import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.dims import MAX_SOURCE_LENGTH, DimExpr, DimLike
from tuner.program.ops import EPILOGUES, Op, Operand, op_named

JsonObject = dict[str, Any]
MAX_POINTS = 1_000_000
"""The most values that one shape variable may take."""


@dataclass(frozen=True, slots=True)
class ShapeVar:
    """A size that is known only at run time, and the values it can take: ``ShapeVar("T", range(1, 129))``."""

    name: str
    values: range | tuple[int, ...]

    def __init__(self, name: str, values: Iterable[int]) -> None:
        if not _is_name(name):
            raise InvalidInput(
                "shape_vars", f"{name!r} is not a name", "a letter, then letters, digits or _; not weight"
            )
        field = f"shape_vars.{name}"
        if isinstance(values, range) and values.step == 1:
            kept: range | tuple[int, ...] = values
        else:
            kept = _sizes(field, values)
        # len() of a range cannot count beyond 63 bits.
        count = max(0, kept.stop - kept.start) if isinstance(kept, range) else len(kept)
        if count == 0:
            raise InvalidInput(field, "the range is empty", "min must not be above max; values must not be empty")
        if kept[0] < 0:
            raise InvalidInput(field, f"the smallest value is {kept[0]}", "extents are 0 or more")
        if count > MAX_POINTS:
            raise InvalidInput(field, f"{count} values", f"at most {MAX_POINTS}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", kept)

    @property
    def min(self) -> int:
        return self.values[0]

    @property
    def max(self) -> int:
        return self.values[-1]

    @property
    def expr(self) -> DimExpr:
        return DimExpr.var(self.name)

    def __add__(self, other: DimLike) -> DimExpr:
        return self.expr + other

    def __sub__(self, other: DimLike) -> DimExpr:
        return self.expr - other

    def __rsub__(self, other: DimLike) -> DimExpr:
        return DimExpr.of(other) - self.expr

    def __mul__(self, other: DimLike) -> DimExpr:
        return self.expr * other

    def __floordiv__(self, divisor: int) -> DimExpr:
        return self.expr // divisor

    def __mod__(self, divisor: int) -> DimExpr:
        return self.expr % divisor

    __radd__ = __add__
    __rmul__ = __mul__

    def to_json(self) -> JsonObject:
        if isinstance(self.values, range):
            return {"min": self.min, "max": self.max}
        return {"values": list(self.values)}


def _sizes(field: str, values: object) -> tuple[int, ...]:
    """``values`` sorted, each once. Raises InvalidInput unless they are integers."""
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
    if found is None or any(isinstance(value, bool) or not isinstance(value, int) for value in found):
        raise InvalidInput(field, f"{values!r} are not sizes", "integers, as in range(1, 129) or [5, 24, 43]")
    return tuple(sorted(set(found)))


@dataclass(frozen=True, slots=True)
class WorkloadInstance:
    """One shape that occurs: a value for each shape variable (sorted by name), and how much it weighs."""

    values: tuple[tuple[str, int], ...]
    weight: float = 1.0

    @staticmethod
    def of(values: Mapping[str, int], weight: float = 1.0) -> WorkloadInstance:
        return WorkloadInstance(tuple(sorted(values.items())), float(weight))

    @property
    def shape(self) -> dict[str, int]:
        return dict(self.values)

    def to_json(self) -> JsonObject:
        return {**self.shape, "weight": self.weight}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WorkloadInstance:
        """Read what ``to_json`` wrote."""
        values = dict(data)
        return WorkloadInstance.of(values, values.pop("weight", 1.0))

    def __str__(self) -> str:
        return format_shape(self.shape)


def _is_name(name: object) -> bool:
    """Whether dims, instances and URLs can tell the name from everything else that they hold."""
    plain = isinstance(name, str) and name.isascii() and name.isidentifier()
    return plain and not keyword.iskeyword(str(name)) and name != "weight"


def _written_short(expr: DimExpr) -> DimExpr:
    """``expr``, once it is sure that its text can be read again."""
    if (length := len(str(expr))) > MAX_SOURCE_LENGTH:
        raise InvalidInput("", f"is {length} characters long when multiplied out", f"at most {MAX_SOURCE_LENGTH}")
    return expr


def format_shape(values: Mapping[str, int]) -> str:
    """``T=37,S=4``: how a shape is written in URLs, tables and logs."""
    return ",".join(f"{name}={values[name]}" for name in sorted(values))


@dataclass(frozen=True, slots=True, repr=False)
class Workload:
    """An operator with its dims, dtype and fused epilogue. Its ``key`` names it everywhere, on every target."""

    op: Op
    args: tuple[tuple[str, DimExpr], ...]
    dtype: str = "float32"
    epilogue: tuple[str, ...] = ()

    @staticmethod
    def of(
        op: Op | str, args: Mapping[str, DimLike], dtype: object = "float32", epilogue: Sequence[str] = ()
    ) -> Workload:
        """Check and build a workload. Raises InvalidInput naming ``op``, ``args.X``, ``dtype`` or ``epilogue``."""
        known = op_named(op)
        if not isinstance(args, Mapping) or set(args) != set(known.args):
            given = ", ".join(map(str, args)) if isinstance(args, Mapping) else repr(args)
            raise InvalidInput("args", f"{known.name} got {given or 'nothing'}", f"needs: {', '.join(known.args)}")
        dims = []
        for name in known.args:
            try:
                dims.append((name, _written_short(DimExpr.of(args[name]))))
            except InvalidInput as error:
                raise InvalidInput(f"args.{name}", error.problem, error.remedy) from None
        if dtype not in known.dtypes:
            one_of = f"one of: {', '.join(known.dtypes)}"
            raise InvalidInput("dtype", f"{dtype!r} is not supported by {known.name}", one_of)
        listed = isinstance(epilogue, Sequence) and not isinstance(epilogue, str)
        if not listed or not all(isinstance(name, str) for name in epilogue):
            raise InvalidInput("epilogue", f"{epilogue!r} is not a list of names", f"any of: {', '.join(EPILOGUES)}")
        for name in epilogue:
            if name not in EPILOGUES:
                raise InvalidInput("epilogue", f"{name!r} is not known", f"any of: {', '.join(EPILOGUES)}")
        repeated = {name for name in epilogue if EPILOGUES[name].operand and epilogue.count(name) > 1}
        if repeated:
            raise InvalidInput("epilogue", f"{', '.join(sorted(repeated))} given twice", "each operand once")
        return Workload(known, tuple(dims), str(dtype), tuple(epilogue))

    @property
    def exprs(self) -> dict[str, DimExpr]:
        """The dim expression of each axis, by its name."""
        return dict(self.args)

    @property
    def variables(self) -> frozenset[str]:
        return frozenset().union(*(expr.variables for _, expr in self.args))

    @property
    def dynamic_axes(self) -> dict[str, str]:
        """Each axis whose extent is not constant -> the dim it reads: the first axis with the same expression.

        In a square matmul (m = n = k = S) all three axes read the one dim ``m``.
        """
        first: dict[DimExpr, str] = {}
        for name, expr in self.args:
            if expr.constant is None:
                first.setdefault(expr, name)
        return {name: first[expr] for name, expr in self.args if expr.constant is None}

    @property
    def dynamic_dims(self) -> tuple[str, ...]:
        """The distinct dynamic dims, in the order of the operator's args: what a dispatcher looks at."""
        return tuple(dict.fromkeys(self.dynamic_axes.values()))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All tensors of a call in order: the two inputs, the epilogue's operands, the output."""
        contraction = self.op.contraction
        extra = [EPILOGUES[name].operand_for(contraction.output) for name in self.epilogue]
        return (contraction.left, contraction.right, *(op for op in extra if op is not None), contraction.output)

    def extents(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The extent of every axis for these values of the shape variables."""
        return {name: expr.evaluate(shape) for name, expr in self.args}

    def dims(self, shape: Mapping[str, int]) -> dict[str, int]:
        """The values of the distinct dynamic dims for these values of the shape variables."""
        extents = self.extents(shape)
        return {name: extents[name] for name in self.dynamic_dims}

    def extents_of_dims(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The extent of every axis for these values of the distinct dynamic dims."""
        axes = self.dynamic_axes
        return {name: dims[axes[name]] if name in axes else int(expr.constant or 0) for name, expr in self.args}

    def flops(self, shape: Mapping[str, int]) -> int:
        """Floating-point operations of the contraction: two for each product of extents."""
        return 2 * math.prod(self.extents(shape).values())

    def flops_of_dims(self, dims: Mapping[str, int]) -> int:
        """The same for these values of the distinct dynamic dims."""
        return 2 * math.prod(self.extents_of_dims(dims).values())

    @property
    def key(self) -> str:
        """``dense-0f3a...``: the operator and a digest of everything that changes what is computed."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return f"{self.op.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        return f"<Workload {self}>"

    def to_json(self) -> JsonObject:
        return {
            "op": self.op.name,
            "args": {name: expr.constant if expr.constant is not None else str(expr) for name, expr in self.args},
            "dtype": self.dtype,
            "epilogue": list(self.epilogue),
        }

    @staticmethod
    def from_json(data: object) -> Workload:
        """Read a job file's ``workload``. Raises InvalidInput with fields relative to it."""
        if not isinstance(data, Mapping):
            raise InvalidInput("", f"{data!r} is not a mapping", "give op, args and dtype")
        fields = ("op", "args", "dtype", "epilogue", "count", "name")
        unknown = sorted(set(map(str, data)) - set(fields))
        if unknown:
            raise InvalidInput(unknown[0], "is not a field of a workload", f"fields: {', '.join(fields)}")
        if "op" not in data:
            raise InvalidInput("op", "is missing", "name an operator of the catalogue")
        return Workload.of(data["op"], data.get("args", {}), data.get("dtype", "float32"), data.get("epilogue") or ())

    def __str__(self) -> str:
        args = ", ".join(f"{name}={expr}" for name, expr in self.args)
        return " + ".join([f"{self.op.name}({args})", *self.epilogue])
