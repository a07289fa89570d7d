"""The small graph that frontends translate models into, and that everything else here reads.

A node has a neutral name of its operation. Tensors come as names of other nodes, numbers as numbers:

    input, constant [{value}]                         what a call brings, what stays (a weight); of bools and of bytes
                                                      the one value that all have
    identity x, reshape x, permute x {order}, expand x
    cat x y ... {axis}, stack x y ... {axis}          one behind the other, along an axis or a new one
    bits_and x number, shift_right x number           of integers
    rotary x cos sin                                  x * cos + cat(-upper, lower) * sin, of the halves of x's last axis
    part x {axis, start, keep}                        elements of an axis, one alone without ``keep``; no attributes
                                                      where it is another part
    linear x w [bias]                                 x[..., k] . w[n, k]^T
    matmul x y [addend]                               as NumPy's matmul, plus the addend
    linear_int4 x w scales [zeros] {block}            of w [n, blocks, bytes], two numbers of four bits in a byte, less
                                                      8 or the block's zero point, times its scale
    int_matmul x y [zero]                             rows of bytes, less the byte of 0, by a matrix of int8, in sums of
                                                      int32
    grouped_matmul x w group                          rows x[t, k] . w[group[t], k, n], 0 for rows of no group
    dequantised x scale [zero] {axis}                 of constants: numbers less a zero point, times a scale; these are
                                                      single numbers where the axis is None
    cast x                                            to the node's dtype
    conv x w [bias] {stride, pad, dilation: tuples; groups, transposed}
                                                      ``behind``: the padding behind an axis where ``pad`` is not that
    layer_norm x [gamma] [beta] {rank, eps}           over the last ``rank`` axes
    rms_norm x [gamma] {rank, eps}
    batch_norm x gamma beta mean var {eps}            of inference, axis 1 has the channels
    instance_norm x gamma beta {eps}                  of each channel of each image, axes from 2 on
    softmax, log_softmax x {axis}                     ``safe``: rows of -inf give 0, in place of NaN
    attention q k v [mask] {causal, scale}            [b, h, i, d], [b, h, j, d], [b, h, j, d]; scale None is 1/sqrt(d);
                                                      causal hides j > i; see ``shapewright.models.attention``
    max_pool, avg_pool x {window, stride, pad, dilation: tuples}
                                                      ``behind`` as above; ``counted``, ``divisor`` of means:
                                                      see ``shapewright.models.windows``
    pad x {front, behind: tuples; value}              by axis; negative numbers cut
    reduce x {kind, axes, keep}                       sum, mean, max, min
    int_sum x {axes, keep}                            of int8, in int32
    range {least}, full {value}                       integers upwards, one number everywhere
    ge x number, both x y, isnan x                    bools, of which masks are made
    unknown ...                                       ``reason`` says why

and the elementwise ones of ``shapewright.models.elementwise``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from tuner.program.language.dims import DimExpr

T = TypeVar("T")
Shape = tuple[DimExpr, ...]
Input = str | int | float | None
OUTPUT = "<output>"
"""Stands among the readers of what a model returns."""
ONE = DimExpr.of(1)
VIEWS = frozenset({"identity", "reshape", "permute", "expand"})
"""Operations that compute nothing."""


class CannotLift(Exception):
    """Why a node is left to the framework."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. ``covers``: the framework's nodes that it stands for, in order; the last one has its value.

    ``place`` is what people call the part of the model that it belongs to. ``shape`` is None where it is not known, or
    where the value is no tensor.
    """

    name: str
    op: str
    inputs: tuple[Input, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape | None = None
    dtype: str = ""
    reason: str = ""
    covers: tuple[str, ...] = ()
    place: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The nodes that it reads, in order."""
        return tuple(each for each in self.inputs if isinstance(each, str))

    @property
    def stands_for(self) -> tuple[str, ...]:
        return self.covers or (self.name,)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by name, each behind those that it reads; ``outputs`` are names of nodes."""

    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]
    _cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def symbols(self) -> frozenset[str]:
        """What the sizes of its tensors depend on."""
        return frozenset().union(*(dim.variables for node in self for dim in node.shape or ()))

    def renamed(self, names: Mapping[str, str]) -> Graph:
        """A copy with other names for the symbols; those that ``names`` leaves out keep theirs."""
        dims = {symbol: DimExpr.var(names.get(symbol, symbol)) for symbol in self.symbols}
        nodes = {
            node.name: node if node.shape is None else replace(node, shape=_substituted(node.shape, dims))
            for node in self
        }
        return Graph(nodes, self.outputs)

    def once(self, key: str, compute: Callable[[Graph], T]) -> T:
        """What ``compute`` makes of the graph, computed once and kept under ``key``."""
        if key not in self._cache:
            self._cache[key] = compute(self)
        found: T = self._cache[key]
        return found

    def readers(self, name: str) -> frozenset[str]:
        """The nodes that read a node's value, and OUTPUT if the model returns it."""
        return self.once("readers", _readers).get(name, frozenset())

    def only_reader(self, name: str) -> Node | None:
        """The node that alone reads a value, if there is one."""
        readers = self.readers(name)
        (reader,) = readers if len(readers) == 1 else (OUTPUT,)
        return None if reader == OUTPUT else self.nodes[reader]

    def shape(self, name: str) -> Shape:
        """Raises CannotLift where it is not known."""
        shape = self.nodes[name].shape
        if shape is None:
            raise CannotLift(f"the shape of {name} is not known")
        return shape

    def source(self, name: Input) -> Node:
        """The node of an input, identities looked through. Raises CannotLift for a number or nothing."""
        if not isinstance(name, str):
            raise CannotLift(f"{name!r} stands where a tensor is expected")
        node = self.nodes[name]
        while node.op == "identity":
            node = self.nodes[node.sources[0]]
        return node


def _readers(graph: Graph) -> Mapping[str, frozenset[str]]:
    readers: dict[str, set[str]] = {}
    for node in graph:
        for source in node.sources:
            readers.setdefault(source, set()).add(node.name)
    for output in graph.outputs:
        readers.setdefault(output, set()).add(OUTPUT)
    return {name: frozenset(each) for name, each in readers.items()}


def _substituted(shape: Shape, dims: Mapping[str, DimExpr]) -> Shape:
    return tuple(dim.substituted(dims) for dim in shape)


@dataclass(frozen=True)
class Operation:
    """A node beside its graph, for those who look at one node."""

    graph: Graph
    node: Node

    @cached_property
    def shape(self) -> Shape:
        return self.graph.shape(self.node.name)

    def input(self, position: int) -> Node | None:
        """The tensor at ``position``, None if there is none. Raises CannotLift for a number."""
        given = self.node.inputs[position] if position < len(self.node.inputs) else None
        return None if given is None else self.graph.source(given)

    def tensor(self, position: int) -> Node:
        """The tensor at ``position``, which must be there. Raises CannotLift."""
        found = self.input(position)
        if found is None:
            raise CannotLift(f"{self.node.op} has no input {position}")
        return found

    def attr(self, name: str) -> Any:
        return self.node.attrs[name]
