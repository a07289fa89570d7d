"""What the rule looks for, whatever its stages and axes are called, and the kernels of its products.

    h1[m, f]  = sum(k) x[m, k] * w1[f, k]         one such product, or several
    g[m, f]   = any elementwise stages on these
    y[m, n]   = sum(f) g[m, f] * w2[n, f]
    out[m, n] = any elementwise stages on y

Weights lie either way round, and have constant dims; they are constant, or new at every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.program.expr import Axis
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.product.atoms import only_fma
from tuner.schedule.product.match import plain
from tuner.schedule.product.product import DTYPE, TOTAL_BYTES
from tuner.schedule.rule import Mismatch, matched, need, pattern
from tuner.schedule.space import MicroKernel

WHOLE_BYTES = 2**30
"""The most that is kept of the intermediates of all rows at a time."""


@dataclass(frozen=True)
class Chain:
    """``firsts``: the products that the intermediate is made of; the last of them has its elementwise stages behind it.
    ``second``: the product of the intermediate."""

    firsts: tuple[plain.Matrices, ...]
    second: plain.Matrices

    @property
    def products(self) -> tuple[plain.Matrices, ...]:
        return (*self.firsts, self.second)

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        names = {"m": "m", "n": "n", "k": "f"}, *[{"m": "m", "n": "f", "k": "k"}] * len(self.firsts)
        each = zip((self.second, *self.firsts), names, strict=True)
        return {axis: of[role] for product, of in each for role, axis in product.axes.items()}

    def kernels(self, kernel: MicroKernel) -> Iterator[MicroKernel]:
        """What the engine calls the kernel of each product, in their order."""
        of = dict(kernel.values)
        for product in self.products:
            is_second = product is self.second
            own = {"nv": of["ev" if is_second else "nv"], "kc": of["fb" if is_second else "kc"]}
            own |= {"rows": 0, "fetch": of["fetch"]} if is_second else {"rows": of["rows"], "fetch": 0}
            own |= {"edge": 0, "pack": 0 if product.right.is_packed_ahead else 2, "tb": 1}
            shared = {name: of[name] for name in ("mr", "mb", "ku", "near", "ahead", "tail", "tn")}
            yield MicroKernel(kernel.rule, kernel.rule_version, tuple({**shared, **own}.items()))


def kept_width(columns: int, lanes: int) -> int:
    """Elements in a row of what is kept: whole vectors, rows a vector and more apart from a power of two, so that those
    of a tile do not fall on the same lines of a cache."""
    return -(-columns // lanes) * lanes + lanes


def whole_rows(products: int, width: int, mr: int) -> int:
    """Rows, in whole tiles, of which no more than WHOLE_BYTES are kept at a time."""
    return max(WHOLE_BYTES // (products * width * TOTAL_BYTES * mr), 1) * mr


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
    chain = Chain(tuple(firsts), second)
    _need_links(workload, chain)
    _need_storage(workload, chain)
    return chain


def chain_of(workload: Workload) -> Chain:
    """The chain of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def _product(workload: Workload, sums: Stage, behind: Sequence[Stage]) -> plain.Matrices:
    """A stage as a product of rows with a matrix, whichever operand it names first."""
    for left, right in plain.operands_of(sums, f"stage {sums.tensor}"):
        (m, n), (k,) = map(Axis, sums.axes), map(Axis, sums.reduce_axes)
        if left.indices == (m, k) and right.indices in ((n, k), (k, n)):
            columns = plain.matrix_columns(workload, right, n.name)
            return plain.matrix_product(workload, sums, left.tensor, columns, behind, only_fma)
    raise Mismatch(f"the operands of stage {sums.tensor} are not [m, k] and [n, k] or [k, n]")


def _need_links(workload: Workload, chain: Chain) -> None:
    first, second, sizes = chain.firsts[-1], chain.second, workload.sizes
    weights, lefts = {each.right.tensor for each in chain.products}, {each.left.tensor for each in chain.firsts}
    need(not workload.padding, "a tensor is padded")
    is_apart = len(weights) == len(chain.products) and not weights & lefts
    is_apart = is_apart and weights | lefts <= set(workload.program.inputs)
    need(is_apart, "the operands are not different inputs")
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
    """Of the stages behind a product, each of which reads those before it."""
    for stage in product.result.epilogue:
        plain.need_elementwise(workload, stage, (product.result.m, product.result.n), known, weights)
        known = [*known, stage.tensor]


def _need_storage(workload: Workload, chain: Chain) -> None:
    plain.need_dtypes(workload.tensors.values())
    for product in chain.products:
        left, right, sums, (m, n, k) = product.left, product.right, product.result.computed, product.axes.values()
        plain.need_fma(product)
        total = workload.element_types.reduced_type(workload.program.stage[sums])
        need(total == DTYPE, f"sums of stage {sums} are not {DTYPE}")
        need(product.dynamic <= {"m"}, f"the dims of {right.tensor} depend on shape variables")
        plain.need_whole(workload, {right.tensor: (k, n) if right.lies_along_n else (n, k), left.tensor: (m, k)})
    for stage in workload.program.stages:
        dtype = workload.tensors[stage.tensor].dtype
        need(stage.tensor == chain.second.result.tensor or dtype == DTYPE, f"{stage.tensor} is {dtype}, not {DTYPE}")
