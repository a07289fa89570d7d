"""Values of a program's expressions at the elements of a tile, as Triton text.

A scope knows the value of each axis: a scalar, or a vector along one dim of the tile. An element of a tensor is loaded
at the tile that its indices make, masked where these are past the ends, so that a view, a window, a gathered row or a
weight that is computed needs no code of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.program.language import expr as ast
from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES, promoted
from tuner.program.language.indices import index_dim, shifts_inside
from tuner.program.language.notation import Stage
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Tensor, Workload
from tuner.schedule.gpu.functions import ANY, FLOAT32, FLOAT64, TYPES, identity
from tuner.schedule.gpu.writer import Value, Writer, affine, cast, joined, literal

SMALL = 64
"""The largest factor of an axis in a value that is computed in 32 bits."""


@dataclass
class Scope:
    """Where expressions are evaluated. ``axes``: the value of each axis; ``masks``: by dim of the tile, which of its
    elements are inside, where not all are; ``known``: values that are there already; ``symbols``: the text of each.
    ``is_wide``: offsets need 64 bits; ``tensors``: those of the workload, where it is a part of another."""

    writer: Writer
    workload: Workload
    axes: Mapping[str, Value]
    masks: Mapping[int, str]
    is_wide: bool = False
    known: dict[ast.Expr, Value] = field(default_factory=dict)
    types: ElementTypes | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    sizes: Mapping[str, DimExpr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = self.tensors or self.workload.tensors
        self.sizes = {**self.workload.sizes, **self.sizes}
        self.types = self.types or self.workload.element_types
        self.symbols = {name: Value(f"s_{name}", "int32") for name in self.workload.symbols}

    def with_axes(self, axes: Mapping[str, Value], masks: Mapping[int, str] | None = None) -> Scope:
        """A scope with other values of some axes, where nothing is known."""
        return replace(self, axes={**self.axes, **axes}, masks=self.masks if masks is None else masks, known={})

    # -- expressions --------------------------------------------------------------------------------------------------
    def value(self, expr: ast.Expr, dtype: str | None = None) -> Value:
        """An expression, as ``dtype`` (a type of computation) if that is given."""
        assert self.types is not None
        own = self.types.type_of(expr)
        wanted = dtype or own
        if isinstance(expr, ast.Const):
            return literal(expr.value, wanted)
        if expr not in self.known:
            self.known[expr] = self.writer.bind(self._value(expr, own))
        value = self.known[expr]
        if value.dtype is None and wanted.startswith("float") and not value.text.startswith("float("):
            return Value(f"({value.text} * 1.0)", None)
        return cast(value, wanted)

    def _value(self, expr: ast.Expr, dtype: str) -> Value:
        match expr:
            case ast.Axis(name=name):
                return self.axes[name]
            case ast.Extent(name=name):
                return affine(self.sizes[name], self.symbols)
            case ast.Read():
                return cast(self.element(expr), DTYPES[self.dtype_of(expr.tensor)].compute)
            case ast.Cast(operand=operand, dtype=narrow):
                return self._cast(self.value(operand), narrow)
            case ast.Neg(operand=operand):
                value = self.value(operand, dtype)
                return replace(value, text=f"(-{value.text})")
            case ast.Binary():
                return self._binary(expr, dtype)
            case ast.Call():
                return self._call(expr, dtype)
        raise TypeError(f"{type(expr).__name__} has no code")

    def _cast(self, value: Value, dtype: str) -> Value:
        if value.dtype is None:
            value = Value(f"tl.full([], {value.text}, {TYPES['float32' if '.' in value.text else 'int32']})", "float32")
        if dtype in ("int8", "uint8", "int16") and value.dtype not in ("int32", "int64"):
            # Wraps around, where a direct conversion would saturate.
            value = cast(value, "int32")
        return cast(cast(value, dtype), DTYPES[dtype].compute)

    def _binary(self, expr: ast.Binary, dtype: str) -> Value:
        assert self.types is not None
        sign, operands = expr.operator, (expr.left, expr.right)
        if sign in ast.COMPARISONS:
            own = [self.types.type_of(operand) for operand in operands]
            dtype = promoted("int32" if each == "bool" else each for each in own)
        is_small = all(map(_is_small, operands)) if sign in ast.COMPARISONS else _is_small(expr)
        if dtype == "int64" and is_small and not self.is_wide:
            dtype = "int32"
        left, right = (self.value(operand, dtype) for operand in operands)
        result = "bool" if sign in ast.COMPARISONS else None if left.dtype is right.dtype is None else dtype
        dims = joined(left, right)
        if sign == "/" and dtype == "float32" and result is not None:
            left = left if left.dtype else Value(f"tl.full([], {left.text}, tl.float32)", dtype)
            if right.dtype and right.dims < left.dims:
                # Once for what shares the divisor; references allow for it.
                inverse = self.writer.bind(Value(f"tl.div_rn(1.0, {right.text})", dtype, right.dims), "inverse")
                return Value(f"({left.text} * {inverse.text})", result, dims)
            return Value(f"tl.div_rn({left.text}, {right.text})", result, dims)
        if sign in ("//", "%") and result is not None:
            return Value(f"{'floor_div' if sign == '//' else 'floor_mod'}({left.text}, {right.text})", result, dims)
        if sign in ("<<", ">>") and result is not None and not shifts_inside(expr.right, DTYPES[dtype].bits):
            return self._shifted(sign, self.writer.bind(left), self.writer.bind(right), dtype)
        return Value(f"({left.text} {sign} {right.text})", result, dims)

    def _shifted(self, sign: str, left: Value, right: Value, dtype: str) -> Value:
        """A shift by any number: past the number of bits nothing but the sign is left."""
        last = DTYPES[dtype].bits - 1
        inside, past = f"({right.text} & {last})", "0" if sign == "<<" else f"({left.text} >> {last})"
        text = f"tl.where(({right.text} & {~last}) == 0, {left.text} {sign} {inside}, {past})"
        return Value(text, dtype, joined(left, right))

    def _call(self, expr: ast.Call, dtype: str) -> Value:
        if expr.function == "where":
            condition = self.value(expr.args[0], "bool")
            branches = [self.value(arg, dtype) for arg in expr.args[1:]]
            if all(branch.dtype is None for branch in branches):
                branches[0] = Value(f"tl.full([], {branches[0].text}, {TYPES[dtype]})", dtype)
            chosen = ", ".join(value.text for value in (condition, *branches))
            return Value(f"tl.where({chosen})", dtype, joined(condition, *branches))
        operands = [self.value(arg, dtype) for arg in expr.args]
        if all(value.dtype is None for value in operands):
            operands[0] = Value(f"tl.full([], {operands[0].text}, {TYPES[dtype]})", dtype)
        if expr.function in ("floor", "round") and not dtype.startswith("float"):
            return operands[0]
        if expr.function == "abs" and dtype == "bool":
            return operands[0]
        table = ANY if expr.function in ANY else FLOAT64 if dtype == "float64" else FLOAT32
        texts = [self.writer.bind(value).text for value in operands]
        return Value(table[expr.function].format(*texts), dtype, joined(*operands))

    # -- elements -----------------------------------------------------------------------------------------------------
    def dtype_of(self, tensor: str) -> str:
        """The dtype of a tensor's elements in memory."""
        assert self.types is not None
        return self.types.of[tensor]

    def element(self, read: ast.Read) -> Value:
        """An element as it is in memory; nothing is touched outside the tensor or the tile."""
        if read in self.known:
            return self.known[read]
        indices = [self.index(read, position) for position in range(len(read.indices))]
        dims, padding = joined(*indices), dict(self.workload.padding).get(read.tensor)
        conditions = [self.masks[dim] for dim in sorted(dims) if dim in self.masks]
        if padding is not None:
            sizes = self.tensors[read.tensor].dims
            for own, index, size in zip(read.indices, indices, sizes, strict=True):
                if isinstance(own, ast.Axis) and self.sizes.get(own.name) == size:
                    continue
                conditions += [f"({index.text} >= 0)", f"({index.text} < {affine(size, self.symbols).text})"]
        place = self.address(read.tensor, indices)
        dtype = self.dtype_of(read.tensor)
        if not conditions:
            return self.writer.bind(Value(f"tl.load({place})", dtype, dims), read.tensor)
        other = literal(padding or 0, DTYPES[dtype].compute).text
        text = f"tl.load({place}, mask={' & '.join(conditions)}, other={other})"
        return self.writer.bind(Value(text, dtype, dims), read.tensor)

    def index(self, read: ast.Read, position: int) -> Value:
        """One index of a read: an element of a tensor is clamped."""
        index = read.indices[position]
        if isinstance(index, ast.Read):
            size = affine(self.tensors[read.tensor].dims[position], self.symbols).text
            inner = cast(self.element(index), "int32")
            text = f"tl.maximum(tl.minimum({inner.text}, {size} - 1), 0)"
            return self.writer.bind(Value(text, "int32", inner.dims), "index")
        dim = index_dim(index)
        assert dim is not None
        extents = {f"extent({name})": affine(size, self.symbols) for name, size in self.sizes.items()}
        return self.writer.bind(affine(dim, {**extents, **self.axes}), "index")

    def address(self, tensor: str, indices: list[Value]) -> str:
        """Where an element of a row-major tensor stands."""
        stride, terms = DimExpr.of(1), list[Value]()
        for index, size in reversed(list(zip(indices, self.tensors[tensor].dims, strict=True))):
            step = affine(stride, self.symbols)
            wide = cast(index, "int64") if self.is_wide and index.dtype else index
            text = wide.text if step.text == "1" else f"{wide.text} * {step.text}"
            if index.text != "0":
                terms.append(Value(text, wide.dtype, index.dims))
            stride = stride * size
        # What is the same in all of the tile goes to the pointer first.
        terms.sort(key=lambda term: len(term.dims))
        return " + ".join([f"p_{tensor}", *(term.text for term in terms)])

    def store(self, stage: Stage, value: Value, masks: Mapping[int, str], shape: Sequence[int]) -> None:
        """Write what a stage computes; ``shape``: of the tile."""
        indices = [self.axes[axis] for axis in stage.axes]
        place, dims = self.address(stage.tensor, indices), joined(*indices)
        value = stored(value, self.dtype_of(stage.tensor))
        if value.dims - dims:
            raise ValueError(f"{stage.tensor} varies along fewer dims than its value")
        if dims:
            full = f"({', '.join(str(size if dim in dims else 1) for dim, size in enumerate(shape))},)"
            place = f"tl.broadcast_to({place}, {full})"
            value = replace(value, text=f"tl.broadcast_to({value.text}, {full})")
        conditions = [masks[dim] for dim in sorted(dims) if dim in masks]
        mask = f", mask={' & '.join(conditions)}" if conditions else ""
        self.writer.line(f"tl.store({place}, {value.text}{mask})")

    def or_nothing(self, stage: Stage, value: Value, count: str) -> Value:
        """The ``value`` of a reduction over ``count`` elements: of none, what there is in a tensor of its dtype."""
        dtype, source, reducer = self.dtype_of(stage.tensor), str(value.dtype), str(stage.reducer)
        nothing = identity(reducer, dtype)
        if count.isdecimal() or nothing == identity(reducer, source):
            return value
        wide = cast(value, promoted([source, dtype]))
        return replace(wide, text=f"tl.where({count} > 0, {wide.text}, {nothing})")

    def passed_through(self, stage: Stage, value: Value) -> Value:
        """What later stages read of a stage that has this value: rounded as its tensor is."""
        dtype = self.dtype_of(stage.tensor)
        kept = self.writer.bind(cast(stored(value, dtype), DTYPES[dtype].compute), stage.tensor)
        self.known[ast.Read(stage.tensor, tuple(map(ast.Axis, stage.axes)))] = kept
        return kept


def stored(value: Value, dtype: str) -> Value:
    """A value in a register as memory holds it."""
    if value.dtype is None:
        value = Value(f"tl.full([], {value.text}, {TYPES[DTYPES[dtype].compute]})", DTYPES[dtype].compute)
    if dtype in ("int8", "uint8", "int16") and value.dtype not in ("int32", "int64"):
        value = cast(value, "int32")
    return cast(value, dtype)


def _is_small(expr: ast.Expr) -> bool:
    """Whether an integer of axes and extents stays within 32 bits where every extent is far within them."""
    match expr:
        case ast.Axis() | ast.Extent():
            return True
        case ast.Const(value=int() as value):
            return abs(value) <= 2**24
        case ast.Binary(operator="+" | "-" | "//" | "%", left=left, right=right):
            return _is_small(left) and _is_small(right)
        case ast.Binary(operator="*", left=left, right=ast.Const(value=int() as value)):
            return abs(value) <= SMALL and _is_small(left)
        case ast.Binary(operator="*", left=ast.Const(value=int() as value), right=right):
            return abs(value) <= SMALL and _is_small(right)
        case ast.Neg(operand=operand):
            return _is_small(operand)
    return False
