"""One step of the loop over k: the tiles of both sides, and what adds their products to the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Axis, Binary, Const, Expr, Read, reads, walk
from tuner.schedule.access import stride
from tuner.schedule.gpu.module import Descriptor
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.tiling import SHORT, multiplied_type, stored_type
from tuner.schedule.gpu.writer import Value, cast, spread
from tuner.schedule.product.match.factors import dims_of
from tuner.schedule.rules.quantized.four_bits import CODE, Code

if TYPE_CHECKING:
    from tuner.schedule.gpu.product import ProductEmitter

SAFE_WARPS = 4
"""Warps up to which what a descriptor brings may be converted in registers. With eight, Triton 3.6 lets the next tile
overwrite it before all warps have read it: one H200 gave wrong products (docs/decisions/0071)."""
ALIGNED = 16
"""Bytes that strides of a tensor descriptor are multiples of."""


@dataclass(frozen=True)
class Part:
    """A part of a tile: where its rows and columns start, their numbers, which are inside, and the name of its sums."""

    start: Mapping[str, str]
    axes: Mapping[str, Value]
    masks: Mapping[int, str]
    sums: str


class Step:
    """What a step of k loads and adds."""

    def __init__(self, emitter: ProductEmitter, parts: Sequence[Part]) -> None:
        self.emitter, self.product, self.parts, self.part = emitter, emitter.product, parts, parts[0]
        self.writer, self.tiling = emitter.writer, emitter.tiling
        self.k_first = f"step * {emitter.block['k']}"
        self.dtype, self.shifted = multiplied_type(self.product, self.tiling.dot), list[str]()
        self.numbers: Value | None = None

    def write(self) -> None:
        """The body of the loop."""
        product = self.product
        sides = {"m": product.left, "n": product.right}
        if not self.tiling.dot:
            self._one_by_one(sides)
            return
        rows, columns = self.emitter.rows, self.emitter.columns
        left = self._side(sides[rows], rows, {rows: 0, "k": 1})
        for part in self.parts:
            self.part = part
            right = self._side(sides[columns], columns, {"k": 0, columns: 1})
            self._multiply(left, right)

    def _multiply(self, left: str, right: str) -> None:
        """Add the products of two tiles to the sums of a part."""
        product, tiling, block, sums = self.product, self.tiling, self.emitter.block, self.part.sums
        is_float = product.total == "float32"
        options = f', input_precision="{tiling.precision}"' if self.dtype == "float32" else ""
        options += "" if is_float else ", out_dtype=tl.int32"
        for tile, other, axis in ((left, right, 0), (right, left, 1)):
            if tile in self.shifted:
                # Bytes without a sign are 128 less as signed ones.
                self.writer.line(f"{sums} += 128 * tl.sum({other}.to(tl.int32), axis={axis}, keep_dims=True)")
        if product.late is None or self.emitter.is_late_at_end:
            self.writer.line(f"{sums} = tl.dot({left}, {right}, {sums}{options})")
            return
        if product.late_steps % block["k"]:
            raise ValueError(f"block_k={block['k']} does not divide the {product.late_steps} steps of a group")
        axes = self.emitter.all_axes({**self.part.axes, "k": self.writer.bind(Value(self.k_first, "int32"))})
        late = self.emitter.scope(axes, self.part.masks).value(product.late, "float32")
        self.writer.line(f"part = tl.dot({left}, {right}{options})")
        self.writer.line(f"{sums} += part * {late.text}")

    # -- one side -----------------------------------------------------------------------------------------------------
    def _side(self, expr: Expr, role: str, dims: Mapping[str, int]) -> str:
        """A tile of one side, of the dtype that is multiplied, zero past the end of k."""
        descriptor = self._descriptor(expr, role)
        shape = [self.emitter.block[name] for name, _ in sorted(dims.items(), key=lambda item: item[1])]
        if descriptor is not None:
            name, has_k_last = descriptor
            place = [self.part.start[role], self.k_first]
            text = f"{name}.load([{', '.join(place if has_k_last else reversed(place))}])"
            tile = Value(text, stored_type(self.product, expr), frozenset({0, 1}))
            if has_k_last != (dims["k"] == 1):
                tile = Value(f"{tile.text}.T", tile.dtype, tile.dims)
            return self._as_multiplied(self.writer.bind(tile, "tile"), expr, is_rounded=tile.dtype == "float32")
        value = self._magic(expr, role, dims) or self._tile(expr, role, dims, 2)
        if value.dims != {0, 1}:
            value = Value(f"tl.broadcast_to({value.text}, ({shape[0]}, {shape[1]}))", value.dtype, frozenset({0, 1}))
        return self._as_multiplied(self.writer.bind(value, "tile"), expr)

    def _magic(self, expr: Expr, role: str, dims: Mapping[str, int]) -> Value | None:
        """Small integers as float16, by bits: as the last ones of a float whose exponent makes them units. A conversion
        takes many times as long."""
        if self.dtype != "float16" or not isinstance(expr, Read):
            return None
        past = "" if self.emitter.is_whole("k") else "k"
        if expr == CODE and self.product.code is not None:
            tile = self._tile(expr, role, dims, 2)
            assert self.numbers is not None
            bits, offset = self.numbers.text, 1024 - self.product.code.offset
            text = f"((({bits}) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - {offset}.0)"
            if past:
                inside = spread(f"({self.k_first} + tl.arange(0, {self.emitter.block['k']}))", dims["k"], 2)
                text = f"tl.where({inside} < {self.emitter.size('k')}, {text}, 0.0)"
            return Value(f"({text}).to(tl.float16)", "float16", tile.dims)
        if self.emitter.whole.tensors[expr.tensor].dtype != "int8":
            return None
        tile = self._tile(expr, role, dims, 2)
        bits = f"((tl.cast({tile.text}, tl.int16) & 255) ^ 0x6480)"
        return Value(f"({bits}.to(tl.float16, bitcast=True) - 1152.0).to(tl.float16)", "float16", tile.dims)

    def _tile(self, expr: Expr, role: str, dims: Mapping[str, int], rank: int) -> Value:
        axes, masks = self._places(expr, role, dims, rank)
        if isinstance(expr, Read) and expr.tensor in self.emitter.packs:
            return self._packed(expr.tensor, role, axes, [masks[dim] for dim in sorted(masks)])
        scope = self.emitter.scope(self.emitter.all_axes(axes), masks)
        if self.product.code is not None and CODE in walk(expr):
            scope.known[CODE] = self._numbers(scope, self.product.code, role, dims, rank)
        value = scope.element(expr) if isinstance(expr, Read) and expr != CODE else scope.value(expr)
        past = masks.get(dims["k"])
        is_clean = isinstance(expr, Read) and not dict(self.product.workload.padding).get(expr.tensor)
        if past is not None and (not is_clean or dims["k"] not in value.dims):
            value = Value(f"tl.where({past}, {value.text}, 0)", value.dtype, value.dims | {dims["k"]})
        return value

    def _packed(self, tensor: str, role: str, axes: Mapping[str, Value], conditions: list[str]) -> Value:
        """A tile of a constant that is packed as a matrix."""
        names = (role, "k") if self.tiling.pack == "nk" else ("k", role)
        place = f"{axes[names[0]].text} * {self.emitter.size(names[1])} + {axes[names[1]].text}"
        mask = f", mask={' & '.join(conditions)}, other=0" if conditions else ""
        dims = axes[role].dims | axes["k"].dims
        return Value(f"tl.load(p_{tensor} + {place}{mask})", self.emitter.whole.tensors[tensor].dtype, dims)

    def _places(
        self, expr: Expr, role: str, dims: Mapping[str, int], rank: int
    ) -> tuple[dict[str, Value], dict[int, str]]:
        """The values of a side's group and of k, and masks. Rows past the end are others again, which are not stored;
        they are masked only where neighbours in memory are rows."""
        emitter, axes, masks = self.emitter, dict[str, Value](), dict[int, str]()
        k = self.writer.bind(Value(f"{self.k_first} + tl.arange(0, {emitter.block['k']})", "int32"), "k")
        axes["k"] = Value(spread(k.text, dims["k"], rank), "int32", frozenset({dims["k"]}))
        if not emitter.is_whole("k"):
            masks[dims["k"]] = f"({axes['k'].text} < {emitter.size('k')})"
        name = self.part.axes[role].text.partition("[")[0]
        is_grouped = self.product.index is not None and role == "m"
        if not is_grouped and not emitter.is_whole(role):
            if self._lies_along(expr, role):
                masks[dims[role]] = f"({spread(name, dims[role], rank)} < {emitter.size(role)})"
            else:
                name = self.writer.bind(Value(f"{name} % {emitter.size(role)}", "int32"), name).text
        axes[role] = Value(spread(name, dims[role], rank), "int32", frozenset({dims[role]}))
        return axes, masks

    def _lies_along(self, expr: Expr, role: str) -> bool:
        if isinstance(expr, Read) and expr.tensor in self.emitter.packs:
            return self.tiling.pack == "kn"
        inner = self.product.parts[self.emitter.names[role][-1]].axis
        return any(stride(read, inner) == 1 for read in reads(expr) if read != CODE)

    def _numbers(self, scope: Scope, code: Code, role: str, dims: Mapping[str, int], rank: int) -> Value:
        """Numbers of four bits: of the byte that two steps of k share, the half that is asked for."""
        k, n = (self.product.parts[self.emitter.names[role][0]].axis for role in ("k", "n"))
        if rank == 2:
            return self._halves(scope, code, role, dims)
        byte = Read(code.tensor, (Axis(n), Binary("//", Axis(k), Const(2))))
        loaded = scope.element(byte)
        odd = "1 - " if code.high_first else ""
        shift = f"4 * ({odd}{scope.axes[k].text} % 2)"
        text = f"((tl.cast({loaded.text}, tl.int32) >> ({shift})) & 15)"
        text = f"({text} ^ {code.flipped})" if code.flipped else text
        dtype = DTYPES[code.dtype].compute
        return cast(self.writer.bind(Value(f"({text} + {code.offset})", "int32", loaded.dims), "number"), dtype)

    def _halves(self, scope: Scope, code: Code, role: str, dims: Mapping[str, int]) -> Value:
        """The same of a tile: each byte is loaded once, and gives two neighbours along k."""
        emitter, block = self.emitter, self.emitter.block
        k, n = (self.product.parts[emitter.names[each][0]].axis for each in ("k", role))
        half = f"step * {block['k'] // 2} + tl.arange(0, {block['k'] // 2})"
        bytes_of_k = self.writer.bind(Value(half, "int32"), "half")
        own = emitter.axes_of(role, Value(scope.axes[n].text.split("[")[0], "int32"))[n]
        axes = {n: Value(spread(own.text, 0, 2), "int32", frozenset({0}))}
        axes[k] = Value(spread(bytes_of_k.text, 1, 2), "int32", frozenset({1}))
        masks = {}
        if not emitter.is_whole("k"):
            masks[1] = f"({axes[k].text} < ({emitter.size('k')} + 1) // 2)"
        place = scope.with_axes(axes, masks)
        loaded = place.element(Read(code.tensor, (Axis(n), Axis(k))))
        first = self.writer.bind(Value(f"tl.cast({loaded.text}, tl.int32)", "int32", loaded.dims), "bytes")
        parts = [f"({first.text} & 15)", f"(({first.text} >> 4) & 15)"]
        low, high = reversed(parts) if code.high_first else parts
        text = f"tl.reshape(tl.join({low}, {high}), ({block[role]}, {block['k']}))"
        text = f"tl.trans({text})" if dims["k"] == 0 else text
        text = f"({text} ^ {code.flipped})" if code.flipped else text
        self.numbers = self.writer.bind(Value(text, "int32", frozenset({0, 1})), "bits")
        number = Value(f"({self.numbers.text} + {code.offset})", "int32", frozenset({0, 1}))
        return cast(number, DTYPES[code.dtype].compute)

    def _is_rounded(self, expr: Expr) -> bool:
        """Whether elements are rounded to TF32: short ones need not be."""
        is_tf32 = self.dtype == "float32" and self.tiling.precision == "tf32"
        return is_tf32 and stored_type(self.product, expr) not in SHORT

    def _as_multiplied(self, value: Value, expr: Expr, is_rounded: bool = False) -> str:
        """A tile as it is multiplied. ``is_rounded``: the hardware has rounded it on the way, where it has to be."""
        if self.dtype == "int8" and value.dtype == "uint8":
            moved = Value(f"({value.text} ^ 128).to(tl.int8, bitcast=True)", "int8", value.dims)
            self.shifted.append(self.writer.bind(moved, "tile").text)
            return self.shifted[-1]
        value = cast(value, self.dtype)
        if self._is_rounded(expr) and not is_rounded:
            value = self.writer.bind(Value(f"as_tf32({value.text})", "float32", value.dims), "tile")
        return self.writer.bind(value, "tile").text

    # -- without tensor cores -----------------------------------------------------------------------------------------
    def _one_by_one(self, sides: Mapping[str, Expr]) -> None:
        dims = {self.emitter.rows: 0, self.emitter.columns: 1, "k": 2}
        total = self.product.total
        values = [cast(self._tile(expr, role, dims, 3), total) for role, expr in sides.items()]
        late = ""
        if self.product.late is not None and not self.emitter.is_late_at_end:
            axes, masks = dict[str, Value](), dict[int, str]()
            for role in sides:
                own, inside = self._places(sides[role], role, dims, 3)
                axes, masks = {**axes, **own}, {**masks, **inside}
            scope = self.emitter.scope(self.emitter.all_axes(axes), masks)
            late = f" * {scope.value(self.product.late, total).text}"
        self.writer.line(f"sums += {values[0].text} * {values[1].text}{late}")

    # -- tensor descriptors -------------------------------------------------------------------------------------------
    def _descriptor(self, expr: Expr, role: str) -> tuple[str, bool] | None:
        """The descriptor that brings a side's tiles, and whether k is its last dim; None where pointers must."""
        if not self.tiling.descriptors or self.product.index is not None or self.product.outer:
            return None
        if not isinstance(expr, Read) or expr == CODE or dict(self.product.workload.padding).get(expr.tensor):
            return None
        if self.tiling.num_warps > SAFE_WARPS and stored_type(self.product, expr) != self.dtype:
            return None
        dims = dims_of(self.product.workload, self.product.parts, expr)
        if expr.tensor in self.emitter.packs:
            own, k = self.emitter.names[role], self.product.k
            dims = ((*own, *k) if self.tiling.pack == "nk" else (*k, *own),)
        names, own, k = [name for dim in dims or () for name in dim], self.emitter.names[role], self.product.k
        if tuple(names) not in ((*own, *k), (*k, *own)):
            return None
        has_k_last = tuple(names) == (*own, *k)
        groups = (role, "k") if has_k_last else ("k", role)
        width = self.emitter.size(groups[1])
        tensor = self.emitter.whole.tensors[expr.tensor]
        if (
            not width.isdecimal()
            or int(width) * DTYPES[tensor.dtype].bytes % ALIGNED
            or expr.tensor in self.emitter.whole.program.stage
        ):
            return None
        block = (self.emitter.block[groups[0]], self.emitter.block[groups[1]])
        name = f"d_{expr.tensor}"
        shape = (self.emitter.host(groups[0]), self.emitter.host(groups[1]))
        is_rounded = self._is_rounded(expr) and tensor.dtype == "float32"
        found = Descriptor(name, expr.tensor, tensor.dtype, shape, block, is_rounded)
        if found not in self.emitter.descriptors:
            self.emitter.descriptors.append(found)
        return name, has_k_last
