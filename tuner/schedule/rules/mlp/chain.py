"""The pattern of a chain of products, and what the engine calls its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.program.language import expr
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import best_of_vectors, only_fma
from tuner.schedule.product.axes import WIDE
from tuner.schedule.product.match import plain
from tuner.schedule.product.operands.matrix import KeptRows
from tuner.schedule.product.product import DTYPE
from tuner.schedule.rule import Mismatch, matched, need, pattern
from tuner.schedule.space import DEFAULT_CHOICE, MicroKernel

NAME, VERSION = "x86_chain", 1


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
            yield MicroKernel(NAME, VERSION, tuple({**shared, **own}.items()))


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
