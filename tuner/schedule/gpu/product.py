"""A contraction as one Triton kernel, or two: tiles of results, a loop over k, and what follows the sums.

``split_k`` shares write partial sums, which a second kernel adds in their order, so that results are the same in every
run. ``swap`` makes rows of the product the columns of a tile: few rows then fill the narrow side of an instruction.
Without ``dot`` products are added one by one: for few rows, and for types that tensor cores do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Expr
from tuner.schedule.gpu import operand
from tuner.schedule.gpu.contraction import Contraction
from tuner.schedule.gpu.flat import function
from tuner.schedule.gpu.functions import TYPES
from tuner.schedule.gpu.grouped import find_group, sorting
from tuner.schedule.gpu.module import Descriptor, Function, Launch, Scratch
from tuner.schedule.gpu.packing import packs_of
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.tiling import Tiling, fitted
from tuner.schedule.gpu.writer import Value, Writer, affine, dim_text, spread
from tuner.schedule.product.match.factors import Part

PARTIAL, ENDS, ORDER = "partial_sums", "ends_of_groups", "rows_by_group"
ADDED = (32, 64)
"""The tile in which shares are added, if the product takes one as large."""


class ProductEmitter:
    """Writes the kernels of one contraction. ``name``: what the functions are called by; ``is_wide``: offsets need 64
    bits."""

    def __init__(self, product: Contraction, tiling: Tiling, name: str, is_wide: bool = False) -> None:
        product, tiling = fitted(product, tiling)
        self.product, self.tiling, self.name, self.is_wide = product, tiling, name, is_wide
        # Scratch memory is of one contraction of a program.
        self.partial, self.order, self.ends = (f"{what}_{name}" for what in (PARTIAL, ORDER, ENDS))
        self.whole = product.whole or product.workload
        self.symbols = {symbol: f"s_{symbol}" for symbol in self.whole.symbols}
        self.block = {"m": tiling.block_m, "n": tiling.block_n, "k": tiling.block_k}
        self.width = dict(self.block)
        self.names = {"m": product.m, "n": product.n, "k": product.k, "b": product.outer}
        self.rows, self.columns = ("n", "m") if tiling.swap else ("m", "n")
        self.width[self.columns] *= tiling.parts
        self.writer = Writer()
        self.descriptors: list[Descriptor] = []
        self.packs = {pack.tensor: pack for pack in packs_of(product, tiling)}

    # -- launches -----------------------------------------------------------------------------------------------------
    def launches(self) -> tuple[list[Launch], list[Scratch]]:
        """The kernels in the order of their launches, and the memory that they need besides operands."""
        tiling, product, launches, scratch = self.tiling, self.product, list[Launch](), list[Scratch]()
        if product.index is not None:
            m = product.parts[product.m[0]].axis
            names = (f"{self.name}_order", self.order, self.ends)
            launches.append(sorting(self.whole, product.index, m, product.groups, names, self.size("m")))
            rows = self.host("m")
            scratch += [Scratch(self.order, "int32", rows), Scratch(self.ends, "int32", str(product.groups))]
        tiles = f"({self._tiles_on_host()})"
        batch = self.host("b")
        split = tiling.split_k
        main = self._function(self.name, self._body)
        grid = (f"{tiles} * {batch}", str(split)) if split > 1 else (f"{tiles} * {batch}",)
        launches.append(Launch(main, grid, tiling.num_warps, tiling.num_stages))
        if split > 1:
            size = f"{split} * {batch} * {self.host('m')} * {self.host('n')}"
            scratch.append(Scratch(self.partial, product.total, size))
            adding = replace(tiling, block_m=ADDED[0], block_n=ADDED[1], swap=False, split_k=1, parts=1)
            other = ProductEmitter(product, adding, f"{self.name}_added", self.is_wide)
            other.partial, other.order, other.ends = self.partial, self.order, self.ends
            function = other._function(other.name, lambda: other._added(split))
            launches.append(Launch(function, (f"({other._tiles_on_host()}) * {batch}",)))
        return launches, scratch

    def host(self, role: str) -> str:
        """The extent of a group as the host computes it."""
        parts = [self.product.parts[name].extent for name in self.names[role]]
        return " * ".join(f"max({dim_text(part, self.symbols, is_host=True)}, 0)" for part in parts) or "1"

    def _tiles_on_host(self) -> str:
        more = f" + {self.product.groups}" if self.product.index is not None else ""
        rows = f"cdiv({self.host('m')}, {self.width['m']}){more}"
        return f"({rows}) * cdiv({self.host('n')}, {self.width['n']})"

    def _function(self, name: str, write: Callable[[], None]) -> Function:
        write()
        made = function(self.whole, name, self.writer, (self.partial, self.order, self.ends))
        return replace(made, descriptors=tuple(self.descriptors))

    # -- the main kernel ----------------------------------------------------------------------------------------------
    def _body(self) -> None:
        writer, tiling, product = self.writer, self.tiling, self.product
        with self._tile() as (start, axes, masks):
            rows, columns = self.block[self.rows], self.block[self.columns]
            total = TYPES[product.total]
            rank = f"({rows}, {columns})" if tiling.dot else f"({rows}, {columns}, {self.block['k']})"
            parts = [operand.Part(start, axes, masks, "sums"), *self._further_parts(start, axes, masks)]
            for part in parts:
                writer.line(f"{part.sums} = tl.zeros({rank}, {total})")
            steps = f"tl.cdiv({self.size('k')}, {self.block['k']})"
            if tiling.split_k > 1:
                writer.line(f"steps = tl.cdiv({steps}, {tiling.split_k})")
                writer.line("first_step = tl.program_id(1) * steps")
                writer.line(f"last_step = tl.minimum(first_step + steps, {steps})")
                header = "for step in range(first_step, last_step):"
            else:
                header = f"for step in range(0, {steps}):"
            with writer.block(header):
                operand.Step(self, parts).write()
            if not tiling.dot:
                writer.line("sums = tl.sum(sums, axis=2)")
            for part in parts:
                sums = Value(part.sums, product.total, frozenset({0, 1}))
                scope = self.scope(self._own(part.axes, {self.rows: 0, self.columns: 1}), part.masks)
                if tiling.split_k > 1:
                    self._store_partial(sums, part.axes, part.masks)
                else:
                    self._finish(scope, self._with_late(scope, sums), part.masks)

    def _further_parts(
        self, start: Mapping[str, str], axes: Mapping[str, Value], masks: Mapping[int, str]
    ) -> Iterator[operand.Part]:
        """The parts of a tile behind the first: its columns go on."""
        role = self.columns
        for number in range(1, self.tiling.parts):
            first = f"({start[role]} + {number * self.block[role]})"
            name = f"columns_of_{number}"
            self.writer.line(f"{name} = {first} + {self._range(role)}")
            at = Value(spread(name, 1, 2), "int32", frozenset({1}))
            inside = {} if self.is_whole(role) else {1: f"({at.text} < {self.size(role)})"}
            rest = {dim: mask for dim, mask in masks.items() if dim != 1}
            yield operand.Part({**start, role: first}, {**axes, role: at}, {**rest, **inside}, f"sums_{number}")

    def _with_late(self, scope: Scope, sums: Value) -> Value:
        """The sums times a factor that all of k shares."""
        if self.product.late is None or not self.is_late_at_end:
            return sums
        k = {self.product.parts[name].axis: Value("0", None) for name in self.product.k}
        late = scope.with_axes(k).value(self.product.late, "float32")
        return self.writer.bind(Value(f"{sums.text} * {late.text}", "float32", sums.dims))

    @property
    def is_late_at_end(self) -> bool:
        """Whether all steps of k share the late factor."""
        sizes = [self.product.parts[name].extent.constant or 0 for name in self.product.k]
        return self.product.late_steps >= sizes[0]

    def _finish(self, scope: Scope, sums: Value, masks: Mapping[int, str]) -> None:
        """What follows the sums, and the stores of what a call gives out."""
        shape = (self.block[self.rows], self.block[self.columns])
        first = self.product.first
        scope.passed_through(first, sums)
        if first.tensor in self.whole.program.outputs:
            scope.store(first, sums, masks, shape)
        for stage in self.product.stages:
            value = scope.value(stage.body)
            if stage.tensor in self.whole.program.outputs:
                scope.store(stage, value, masks, shape)
            scope.passed_through(stage, value)

    # -- shares of k --------------------------------------------------------------------------------------------------
    def _partial_place(self, axes: Mapping[str, Value], share: str) -> str:
        m, n = self.size("m"), self.size("n")
        rows, columns = axes["m"].text, axes["n"].text
        share = f"{share} * {self.size('b')} + batch" if self.names["b"] else share
        return f"p_{self.partial} + tl.cast({share}, tl.int64) * ({m} * {n}) + {rows} * {n} + {columns}"

    def _store_partial(self, sums: Value, axes: Mapping[str, Value], masks: Mapping[int, str]) -> None:
        mask = f", mask={' & '.join(masks[dim] for dim in sorted(masks))}" if masks else ""
        self.writer.line(f"tl.store({self._partial_place(axes, 'tl.program_id(1)')}, {sums.text}{mask})")

    def _added(self, split: int) -> None:
        with self._tile() as (_, axes, masks):
            mask = f", mask={' & '.join(masks[dim] for dim in sorted(masks))}, other=0" if masks else ""
            # What tensor cores do not take has smaller tiles.
            tile = (self.block[self.rows], self.block[self.columns])
            self.writer.line(f"sums = tl.zeros({tile}, {TYPES[self.product.total]})")
            with self.writer.block(f"for share in range(0, {split}):"):
                self.writer.line(f"sums += tl.load({self._partial_place(axes, 'share')}{mask})")
            scope = self.scope(self._own(axes, {self.rows: 0, self.columns: 1}), masks)
            sums = Value("sums", self.product.total, frozenset({0, 1}))
            self._finish(scope, self._with_late(scope, sums), masks)

    # -- rows, columns and batches ------------------------------------------------------------------------------------
    def size(self, role: str) -> str:
        """The extent of a group as a kernel computes it."""
        extents = [dim_text(self.product.parts[name].extent, self.symbols) for name in self.names[role]]
        sizes = [int(each) for each in extents if each.isdecimal()]
        rest = [each for each in extents if not each.isdecimal()]
        factor = 1
        for each in sizes:
            factor *= each
        if not rest:
            return str(factor)
        return f"({' * '.join([*rest, *([str(factor)] if factor != 1 else [])])})"

    def is_whole(self, role: str) -> bool:
        """Whether a group is known to be a number of whole blocks."""
        return self.size(role).isdecimal() and int(self.size(role)) % self.width.get(role, 1) == 0

    @contextmanager
    def _tile(self) -> Iterator[tuple[Mapping[str, str], Mapping[str, Value], Mapping[int, str]]]:
        """The tile of a program: where its rows and columns start, their numbers, and which of these are inside."""
        writer, product = self.writer, self.product
        more = f" + {product.groups}" if product.index is not None else ""
        writer.line("tile = tl.program_id(0)")
        writer.line(f"tiles_m = tl.cdiv({self.size('m')}, {self.width['m']}){more}")
        writer.line(f"tiles_n = tl.cdiv({self.size('n')}, {self.width['n']})")
        if self.names["b"]:
            writer.line("batch = tile // (tiles_m * tiles_n)")
            writer.line("tile = tile % (tiles_m * tiles_n)")
        writer.line(f"tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, {self.tiling.group_m})")
        start = {"m": f"tile_m * {self.width['m']}", "n": f"tile_n * {self.width['n']}"}
        dims = {self.rows: 0, self.columns: 1}
        if product.index is None:
            yield start, *self._inside(start, dims)
            return
        find_group(writer, product.groups, self.ends, self.block["m"])
        with writer.block(f"if group < {product.groups}:"):
            axes, masks = self._inside(start, dims)
            place = writer.name("place")
            writer.line(f"{place} = first_row + {self._range('m')}")
            row = spread("row", dims["m"], 2)
            writer.line(f"row = tl.load(p_{self.order} + {place}, mask={place} < end_row, other=0)")
            masks = {**masks, dims["m"]: f"({spread(place, dims['m'], 2)} < end_row)"}
            yield start, {**axes, "m": Value(row, "int32", frozenset({dims["m"]}))}, masks

    def _range(self, role: str) -> str:
        return f"tl.arange(0, {self.block[role]})"

    def _inside(self, start: Mapping[str, str], dims: Mapping[str, int]) -> tuple[dict[str, Value], dict[int, str]]:
        axes, masks = dict[str, Value](), dict[int, str]()
        for role, dim in dims.items():
            name = {"m": "rows", "n": "columns"}[role]
            self.writer.line(f"{name} = {start[role]} + {self._range(role)}")
            axes[role] = Value(spread(name, dim, 2), "int32", frozenset({dim}))
            if not self.is_whole(role):
                masks[dim] = f"({axes[role].text} < {self.size(role)})"
        return axes, masks

    def scope(self, axes: Mapping[str, Value], masks: Mapping[int, str]) -> Scope:
        known: dict[Expr, Value] = {}
        if self.product.index is not None:
            known[self.product.index] = Value("group", "int32")
        workload = self.product.workload
        return Scope(self.writer, workload, axes, masks, self.is_wide, known, self.product.types, self.whole.tensors)

    def axes_of(self, role: str, value: Value) -> dict[str, Value]:
        """The values of a group's axes, from that of the group; of an axis in halves the sum of both."""
        found: dict[str, Value] = {}
        inner, names = DimExpr.of(1), self.names[role]
        for place, name in reversed(list(enumerate(names))):
            part: Part = self.product.parts[name]
            at = value.text
            if len(names) > 1:
                below = dim_text(inner, self.symbols)
                at = f"({at} // {below})" if below != "1" else at
                at = f"({at} % {dim_text(part.extent, self.symbols)})" if place else at
                at = self.writer.bind(Value(at, "int32", value.dims), "part").text
            inner = inner * part.extent
            own = Value(at if part.step == 1 else f"{at} * {part.step}", "int32", value.dims)
            found[part.axis] = self._sum(found[part.axis], own) if part.axis in found else own
        return found

    def _sum(self, left: Value, right: Value) -> Value:
        return self.writer.bind(Value(f"({left.text} + {right.text})", "int32", left.dims | right.dims), "axis")

    def all_axes(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The program's axes, where those of the batch are scalars."""
        given = dict(values)
        if self.names["b"]:
            given["b"] = Value("batch", "int32")
        result: dict[str, Value] = {}
        for role, value in given.items():
            for axis, own in self.axes_of(role, value).items():
                result[axis] = self._sum(result[axis], own) if axis in result else own
        return result

    def _own(self, values: Mapping[str, Value], dims: Mapping[str, int]) -> dict[str, Value]:
        """The program's axes at results: those of a phase where they stand in the whole."""
        axes = self.all_axes(values)
        for each in self.product.places:
            at = affine(DimExpr.var(each.axis) * each.step + each.first, axes)
            axes[each.axis] = self.writer.bind(at, "place")
        return axes
