"""What the rule looks for, whatever its stages and axes are called. No compiler needed.

    h1[m, f]  = sum(k) x[m, k] * w1[f, k]         one such product, or several
    g[m, f]   = any elementwise stages on these
    y[m, n]   = sum(f) g[m, f] * w2[n, f]
    out[m, n] = any elementwise stages on y

Weights lie either way round, and have constant dims; they are constant, or new at every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tuner.program.expr import Binary, Read
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain
from tuner.schedule.product.atoms import FMA, only_fma
from tuner.schedule.product.match.stages import elementwise_problem
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import DTYPE, UNSUPPORTED, Product
from tuner.schedule.rule import NoMatch, matched


@dataclass(frozen=True)
class Link:
    """One of the products: ``out[m, n] = sum(k) left[m, k] * right``, then ``epilogue``, the elementwise stages that
    its results go through. Its axes have the names that the program gives them."""

    stage: Stage
    left: str
    right: str
    right_is_kn: bool
    right_is_constant: bool
    epilogue: tuple[Stage, ...]
    dynamic: frozenset[str]
    left_dtype: str
    right_dtype: str

    @property
    def axes(self) -> Mapping[str, str]:
        """The program's axis of each role."""
        (m, n), (k,) = self.stage.axes, self.stage.reduce_axes
        return {"m": m, "n": n, "k": k}

    def product(self, result: str, dtype: str) -> Product:
        """It as the loops and the theory see it; results are written to the tensor ``result``, of ``dtype``."""
        axes = self.axes
        return Product(
            axes=axes,
            left=MatrixRows(self.left, self.left_dtype),
            right=MatrixColumns(self.right, self.right_dtype, self.right_is_kn, self.right_is_constant),
            result=MatrixResult(result, dtype, self.stage.tensor, self.epilogue, axes["m"], axes["n"]),
            dynamic=self.dynamic,
            depth=None,
            atoms=only_fma,
        )


@dataclass(frozen=True)
class Chain:
    """``firsts``: the products that the intermediate is made of; the last of them has its elementwise stages behind it.
    ``second``: the product of the intermediate."""

    firsts: tuple[Link, ...]
    second: Link
    out: str
    out_dtype: str

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The products of the links, in order. What lies between two of them is kept."""
        kept = [link.stage.tensor for link in self.firsts[:-1]] + [self.second.left]
        firsts = [link.product(result, DTYPE) for link, result in zip(self.firsts, kept, strict=True)]
        return (*firsts, self.second.product(self.out, self.out_dtype))

    @property
    def links(self) -> tuple[Link, ...]:
        return (*self.firsts, self.second)

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        second = self.second.axes
        roles = {second["m"]: "m", second["n"]: "n", second["k"]: "f"}
        for link in self.firsts:
            roles |= {link.axes["m"]: "m", link.axes["n"]: "f", link.axes["k"]: "k"}
        return roles

    def sizes(self, workload: Workload) -> Mapping[str, int]:
        """The extents of f, n and k, the longest one where there are several k."""
        size = {axis: dim.constant or 0 for axis, dim in workload.sizes.items()}
        depth = max(size[link.axes["k"]] for link in self.firsts)
        return {"f": size[self.second.axes["k"]], "n": size[self.second.axes["n"]], "k": depth}


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Chain | NoMatch:
    """The chain of a workload, or why it is none."""
    stages = workload.program.stages
    products = [position for position, stage in enumerate(stages) if stage.reducer]
    if len(products) < 2:
        return NoMatch("there are no two products")
    links = []
    for position in products:
        link = _link(workload, stages[position])
        if isinstance(link, NoMatch):
            return link
        links.append(link)
    *others, final, second = links
    between = tuple(stage for stage in stages[: products[-1]] if stage.reducer is None)
    out = workload.program.outputs[0]
    chain = Chain(
        (*others, replace(final, epilogue=between)), replace(second, epilogue=stages[products[-1] + 1 :]),
        out, workload.tensors[out].dtype,
    )  # fmt: skip
    problem = next(_problems(workload, chain), None)
    return NoMatch(problem) if problem else chain


def chain_of(workload: Workload) -> Chain:
    """The chain of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def _link(workload: Workload, stage: Stage) -> Link | NoMatch:
    """A stage as a product of rows with a matrix, whichever operand it names first."""
    product = stage.body
    if stage.reducer != "sum" or len(stage.axes) != 2 or len(stage.reduce_axes) != 1:
        return NoMatch(f"stage {stage.tensor} is not a sum over one axis that leaves two")
    if not isinstance(product, Binary) or product.operator != "*":
        return NoMatch(f"stage {stage.tensor} is not a sum of products")
    (m, n), (k,) = stage.axes, stage.reduce_axes
    for left, right in ((product.left, product.right), (product.right, product.left)):
        if not (isinstance(left, Read) and isinstance(right, Read) and is_plain(left) and is_plain(right)):
            continue
        if axes_of_read(left) == (m, k) and axes_of_read(right) in ((n, k), (k, n)):
            return Link(
                stage, left.tensor, right.tensor, right_is_kn=axes_of_read(right) == (k, n),
                right_is_constant=right.tensor in workload.constants, epilogue=(),
                dynamic=frozenset("m" if workload.sizes[m].constant is None else ()),
                left_dtype=workload.tensors[left.tensor].dtype, right_dtype=workload.tensors[right.tensor].dtype,
            )  # fmt: skip
    return NoMatch(f"the operands of stage {stage.tensor} are not [m, k] and [n, k] or [k, n]")


def _problems(workload: Workload, chain: Chain) -> Iterator[str]:
    """What of it the rule's code does not do."""
    first, second = chain.firsts[-1], chain.second
    weights, lefts = {link.right for link in chain.links}, {link.left for link in chain.firsts}
    if workload.padding:
        yield "a tensor is padded"
    if len(weights) < len(chain.links) or weights & lefts or not weights | lefts <= set(workload.program.inputs):
        yield "the operands are not different inputs"
    for link in chain.firsts:
        if link.stage.axes != first.stage.axes:
            yield f"stages {link.stage.tensor} and {first.stage.tensor} do not have the same axes"
        if link.left in workload.constants:
            yield f"the left operand {link.left} is constant"
    results = [link.stage.tensor for link in chain.firsts]
    yield from _elementwise_problems(workload, first, results, weights)
    # The intermediate is what was computed last, and nothing but the second product reads it.
    intermediate = first.epilogue[-1].tensor if first.epilogue else results[-1]
    if second.left != intermediate:
        yield f"the last product is of {second.left}, not of {intermediate}"
    sizes = workload.sizes
    if [sizes[first.axes[axis]] for axis in "mn"] != [sizes[second.axes[axis]] for axis in "mk"]:
        yield f"{second.left} is read at other axes than it is computed at"
    yield from _elementwise_problems(workload, second, [second.stage.tensor], weights)
    if workload.program.outputs != ((second.epilogue or (second.stage,))[-1].tensor,):
        yield "an intermediate is an output, too"
    yield from _storage_problems(workload, chain)


def _elementwise_problems(workload: Workload, link: Link, known: list[str], weights: set[str]) -> Iterator[str]:
    """Of the stages behind a product, each of which reads those before it."""
    for stage in link.epilogue:
        if problem := elementwise_problem(workload, stage, link.stage.axes, known, weights):
            yield problem
        known = [*known, stage.tensor]


def _storage_problems(workload: Workload, chain: Chain) -> Iterator[str]:
    for tensor in workload.tensors.values():
        if tensor.dtype in UNSUPPORTED:
            yield f"{tensor.name} is {tensor.dtype}"
    for link in chain.links:
        if link.left_dtype not in FMA.left or link.right_dtype not in FMA.right:
            yield f"{link.left_dtype} is not multiplied by {link.right_dtype} in {DTYPE}"
        if workload.element_types.reduced_type(link.stage) != DTYPE:
            yield f"sums of stage {link.stage.tensor} are not {DTYPE}"
        m, n, k = (workload.sizes[axis] for axis in link.axes.values())
        if None in (n.constant, k.constant):
            yield f"the dims of {link.right} depend on shape variables"
        if workload.tensors[link.right].dims != ((k, n) if link.right_is_kn else (n, k)):
            yield f"{link.right} is larger than what is read of it"
        if workload.tensors[link.left].dims != (m, k):
            yield f"{link.left} is larger than what is read of it"
    for stage in workload.program.stages:
        if stage.tensor != chain.out and workload.tensors[stage.tensor].dtype != DTYPE:
            yield f"{stage.tensor} is {workload.tensors[stage.tensor].dtype}, not {DTYPE}"
