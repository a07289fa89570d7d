"""Attention as one Triton kernel with an online softmax: rows of a tile see columns block after block.

Scores are any expression of the products; blocks that a bound of the columns hides from all rows of a tile are left
out. Weights are rounded to the two bytes of the values where programs allow that, or else multiplied as the sum of two
such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.program.language.expr import Read
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.flat import axes_of, function
from tuner.schedule.gpu.functions import TYPES
from tuner.schedule.gpu.module import Launch, host_size
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.writer import Value, Writer, affine, cast, spread
from tuner.schedule.rules.attention.chain import COMPUTED, Bound, Chain, mask_of

SHORT = ("float16", "bfloat16")
MAX_KEPT = 256
"""The largest d whose rows of q are kept; beyond, and where it is dynamic, products are summed in blocks."""
LOG2_E = 1.4426950408889634
ROWS_OF_WARP = 16
"""Rows that a warp multiplies at once: where there are fewer than for all warps, several share a row."""


@dataclass(frozen=True)
class AttentionTile:
    """Rows, columns, elements of d at once where q is not kept, and of the output's own axis."""

    rows: int = 64
    columns: int = 64
    depth: int = 32
    values: int = 128
    num_warps: int = 4
    num_stages: int = 2
    precision: str = "ieee"


class AttentionEmitter:
    """Writes the kernel of one attention. ``splits``: weights are multiplied as two short floats."""

    def __init__(
        self, workload: Workload, chain: Chain, tile: AttentionTile, name: str, is_wide: bool, splits: bool
    ) -> None:  # fmt: skip
        self.workload, self.chain, self.name, self.is_wide = workload, chain, name, is_wide
        self.size = {name: workload.sizes[axis] for name, axis in chain.axis.items()}
        d, e = self.size["d"].constant, self.size["e"].constant
        self.keeps_q = d is not None and d <= MAX_KEPT
        self.depth = max(16, 1 << (d - 1).bit_length()) if d is not None and self.keeps_q else tile.depth
        self.width = min(tile.values, max(16, 1 << (e - 1).bit_length())) if e is not None else tile.values
        self.tile, self.writer = tile, Writer()
        types = workload.element_types.with_tensor(COMPUTED.tensor, "float32")
        self.scope = Scope(self.writer, workload, {}, {}, is_wide, types=types)
        self.text = {name: affine(size, self.scope.symbols).text for name, size in self.size.items()}
        dtypes = {workload.tensors[read.tensor].dtype for read in (chain.q, chain.k)}
        self.multiplied = dtypes.pop() if len(dtypes) == 1 and dtypes <= set(SHORT) else "float32"
        v = workload.tensors[chain.v.tensor].dtype
        self.weighted = v if v in SHORT else "float32"
        self.splits = splits

    def launch(self) -> Launch:
        """The kernel: a program for each tile of rows, of each batch, and of each block of the output's own axis."""
        chain, tile, line = self.chain, self.tile, self.writer.line
        line(f"tiles = tl.cdiv({self.text['i']}, {tile.rows})")
        line(f"parts = tl.cdiv({self.text['e']}, {self.width})")
        line("pid = tl.program_id(0)")
        # Later rows see more columns where a bound rises with them: they begin first.
        line("tile = tiles - 1 - pid % tiles")
        line("part = (pid // tiles) % parts")
        line("batch = pid // (tiles * parts)")
        batch = Value("batch", "int32")
        sizes = {name: self.size[name] for name in chain.batch}
        self.batch = axes_of(self.writer, chain.batch, sizes, self.scope.symbols, batch)
        line(f"rows = tile * {tile.rows} + tl.arange(0, {tile.rows})")
        line(f"values = part * {self.width} + tl.arange(0, {self.width})")
        self._write()
        axes = [chain.axis[name] for name in chain.batch]
        grid = (
            f"cdiv({host_size(self.workload, [chain.axis['i']])}, {tile.rows})"
            f" * cdiv({host_size(self.workload, [chain.axis['e']])}, {self.width})"
            f" * {host_size(self.workload, axes)}"
        )
        return Launch(function(self.workload, self.name, self.writer), (grid,), tile.num_warps, tile.num_stages)

    # -- the loop -----------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        line, tile = self.writer.line, self.tile
        line(f'top = tl.full(({tile.rows}, 1), float("-inf"), tl.float32)')
        line(f"weights = tl.zeros(({tile.rows}, 1), tl.float32)")
        line(f"mixed = tl.zeros(({tile.rows}, {self.width}), tl.float32)")
        q = self._queries("0", self.depth) if self.keeps_q else None
        for first, last, is_masked in self._ranges():
            with self.writer.block(f"for start in range({first}, {last}, {tile.columns}):"):
                self._block(q, is_masked)
        self._output()

    def _block(self, q: str | None, is_masked: bool) -> None:
        """The columns of one block; ``is_masked``: some may be hidden, or past the end."""
        line, tile = self.writer.line, self.tile
        line(f"columns = start + tl.arange(0, {tile.columns})")
        score = self._scores(q, is_masked)
        line(f"above = tl.maximum(top, tl.max({score}, axis=1, keep_dims=True))")
        # A row that has seen nothing yet has no maximum to subtract.
        line(f'used = tl.where(above == float("-inf"), 0.0, above * {LOG2_E})')
        line(f"shares = tl.exp2({score} * {LOG2_E} - used)")
        line(f"factor = tl.exp2(top * {LOG2_E} - used)")
        line("weights = weights * factor + tl.sum(shares, axis=1, keep_dims=True)")
        line("mixed = mixed * factor")
        self._mix(is_masked)
        line("top = above")

    def _queries(self, first: str, width: int) -> str:
        place = self._place({"i": ("rows", 0), "d": (f"({first} + tl.arange(0, {width}))", 1)})
        return self._loaded(self.chain.q, place, (self.tile.rows, width), self.multiplied)

    def _place(self, vectors: Mapping[str, tuple[str, int]], is_masked: bool = True) -> Scope:
        """A scope at vectors of some axes, each along a dim of the tile; masked where these end."""
        axes, masks = dict(self.batch), dict[int, str]()
        for name, (text, dim) in vectors.items():
            at = self.writer.bind(Value(spread(text, dim, 2), "int32", frozenset({dim})), name)
            axes[name] = at
            extent = self.size[name].constant
            is_inside = (name == "j" and not is_masked) or (name in "de" and extent == self._block_of(name))
            if not is_inside:
                masks[dim] = f"({at.text} < {self.text[name]})"
        return self.scope.with_axes(axes, masks)

    def _block_of(self, name: str) -> int:
        return self.depth if name == "d" else self.width

    def _loaded(self, read: Read, scope: Scope, shape: tuple[int, int], dtype: str) -> str:
        value = scope.element(read)
        if len(value.dims) < 2:
            value = Value(f"tl.broadcast_to({value.text}, {shape})", value.dtype, frozenset({0, 1}))
        value = cast(value, dtype)
        if dtype == "float32" and self.tile.precision == "tf32":
            value = Value(f"as_tf32({value.text})", "float32", value.dims)
        return self.writer.bind(value, read.tensor).text

    def _scores(self, q: str | None, is_masked: bool) -> str:
        tile, writer = self.tile, self.writer
        options = f', input_precision="{tile.precision}"' if self.multiplied == "float32" else ""

        def keys(first: str) -> str:
            place = self._place({"d": (f"({first} + tl.arange(0, {self.depth}))", 0), "j": ("columns", 1)}, is_masked)
            return self._loaded(self.chain.k, place, (self.depth, tile.columns), self.multiplied)

        if q is not None:
            writer.line(f"dots = tl.dot({q}, {keys('0')}{options})")
        else:
            writer.line(f"dots = tl.zeros(({tile.rows}, {tile.columns}), tl.float32)")
            with writer.block(f"for depth in range(0, {self.text['d']}, {self.depth}):"):
                left = self._queries("depth", self.depth)
                writer.line(f"dots = tl.dot({left}, {keys('depth')}, dots{options})")
        scope = self._place({"i": ("rows", 0), "j": ("columns", 1)})
        scope.known[COMPUTED] = Value("dots", "float32", frozenset({0, 1}))
        if not is_masked:
            # Limits that data sets hide within a run, too.
            inside = scope.value(mask_of(self.chain.mask.score).inside, "float32")
            return self.writer.bind(replace(inside, text=f"({inside.text})"), "score").text
        score = scope.value(self.chain.mask.score, "float32")
        hidden = f'tl.where({scope.masks[1]}, {score.text}, float("-inf"))'
        return writer.bind(Value(hidden, "float32", frozenset({0, 1})), "score").text

    def _mix(self, is_masked: bool) -> None:
        tile = self.tile
        place = self._place({"j": ("columns", 0), "e": ("values", 1)}, is_masked)
        v = self._loaded(self.chain.v, place, (tile.columns, self.width), self.weighted)
        if self.weighted == "float32":
            shares = "as_tf32(shares)" if tile.precision == "tf32" else "shares"
            self.writer.line(f'mixed = tl.dot({shares}, {v}, mixed, input_precision="{tile.precision}")')
            return
        dtype = TYPES[self.weighted]
        self.writer.line(f"high = shares.to({dtype})")
        self.writer.line(f"mixed = tl.dot(high, {v}, mixed)")
        if self.splits:
            self.writer.line(f"low = (shares - high.to(tl.float32)).to({dtype})")
            self.writer.line(f"mixed = tl.dot(low, {v}, mixed)")

    def _ranges(self) -> list[tuple[str, str, bool]]:
        """The columns that any row of a tile may see, in runs: with masks, and without where all rows see all."""
        columns, bounds = self.tile.columns, self.chain.mask.bounds
        lows, highs = ([bound for bound in bounds if bound.is_upper is is_upper] for is_upper in (False, True))
        j = self.text["j"]
        # The first row sees the fewest columns to the right, the last one the fewest to the left.
        ends = [self._limit(bound, is_last=True) for bound in highs]
        last = self._least(j, *(f"{end} + 1" for end in ends))
        first = self._multiple(self._most("0", *(self._limit(bound, is_last=False) for bound in lows)))
        whole = self._least(j, *(f"{self._limit(bound, is_last=False)} + 1" for bound in highs))
        begin = self._most("0", *(self._limit(bound, is_last=True) for bound in lows))
        begin = self._least(last, self._multiple(f"({begin} + {columns - 1})")) if lows else first
        end = self._most(begin, self._least(last, self._multiple(whole)))
        runs = [(first, begin, True)] if lows else []
        return [*runs, (begin, end, False), (end, last, True)]

    def _limit(self, bound: Bound, is_last: bool) -> str:
        """A bound of the columns at the first or the last row of a tile."""
        rows = self.tile.rows
        last = f"tl.minimum(tile * {rows} + {rows - 1}, {self.text['i']} - 1)"
        row = self.writer.bind(Value(last if is_last else f"(tile * {rows})", "int32"), "row")
        extents = {f"extent({name})": affine(size, self.scope.symbols) for name, size in self.scope.sizes.items()}
        limit = affine(bound.limit, {**extents, **self.batch, "i": row})
        return self.writer.bind(replace(limit, text=f"({limit.text})"), "limit").text

    def _most(self, *texts: str) -> str:
        return self._folded("tl.maximum", texts)

    def _least(self, *texts: str) -> str:
        return self._folded("tl.minimum", texts)

    def _folded(self, function: str, texts: Sequence[str]) -> str:
        result = texts[0]
        for text in texts[1:]:
            result = f"{function}({result}, {text})"
        return result if len(texts) == 1 else self.writer.bind(Value(result, "int32"), "end").text

    def _multiple(self, text: str) -> str:
        """The last whole block before a column, which may be before all."""
        if text == "0":
            return text
        value = f"tl.maximum({text}, 0) // {self.tile.columns} * {self.tile.columns}"
        return self.writer.bind(Value(value, "int32"), "start_of").text

    # -- the end ------------------------------------------------------------------------------------------------------
    def _output(self) -> None:
        chain, shape = self.chain, (self.tile.rows, self.width)
        quotient = "tl.div_rn(mixed, tl.broadcast_to(weights, mixed.shape))"
        none, hidden = f"({self.text['j']} == 0)", f"({self.text['j']} != 0)"
        if chain.is_zero_of_nothing and chain.is_guarded:
            quotient = f"tl.where(weights == 0, 0.0, {quotient})"
        elif chain.is_zero_of_nothing or chain.is_guarded:
            which = none if chain.is_zero_of_nothing else hidden
            quotient = f"tl.where((weights == 0) & {which}, 0.0, {quotient})"
        scope = self._place({"i": ("rows", 0), "e": ("values", 1)})
        value = self.writer.bind(Value(quotient, "float32", frozenset({0, 1})), "mixed_values")
        scope.known[COMPUTED] = value
        result = scope.value(chain.out, "float32")
        (out,) = self.workload.program.outputs
        scope.store(Stage(out, chain.out_axes, chain.out), result, scope.masks, shape)
