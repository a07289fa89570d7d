"""Weights that a graph computes from constants, as expressions of n and k: numbers of four bits that are unpacked, less
a zero point, times a scale.

Every operation is followed back, element by element, to the constants that it reads: the weight is computed within the
product then, and its constants stay as small as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shapewright.models.draft import DTYPES as PROGRAMS
from shapewright.models.graph import ONE, CannotLift, Graph, Input, Node
from shapewright.models.lifted import Operand
from shapewright.models.views import each, product
from tuner.program.language.dims import DimExpr, Quotient
from tuner.program.language.dtypes import DTYPES, FLOATS

Index = tuple[DimExpr, ...]
ZERO = DimExpr.of(0)
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
MASK, HALF = 15, 4
"""What leaves four bits of a byte, and the distance of its halves."""
MAX_STEPS = 256
"""Operations of one element: what is read twice is followed twice."""
MOST = 2**31 - 1
"""The largest number of a program."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element's value as text. ``bits``: where it is nothing but four bits of an element, the text of that and the
    shift."""

    text: str
    dtype: str
    bits: tuple[str, int] | None = None


@dataclass(slots=True)
class Computed:
    """The weight at [n, k] that a ``product`` reads, its constants by node, and the nodes that compute it."""

    graph: Graph
    product: str
    operands: dict[str, Operand] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    text: str = ""
    steps: int = 0

    @property
    def dtypes(self) -> dict[str, str]:
        """Those of constants that are integers."""
        found = {each.tensor: self.graph[each.node].dtype for each in self.operands.values()}
        return {name: dtype for name, dtype in found.items() if dtype not in FLOATS}

    def inner(self) -> Iterator[str]:
        """The nodes that nobody else reads, in the order of the graph."""
        kept = dict(self.nodes)
        while outside := [name for name in kept if not self.graph.readers(name) <= {*kept, self.product}]:
            for name in outside:
                del kept[name]
        return (name for name in self.graph.nodes if name in kept)

    # -- elements ---------------------------------------------------------------------------------------------------
    def element(self, node: Node, index: Index) -> Element:
        """The element of a node's value. Raises CannotLift where it is not computed from constants, or not known."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise CannotLift(f"the weight takes more than {MAX_STEPS} operations")
        if node.op == "constant":
            return self._read(node, index)
        self.nodes[node.name] = None
        sources = [self.graph[name] for name in node.sources]
        match node.op:
            case "identity":
                return self.element(sources[0], index)
            case "reshape":
                return self.element(sources[0], _reshaped(index, node.shape or (), sources[0].shape or ()))
            case "permute":
                places = dict(zip(node.attrs["order"], index, strict=True))
                return self.element(sources[0], tuple(places[axis] for axis in range(len(index))))
            case "expand":
                return self.element(sources[0], _broadcast(index, sources[0]))
            case "cat" | "stack":
                return self._joined(node, sources, index)
            case "cast":
                return self._cast(self.element(sources[0], index), node.dtype)
            case "bits_and" | "shift_right":
                return self._bits(node, index)
            case op if op in OPERATORS:
                one, other = (self._input(node, value, index) for value in node.inputs)
                return self._result(f"({one.text} {OPERATORS[op]} {other.text})", node, one, other)
        raise CannotLift(f"the weight is computed by {node.op}")

    def _input(self, node: Node, value: Input, index: Index) -> Element:
        if isinstance(value, str):
            return self.element(self.graph[value], _broadcast(index, self.graph[value]))
        if not isinstance(value, int | float):
            raise CannotLift(f"the weight is computed by {node.op} of no numbers")
        return Element(f"({value})" if value < 0 else str(value), "")

    def _read(self, node: Node, index: Index) -> Element:
        is_known = node.dtype in PROGRAMS if node.dtype in FLOATS else node.dtype in DTYPES
        if node.shape is None or len(node.shape) != len(index) or not is_known:
            raise CannotLift(f"the constant {node.name} has no known form")
        known = self.operands.get(node.name)
        name = known.tensor if known else f"c{len(self.operands)}"
        self.operands[node.name] = known or Operand(name, node.name, each(len(index)), True)
        return Element(f"{name}[{', '.join(map(str, index))}]", node.dtype)

    @staticmethod
    def _cast(value: Element, dtype: str) -> Element:
        if dtype not in DTYPES:
            raise CannotLift(f"the weight is {dtype}")
        return Element(f"cast({value.text}, {dtype})", dtype)

    def _result(self, text: str, node: Node, *inputs: Element) -> Element:
        """Integers wrap around in the node's dtype."""
        own = {value.dtype for value in inputs if value.dtype}
        value = Element(text, node.dtype)
        return value if own == {node.dtype} and node.dtype in FLOATS else self._cast(value, node.dtype)

    def _bits(self, node: Node, index: Index) -> Element:
        value, number = self._input(node, node.inputs[0], index), node.inputs[1]
        most = DTYPES[node.dtype].bits - 1 if node.op == "shift_right" else MOST
        if type(number) is not int or not 0 <= number <= most or value.dtype != node.dtype:
            raise CannotLift(f"the weight is computed by {node.op} of {number}")
        if node.op == "shift_right":
            if (node.dtype, number) == ("uint8", HALF):
                return _of_bits(value.text, number, node.dtype)
            bits = (value.text, number) if value.bits is None else None
            return Element(f"cast({value.text} >> {number}, {node.dtype})", node.dtype, bits)
        if number == MASK:
            return _of_bits(*(value.bits or (value.text, 0)), node.dtype)
        return Element(f"cast({value.text} & {number}, {node.dtype})", node.dtype)

    def _joined(self, node: Node, sources: Sequence[Node], index: Index) -> Element:
        """One of several pieces of one size, by the index along an axis."""
        axis = node.attrs["axis"] % len(index)
        shapes = [source.shape or () for source in sources]
        size = ONE if node.op == "stack" else shapes[0][axis]
        if size.constant is None or any(shape != shapes[0] for shape in shapes) or not size.constant:
            raise CannotLift("the weight is of pieces of several sizes")
        which, within = index[axis] // size.constant, index[axis] % size.constant
        place = (*index[:axis], *([] if node.op == "stack" else [within]), *index[axis + 1 :])
        pieces = [self.element(source, place) for source in sources]
        own = [piece.bits for piece in pieces if piece.bits]
        steps = {later[1] - before[1] for before, later in itertools.pairwise(own)}
        if len(own) == len(pieces) and len(steps) == 1 and len({read for read, _ in own}) == 1:
            return _of_bits(own[0][0], DimExpr.of(own[0][1]) + which * steps.pop(), node.dtype)
        text = pieces[-1].text
        for number, piece in reversed(list(enumerate(pieces[:-1]))):
            text = f"where({which} == {number}, {piece.text}, {text})"
        return Element(text, node.dtype)


def computed(graph: Graph, weight: Node, index: Index, product: str) -> Computed:
    """The weight of a product, integers at its heart, at ``index`` by n and k. Raises CannotLift."""
    found = Computed(graph, product)
    found.text = found.element(weight, index).text
    if not found.dtypes:
        raise CannotLift(f"the weight {weight.name} is not unpacked of integers")
    return found


def _of_bits(read: str, shift: int | DimExpr, dtype: str) -> Element:
    """Four bits, which any dtype holds."""
    bits = (read, shift) if isinstance(shift, int) else None
    return Element(f"(({read} >> ({shift})) & {MASK})", dtype, bits)


# -- indices ----------------------------------------------------------------------------------------------------------
def _broadcast(index: Index, source: Node) -> Index:
    """The index of what is broadcast to where ``index`` is of."""
    shape = source.shape or ()
    own = index[len(index) - len(shape) :]
    return tuple(ZERO if size == ONE else at for at, size in zip(own, shape, strict=True))


def _reshaped(index: Index, shape: Index, before: Index) -> Index:
    """The index in ``before`` of what stands at ``index`` in ``shape``: both in row-major order."""
    found: list[DimExpr] = []
    at, own = list(zip(index, shape, strict=True)), list(before)
    while at or own:
        left, right = [at.pop(0)] if at else [], [own.pop(0)] if own else []
        while product([size for _, size in left]) != product(right):
            # The shorter side grows.
            is_short = _count([size for _, size in left]) < _count(right)
            if not (at if is_short else own):
                raise CannotLift("the weight is reshaped in a way that is not known")
            (left if is_short else right).append((at if is_short else own).pop(0))  # type: ignore[arg-type]
        found += _parted(_flat(left), right)
    return tuple(found)


def _count(sizes: Sequence[DimExpr]) -> int:
    count = product(sizes).constant
    if count is None:
        raise CannotLift("the weight has a dynamic size")
    return count


def _flat(places: Sequence[tuple[DimExpr, DimExpr]]) -> DimExpr:
    """One index of several with their sizes; of ``i // s`` and ``i % s`` it is ``i``."""
    total = ZERO
    for at, size in places:
        count = size.constant or 1
        whole = _of_remainder(at, count)
        total = whole if whole is not None and whole // count == total else total * count + at
    return total


def _of_remainder(at: DimExpr, count: int) -> DimExpr | None:
    match at.terms:
        case (((Quotient(numerator=whole, operator="%", divisor=divisor),), 1),) if divisor == count:
            return whole
    return None


def _parted(flat: DimExpr, sizes: Sequence[DimExpr]) -> list[DimExpr]:
    """The index along each of ``sizes`` of one along them all."""
    found: list[DimExpr] = []
    for place, size in enumerate(sizes):
        rest, count = _count(sizes[place + 1 :]), size.constant or 1
        at = flat // rest
        found.append(at if not found and count != 1 else at % count)
    return found
