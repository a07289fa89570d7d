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

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware, Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors
from tuner.schedule.product.axes import (
    TOTAL_BYTES,
    atom_axes,
    atom_of,
    canonical_panel,
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
from tuner.schedule.product.legal import check
from tuner.schedule.product.product import can_hold_partial
from tuner.schedule.rule import Extents, NoMatch, Theory, Tiles, TirRule
from tuner.schedule.rules.mlp.chain import NAME, VERSION, Chain, chain_of, match
from tuner.schedule.rules.mlp.emit import kept_width, whole_rows, write
from tuner.schedule.rules.mlp.estimate import ChainEstimate
from tuner.schedule.space import DEFAULT_CHOICE, Axis, MicroKernel, SearchSpace

MAX_ROWS = 512
"""In a block whose intermediate is kept."""
MAX_PANEL = 6
BLOCKS = (128, 256, 384, 512, 768, 1024)
"""Choices of ``fb``, beside 0."""


class Mlp(TirRule):
    """See the module's text for the axes."""

    name, version = NAME, VERSION

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
        return ChainEstimate(task, kernels, extents).latency_s()

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return ChainEstimate(task, kernels, extents).features()

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        known = ChainEstimate(task, kernels, extents)
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
