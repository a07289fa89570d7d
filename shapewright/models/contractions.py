"""Linear layers and products of matrices as programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shapewright.models.computed import computed
from shapewright.models.draft import Draft, Fused, draft_of, lifted, rules_of
from shapewright.models.graph import ONE, CannotLift, Graph, Node, Operation, Shape
from shapewright.models.lifted import Fold, Operand, View
from shapewright.models.operands import Order, behind, constant_behind, listed, operand, swapped
from shapewright.models.views import product
from tuner.errors import InvalidInput
from tuner.program.job.build import ProgramOp
from tuner.program.language.dims import DimExpr
from tuner.program.target import native

LESS_ZERO = ProgramOp(
    "q[m, n] = sum(k) x[m, k] * w[n, k]\nout[m, n] = q[m, n] - cast(zero[], int32) * c[n]", constant=("w", "c")
)
"""dense of bytes, whose rows are less a zero point: as many times the sums of the weight's columns."""
KEPT_BYTES = ProgramOp("out[m, n] = sum(k) x[m, k] * cast(w[n, k], float32)", constant=("w",))
"""dense with a weight that stays int8 in memory: what rows of floats are multiplied by is known without its scales."""
N, K = DimExpr.var("n"), DimExpr.var("k")
NEW_WEIGHT = ProgramOp("out[m, n] = sum(k) x[m, k] * w[n, k]")
"""dense with a weight that is new at every call."""


def linear(operation: Operation) -> Draft:
    """x[..., k] . w[n, k]^T, the leading axes flattened; the bias is fused."""
    x, w = operation.tensor(0), operation.tensor(1)
    return _rows(operation, x, w, is_kn=False)


def matmul(operation: Operation) -> Draft:
    """NumPy's matmul: rows of x by a matrix, or a matrix for each of a batch."""
    x, y = operation.tensor(0), operation.tensor(1)
    ranks = len(operation.graph.shape(x.name)), len(operation.graph.shape(y.name))
    if min(ranks) < 2:
        raise CannotLift(f"an operand of {min(ranks)} axes: a product of vectors")
    matrix = _repeated(operation.graph, y) if ranks[0] == ranks[1] else y
    if len(operation.graph.shape(matrix.name)) == 2:
        return _rows(operation, x, matrix, is_kn=True)
    return _batched(operation, x, y)


def int_matmul(operation: Operation) -> Draft:
    """Rows of bytes by a matrix of int8 that stays: no instruction takes one as it lies."""
    graph, x, w, zero = operation.graph, operation.tensor(0), operation.tensor(1), operation.input(2)
    if not (found := constant_behind(graph, w)):
        raise CannotLift(f"the weight {w.name} is new at every call")
    dtypes = {"x": graph[x.name].dtype, "w": "int8", "out": "int32"}
    draft = _rows(operation, x, w, is_kn=True, dtypes=dtypes)
    if zero is None:
        return draft
    kept, order, _ = found
    sums = Operand("c", kept.name, ((0,),), True, Fold("sums", (kept.name,), 0.0, order[1], "int32"))
    operands = (*draft.operands, Operand("zero", zero.name, ()), sums)
    dtypes |= {"zero": graph[zero.name].dtype, "c": "int32", "q": "int32"}
    return draft_of(LESS_ZERO, draft.args, operands, operation, draft.view, dtypes)


def linear_int4(operation: Operation) -> Draft:
    """Rows by a matrix of numbers of four bits in blocks along k, each with a scale and perhaps a zero point."""
    graph, block = operation.graph, int(operation.node.attrs["block"])
    x, w, scales = (operation.tensor(place) for place in range(3))
    zeros = operation.tensor(3) if any(operation.node.inputs[3:]) else None
    are_bits = zeros is not None and graph[zeros.name].dtype == "uint8"
    if not all(constant_behind(graph, each) for each in (w, scales, zeros) if each):
        raise CannotLift(f"the weight {w.name} is new at every call")
    x, order = _as_rows_lie(graph, x)
    rows, last = product(graph.shape(x.name)[:-1]), len(order) - 1
    n, blocks, _ = graph.shape(w.name)
    args = {"m": rows, "n": n, "k": graph.shape(x.name)[order[last]]}
    operands = [
        operand(graph, "x", x, (rows, args["k"])), Operand("w", w.name, ((0,), (1,), (2,)), True),
        _by_blocks(graph, "s", scales, (n, blocks)),
    ]  # fmt: skip
    if zeros is not None:
        operands.append(_by_blocks(graph, "zero", zeros, (n, (blocks + 1) // 2 if are_bits else blocks)))
    view: View = (tuple(order.index(axis) for axis in range(last)), (last,))
    bytes_of = {"w": "uint8"} | ({"zero": "uint8"} if are_bits else {})
    return draft_of(_of_int4(block, zeros is not None, are_bits), args, operands, operation, view, bytes_of)


def _of_int4(block: int, has_zeros: bool, are_bits: bool) -> ProgramOp:
    """Zero points may be numbers of four bits, too."""
    number, zero = f"(w[n, k // {block}, k % {block} // 2] >> (4 * (k % 2))) & 15", "8"
    if are_bits:
        zero = f"cast((zero[n, k // {2 * block}] >> (4 * (k // {block} % 2))) & 15, float32)"
    elif has_zeros:
        zero = f"zero[n, k // {block}]"
    weight = f"(cast({number}, float32) - {zero}) * s[n, k // {block}]"
    constants = ("w", "s", *(["zero"] if has_zeros else []))
    return ProgramOp(f"out[m, n] = sum(k) x[m, k] * ({weight})", constant=constants)


def _by_blocks(graph: Graph, tensor: str, node: Node, dims: Shape) -> Operand:
    """A constant of ``dims``, which may be one after the other in one axis."""
    shape = graph.shape(node.name)
    if len(shape) == len(dims):
        return operand(graph, tensor, node, dims)
    if product(shape) != product(dims) or len(shape) != 1:
        raise CannotLift(f"{node.name} has shape {listed(shape)}, not {listed(dims)}")
    return Operand(tensor, node.name, ((0,),), True, split=dims[1].constant or 0)


def _repeated(graph: Graph, node: Node) -> Node:
    """The one matrix that all matrices of a batch are; the node itself where they are several."""
    source = node
    while source.op in ("identity", "expand"):
        source = graph[source.sources[0]]
    return source if graph.shape(source.name) == graph.shape(node.name)[-2:] else node


def _rows(operation: Operation, x: Node, w: Node, is_kn: bool, dtypes: Mapping[str, str] | None = None) -> Draft:
    graph = operation.graph
    ws = graph.shape(w.name)
    if len(ws) != 2 or not graph.shape(x.name):
        raise CannotLift(f"the weight {w.name} has {len(ws)} axes")
    n, k = (ws[1], ws[0]) if is_kn else ws
    x, order = _as_rows_lie(graph, x)
    rows, last = product(graph.shape(x.name)[:-1]), len(order) - 1
    view: View = (tuple(order.index(axis) for axis in range(last)), (last,))
    left = operand(graph, "x", x, (rows, k))
    args = {"m": rows, "n": n, "k": k}
    if constant_behind(graph, w):
        right = operand(graph, "w", w, (n, k), (1, 0) if is_kn else None)
        if right.fold is not None and right.fold.kind == "dequantised":
            return _dequantised(operation, left, right, args, view)
        if right.fold is not None and graph[right.node].dtype == "int8":
            return draft_of(KEPT_BYTES, args, (left, replace(right, fold=None)), operation, view, {"w": "int8"})
        return draft_of("dense", args, (left, right), operation, view, dtypes)
    if (unpacked := _unpacked(operation, w, left, args, view, is_kn=is_kn)) is not None:
        return unpacked
    source, order = behind(graph, w)
    if is_kn and order == (0, 1):
        return draft_of("matmul", args, (left, operand(graph, "y", w, (k, n))), operation, view)
    kept = source if is_kn and order == (1, 0) else w
    right = Operand("w", kept.name, ((0,), (1,)) if kept is source or not is_kn else ((1,), (0,)))
    return draft_of(NEW_WEIGHT, args, (left, right), operation, view)


def _dequantised(
    operation: Operation, left: Operand, right: Operand, args: Mapping[str, DimExpr], view: View
) -> Draft:
    """Rows by a weight of int8 whose columns have a scale, which stays as it is; by others, dequantised once."""
    graph, fold = operation.graph, right.fold
    assert fold is not None
    _, scale, zero = fold.nodes
    is_one = scale is None or product(graph.shape(scale)) == ONE
    is_by_column = is_one or right.view[0] == (fold.axis,)
    if scale is None or zero is not None or graph[right.node].dtype != "int8" or not is_by_column:
        return draft_of("dense", args, (left, right), operation, view)
    draft = draft_of(KEPT_BYTES, args, (left, replace(right, fold=None)), operation, view, {"w": "int8"})
    stage = Fused("mul", "{x} * {scale}", (("scale", () if is_one else (1,)),))
    scales = Operand("scale", scale, () if is_one else ((0,),), True)
    return replace(draft.with_operand(scales), stages=(stage,))


def _unpacked(
    operation: Operation, w: Node, left: Operand, args: Mapping[str, DimExpr], view: View, *, is_kn: bool
) -> Draft | None:
    """Rows by a weight that is computed from constants of integers; None where it is not, or no rule takes it."""
    graph = operation.graph
    try:
        weight = computed(graph, w, (K, N) if is_kn else (N, K), operation.node.name)
        constants = tuple(weight.operands.values())
        shapes = {each.tensor: graph.shape(each.node) for each in constants}
        text = f"out[m, n] = sum(k) x[m, k] * {weight.text}"
        program = ProgramOp(text, constant=tuple(shapes), shapes=tuple(shapes.items()))
        draft = draft_of(program, args, (left, *constants), operation, view, weight.dtypes)
        draft = replace(draft, nodes=(*weight.inner(), *draft.nodes))
        return draft if rules_of(lifted(draft, graph).workload, native()) else None
    except (CannotLift, InvalidInput):
        return None


def _as_rows_lie(graph: Graph, x: Node) -> tuple[Node, Order]:
    """The node behind transposes of whole rows, and by axis of ``x`` the one of that node."""
    source, order = behind(graph, x)
    last = len(order) - 1
    return (source, order) if order[last] == last else (x, tuple(range(last + 1)))


def _batched(operation: Operation, x: Node, y: Node) -> Draft:
    graph = operation.graph
    xs, ys = graph.shape(x.name), graph.shape(y.name)
    if xs[:-2] != ys[:-2]:
        raise CannotLift(f"batches {listed(xs[:-2])} and {listed(ys[:-2])} are broadcast")
    rank, batch = len(xs), product(xs[:-2])
    args = {"b": batch, "m": xs[-2], "n": ys[-1], "k": xs[-1]}
    view = _leading(rank)
    left = Operand("x", x.name, view)
    source, order = behind(graph, y)
    if order == swapped(rank):
        return draft_of("batch_matmul_nt", args, (left, Operand("y", source.name, view)), operation, view)
    return draft_of("batch_matmul_nn", args, (left, Operand("y", y.name, view)), operation, view)


def _leading(rank: int) -> View:
    """All axes but the last two as one."""
    return (tuple(range(rank - 2)), (rank - 2,), (rank - 1,))
