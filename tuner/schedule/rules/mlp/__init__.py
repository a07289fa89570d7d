"""The rule for chains of products on vector units: feed-forward layers, gated ones too.

    h1[m, f]  = sum(k) x[m, k] * w1[f, k]         one such product, or several
    g[m, f]   = any elementwise stages on these
    y[m, n]   = sum(f) g[m, f] * w2[n, f]
    out[m, n] = any elementwise stages on y

Weights lie either way round, and have constant dims; they are constant, or new at every call. What lies between the
products, the intermediate, is kept for a block of rows, or for all rows: fused or not is a choice of the search. It is
kept in the dtype that the program gives it: where that is a short one, the second product takes it in words as it lies.
Axes
that other products do not have, or that mean something else here:

=========  ====================================================================================================
``nv``     vectors in a row of the register tile of the first products; ``nv * lanes`` columns are a panel
``ev``     vectors in a row of the register tile of the second product
``whole``  0: the intermediate of a block of ``mb`` tiles of rows is kept, and threads share the rows; 1: that of all
           rows, first product by first product, then the second one
``mb``     tiles of rows that share a panel of either product, and whose intermediate is kept
``fb``     columns of the intermediate, rounded up to panels, that are computed before the second product takes them;
           with ``whole``, the steps of its sum that a block of rows goes through at a time; 0: all
``kc``     steps of the first sums that a block of rows goes through at a time
``rows``   1: the rows of the first products are packed before they are used
``fetch``  1: lines of the output are prefetched before a tile of the second product is computed
``tn``     threads along the columns of either product; with ``whole`` alone
``group``  elements of k in one step of each product that has an instruction for so many. Tiles of a matrix unit are for
           all products or none
=========  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language import expr
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, Target
from tuner.schedule.access import is_transcendental
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.loops.estimates import Floats, feature_table
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors, only_fma
from tuner.schedule.product.axes import (
    TOTAL_BYTES,
    WIDE,
    atom_axes,
    atom_of,
    canonical_panel,
    check,
    default_tile,
    default_values,
    keeps_totals,
    of_unit,
    packed_vectors,
    panel_axes,
    thread_axes,
    tile_axes,
    tiles,
)
from tuner.schedule.product.estimate import BYTES, Estimate
from tuner.schedule.product.match import plain
from tuner.schedule.product.operands.matrix import KeptRows
from tuner.schedule.product.product import DTYPE, can_hold_partial
from tuner.schedule.rule import Extents, Mismatch, NoMatch, Theory, Tiles, TirRule, matched, need, pattern
from tuner.schedule.rules.mlp.emit import kept_width, whole_rows, write
from tuner.schedule.space import DEFAULT_CHOICE, Axis, MicroKernel, SearchSpace

MAX_ROWS = 512
"""In a block whose intermediate is kept."""
MAX_PANEL = 6
LATER = frozenset({"panel", "group"})
"""Axes that not every kernel has."""
BLOCKS = (128, 256, 384, 512, 768, 1024)
"""Choices of ``fb``, beside 0."""


@dataclass(frozen=True)
class Chain:
    """``firsts``: the products that the intermediate is made of, which has its elementwise stages behind the last one;
    ``second``: the product of the intermediate, which has so many ``columns``."""

    firsts: tuple[plain.Matrices, ...]
    second: plain.Matrices
    columns: int

    @property
    def products(self) -> tuple[plain.Matrices, ...]:
        return (*self.firsts, self.second)

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        names = {"m": "m", "n": "n", "k": "f"}, *[{"m": "m", "n": "f", "k": "k"}] * len(self.firsts)
        each = zip((self.second, *self.firsts), names, strict=True)
        return {axis: of[role] for product, of in each for role, axis in product.axes.items()}

    def atoms(self, hardware: Hardware) -> dict[int, Atom]:
        """The instructions to choose from, by depth: one of several products."""
        each = [product.atoms(hardware) for product in self.products]
        found = {depth: atom for atoms in each for depth, atom in atoms.items()}
        is_for_all = {depth: all(depth in atoms for atoms in each) for depth in found}
        kept = {depth: atom for depth, atom in found.items() if atom.unit is None or is_for_all[depth]}
        return dict(sorted(kept.items()))

    def kernels(self, kernel: MicroKernel | Mapping[str, int], hardware: Hardware) -> Iterator[MicroKernel]:
        """What the engine calls the kernel of each product, in their order."""
        of = dict(kernel.values if isinstance(kernel, MicroKernel) else kernel)
        for product in self.products:
            is_second, atoms = product is self.second, product.atoms(hardware)
            depth = _depth(atoms, of.get("group", DEFAULT_CHOICE))
            own = {"nv": of["ev" if is_second else "nv"], "group": depth}
            own |= {"kc": of["fb"] // atoms[depth].group if is_second else of["kc"]}
            own |= {"rows": 0, "fetch": of["fetch"]} if is_second else {"rows": of["rows"], "fetch": 0}
            own |= {"edge": 0, "tb": 1}
            own |= {"pack": 0, "panel": of.get("panel", WIDE)} if product.right.is_packed_ahead else {"pack": 2}
            shared = {name: of[name] for name in ("mr", "mb", "ku", "near", "ahead", "tail", "tn")}
            yield MicroKernel(Mlp.name, Mlp.version, tuple({**shared, **own}.items()))


def _depth(atoms: Mapping[int, Atom], chosen: int) -> int:
    """Of the instructions of one product the one so deep; else that of single elements, or the deepest of vectors."""
    return chosen if chosen in atoms else DEFAULT_CHOICE if DEFAULT_CHOICE in atoms else best_of_vectors(atoms)


# -- the pattern ------------------------------------------------------------------------------------------------------
@pattern
def match(workload: Workload) -> Chain:
    """The chain of a workload."""
    stages = workload.program.stages
    sums = [position for position, stage in enumerate(stages) if stage.reducer]
    need(len(sums) >= 2, "there are no two products")
    between = [stage for stage in stages[: sums[-1]] if stage.reducer is None]
    behind = [*[()] * (len(sums) - 2), between, stages[sums[-1] + 1 :]]
    *firsts, second = (_product(workload, stages[at], own) for at, own in zip(sums, behind, strict=True))
    kept = KeptRows(second.left.tensor, second.left.dtype)
    columns = workload.sizes[second.axes["n"]].constant or 0
    chain = Chain(tuple(firsts), replace(second, left=kept), columns)
    _need_links(workload, chain)
    _need_storage(workload, chain)
    return chain


def chain_of(workload: Workload) -> Chain:
    """The chain of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def _product(workload: Workload, sums: Stage, behind: Sequence[Stage]) -> plain.Matrices:
    """A stage as a product of rows with a matrix, whichever operand it names first."""
    for left, right in plain.operands_of(sums, f"stage {sums.tensor}"):
        (m, n), (k,) = map(expr.Axis, sums.axes), map(expr.Axis, sums.reduce_axes)
        if left.indices == (m, k) and right.indices in ((n, k), (k, n)):
            columns = plain.matrix_columns(workload, right, n.name)
            # What is new at every call is packed as single elements.
            atoms = None if columns.is_packed_ahead else only_fma
            return plain.matrix_product(workload, sums, left.tensor, columns, behind, atoms)
    raise Mismatch(f"the operands of stage {sums.tensor} are not [m, k] and [n, k] or [k, n]")


def _need_links(workload: Workload, chain: Chain) -> None:
    first, second, sizes = chain.firsts[-1], chain.second, workload.sizes
    weights, lefts = {each.right.tensor for each in chain.products}, {each.left.tensor for each in chain.firsts}
    need(not workload.padding, "a tensor is padded")
    is_apart = len(weights) == len(chain.products) and not weights & lefts
    need(is_apart and weights | lefts <= set(workload.program.inputs), "the operands are not different inputs")
    for each in chain.firsts:
        is_alike = (each.result.m, each.result.n) == (first.result.m, first.result.n)
        need(is_alike, f"stages {each.result.computed} and {first.result.computed} do not have the same axes")
        need(each.left.tensor not in workload.constants, f"the left operand {each.left.tensor} is constant")
    _need_elementwise(workload, first, [each.result.computed for each in chain.firsts], weights)
    # The intermediate is what was computed last, and nothing but the second product reads it.
    read, written = second.left.tensor, first.result.tensor
    need(read == written, f"the last product is of {read}, not of {written}")
    is_whole = [sizes[first.axes[axis]] for axis in "mn"] == [sizes[second.axes[axis]] for axis in "mk"]
    need(is_whole, f"{read} is read at other axes than it is computed at")
    _need_elementwise(workload, second, [second.result.computed], weights)
    need(workload.program.outputs == (second.result.tensor,), "an intermediate is an output, too")


def _need_elementwise(workload: Workload, product: plain.Matrices, known: list[str], weights: set[str]) -> None:
    """The stages behind a product are elementwise; each reads those before it."""
    for stage in product.result.epilogue:
        plain.need_elementwise(workload, stage, (product.result.m, product.result.n), known, weights)
        known = [*known, stage.tensor]


def _need_storage(workload: Workload, chain: Chain) -> None:
    plain.need_dtypes(workload.tensors.values())
    for product in chain.products:
        left, right, sums, (m, n, k) = product.left, product.right, product.result.computed, product.axes.values()
        total = workload.element_types.reduced_type(workload.program.stage[sums])
        need(total in plain.TOTALS, f"sums of stage {sums} are {total}, none of {', '.join(sorted(plain.TOTALS))}")
        if total == DTYPE:
            plain.need_fma(product)
        need(total == DTYPE or right.is_packed_ahead, f"{right.tensor}, of {right.dtype}, is new at every call")
        need(product.dynamic <= {"m"}, f"the dims of {right.tensor} depend on shape variables")
        plain.need_whole(workload, {right.tensor: (k, n) if right.lies_along_n else (n, k), left.tensor: (m, k)})


# -- the rule ---------------------------------------------------------------------------------------------------------
class Mlp(TirRule):
    """See the module's text for the axes."""

    name = "x86_chain"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        chain = match(workload)
        if isinstance(chain, NoMatch):
            return chain
        for each in chain.products:
            if not each.atoms(target.hardware):
                return NoMatch(
                    f"{target.mcpu} has no instruction that multiplies {each.left.dtype} by {each.right.dtype}"
                )
        return chain.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """The larger of both forms, and room for weights that are packed at the call."""
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        rows, lanes = task.workload.axis_sizes(task.largest_dims)[chain.second.axes["m"]], hardware.lanes()
        products, height = len(chain.firsts), max(tile_axes(None, chain.atoms(hardware))[0].choices)
        # Rows of short elements take no more.
        width = kept_width(chain.second.depth or 0, lanes, lanes)
        blocks = task.threads * min(MAX_ROWS + height, rows + height)
        whole = min(whole_rows(products, width, height), rows) + height
        kept, packed = products * width * max(blocks, whole), 0
        for product in chain.products:
            if not product.right.is_packed_ahead:
                n, k = (task.workload.sizes[product.axes[axis]].constant or 0 for axis in "nk")
                packed += (n + MAX_PANEL * lanes) * (k + lanes)
        return TOTAL_BYTES * (kept + packed)

    def space(self, task: SearchTask) -> SearchSpace:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        # Where there are several k, the longest one.
        atoms = chain.atoms(hardware)
        has_unit = any(atom.unit is not None for atom in atoms.values())
        tile = {axis.name: axis for axis in tile_axes(max(first.depth or 0 for first in chain.firsts), atoms)}
        width = chain.second.depth if can_hold_partial(chain.second.result.dtype) or has_unit else 0
        columns = tuple(fb for fb in BLOCKS if fb < (width or 0))
        axes = (
            tile["mr"],
            Axis("nv", "vectors in a row of the first register tile", tile["nv"].choices),
            Axis("ev", "vectors in a row of the second register tile", tile["nv"].choices),
            Axis("whole", "the intermediate of all rows is kept", (0, 1)),
            Axis("mb", "tiles that share a panel, and are kept", tile["mb"].choices),
            Axis("fb", "columns of the intermediate at a time", (0, *columns)),
            *(tile[name] for name in ("kc", "ku", "near", "ahead")),
            Axis("rows", "rows are packed at each call", (0, 1)),
            tile["fetch"],
            Axis("tail", "ragged rows have exact code", (0, 1)),
            thread_axes(task.threads, False)[1],
            *panel_axes(any(product.right.is_packed_ahead for product in chain.products)),
            *atom_axes(atoms, is_optional=DEFAULT_CHOICE in atoms),
        )

        def legal(kernel: MicroKernel) -> None:
            rows = kernel["mb"] * kernel["mr"]
            if not kernel["whole"] and rows > MAX_ROWS:
                raise IllegalKernel(f"mb={kernel['mb']} mr={kernel['mr']} keep {rows} rows, limit {MAX_ROWS}")
            if not kernel["whole"] and kernel["tn"] != 1:
                raise IllegalKernel(f"whole=0 has threads share the rows: needs tn=1, got {kernel['tn']}")
            for product, own in zip(chain.products, chain.kernels(kernel, hardware), strict=True):
                check(own, product, product.atoms(hardware), task.threads, hardware)
            for name, value in _forced(chain, dict(kernel.values), hardware).items():
                if kernel[name] != value:
                    raise IllegalKernel(f"group={kernel.get('group')} needs {name}={value}, got {kernel[name]}")

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            if (atom := atoms.get(values.get("group", DEFAULT_CHOICE))) is not None and atom.unit is not None:
                values = {**values, **of_unit({**values, "pack": 0}, atom, chain.firsts[0])}
                values = {name: value for name, value in values.items() if name in names}
            tail, threads = values["tail"] if values["mr"] > 1 else 0, values["tn"] if values["whole"] else 1
            panel = canonical_panel(values["nv"] == values["ev"] == 1)
            own = {"panel": panel} if "panel" in values else {}
            values = {**values, **own, "tail": tail, "tn": threads}
            return {**values, **_forced(chain, values, hardware)}

        names = {axis.name for axis in axes}

        return SearchSpace(self.name, self.version, axes, legal, canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers; several threads share columns too, where rows are few."""
        vectors, whole = default_tile(task.known_target.hardware)["nv"], int(task.threads > 1)
        values, atoms = default_values(task, False, ev=vectors, whole=whole, fb=0), self._atoms(task)
        space = self.space(task)
        if atoms and DEFAULT_CHOICE not in atoms:
            values = space.canonicalise({**values, "group": best_of_vectors(atoms)})
        return space.kernel(values)

    def _atoms(self, task: SearchTask) -> Mapping[int, Atom]:
        return chain_of(task.workload).atoms(task.known_target.hardware)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return _Estimate(task, kernels, extents).latency_s()

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return _Estimate(task, kernels, extents).features()

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        known = _Estimate(task, kernels, extents)
        return Theory(known.latency_s(), known.features)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        layouts: dict[str, Layout] = {}
        for product, own in zip(chain.products, chain.kernels(kernel, hardware), strict=True):
            dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[product.right.tensor].dims)
            atom, width = atom_of(own, product.atoms(hardware)), packed_vectors(own) * hardware.lanes()
            panels = PackLayout(width, atom.group, atom.offset, dims=dims, whole=atom.steps)
            layouts |= product.right.layouts(task.workload, panels)
        return layouts

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        chain = chain_of(task.workload)
        *_, second = chain.kernels(kernel, task.known_target.hardware)
        return tiles(task, second, (chain.second.axes["m"],), (chain.second.axes["n"],))

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        write(task, chain_of(task.workload), kernel, function)


def _forced(chain: Chain, values: Mapping[str, int], hardware: Hardware) -> dict[str, int]:
    """What the other values leave no choice of: rows whose last word is ragged are packed, and what can hold no partial
    sums has whole sums."""
    forced: dict[str, int] = {}
    for product, own in zip(chain.products, chain.kernels(values, hardware), strict=True):
        atom, is_second, depth = atom_of(own, product.atoms(hardware)), product is chain.second, product.depth or 0
        columns = chain.columns if is_second else chain.second.depth
        if not is_second and depth % atom.group:
            forced["rows"] = 1
        is_kept = keeps_totals(dict(own.values), atom, columns, hardware)
        if own["kc"] and not (is_kept or can_hold_partial(product.result.dtype)):
            forced["fb" if is_second else "kc"] = 0
    return forced


class _Estimate:
    """The products' estimates as if each stood alone, and what differs where they do not. Sizes are [1, shapes], a
    kernel's values [kernels, 1]."""

    def __init__(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> None:
        self.task, self.hardware, self.kernels = task, task.known_target.hardware, kernels
        self.chain = chain_of(task.workload)
        own = zip(*(self.chain.kernels(kernel, self.hardware) for kernel in kernels), strict=True)
        each = [Estimate(task, product, of, extents) for product, of in zip(self.chain.products, own, strict=True)]
        self.first, self.second = each[-2:]
        self.products = [of.latency_s() for of in each]
        self.whole = np.array([[float(kernel["whole"])] for kernel in kernels])
        self.rows, self.f = np.ceil(self.second.m / task.threads), self.second.k * self.second.words.group
        # Bytes of the intermediates that are kept at a time, by one thread.
        block, columns = np.minimum(self.second.mr * self.second.of["mb"], self.rows), self.second.of["kc"]
        columns, element = columns * self.second.words.group, BYTES[self.chain.second.left.dtype]
        columns = np.where(columns > 0, np.minimum(columns, self.f), self.f)
        kept = np.where(self.whole > 0, self.rows * self.f, block * columns)
        self.kept = len(self.chain.firsts) * kept * element
        # Cycles in which they are written and read again. The second product's own theory has its rows come from L3.
        rates, l2, l3 = task.rates, self.hardware.l2_bytes, self.hardware.l3_bytes / max(task.threads, 1)
        in_l3 = np.where(self.kept < 0.6 * l3, rates.l3_bytes, rates.memory_bytes)
        rate, size = np.where(self.kept < 0.6 * l2, rates.l2_bytes, in_l3), self.rows * self.f * element
        self.moved = 2 * len(self.chain.firsts) * size / rate - size / rates.l3_bytes

    def latency_s(self) -> Floats:
        """[kernels, shapes] seconds."""
        # Each product's theory has its own call, and its own waking of the threads: here once, or twice if whole.
        rates, further = self.task.rates, len(self.chain.firsts)
        wakes = (further - self.whole) * (rates.fork if self.task.threads > 1 else 0.0)
        # Of a vector in the stages behind the first products, and behind the second one.
        inner, outer = (
            sum(rates.function if is_transcendental(stage.body) else rates.operation for stage in each.result.epilogue)
            for each in (self.chain.firsts[-1], self.chain.second)
        )
        elementwise = self.rows * (self.f * inner + self.second.n * outer) / self.hardware.lanes()
        cycles = self.moved + elementwise - rates.call * further - wakes
        return np.asarray(np.maximum(sum(self.products) + cycles / rates.clock_hz, 1e-9))

    def features(self) -> NDArray[np.float32]:
        """[kernels, shapes, features]: extents, how rows and panels are cut, what is kept, values, the estimate."""
        latency, first, second, level = self.latency_s(), self.first, self.second, self.hardware
        sizes = [np.log2(each + 1.0) for each in (second.m, second.n, self.f, first.k)]
        cut = [second.m % second.mr, second.m % (second.mr * second.of["mb"])]
        cut += [-self.f % first.nr / first.nr, -second.n % second.nr / second.nr]
        kept = [np.log2(self.kept / size + 2.0**-10) for size in (level.l1d_bytes, level.l2_bytes)]
        parts = [self.products[-1] / latency, self.moved / self.task.rates.clock_hz / latency]
        # Of a word, where steps are of several elements.
        fixed = [len(self.chain.firsts), *(of.words.right_bytes for of in (first, second))]
        # Values that every kernel has: how wide panels are is no such one, nor are instructions.
        bare = [replace(each, values=tuple(own for own in each.values if own[0] not in LATER)) for each in self.kernels]
        return feature_table([*sizes, *cut, *kept, *parts, *map(np.asarray, fixed)], bare, latency)
