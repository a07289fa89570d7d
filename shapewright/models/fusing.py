"""Elementwise nodes as stages behind a program: biases, activations, residuals, and norms of inference."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shapewright.models.draft import DTYPES, Draft, Fused, Produced
from shapewright.models.elementwise import BYTES, COMMUTATIVE, TEXT, epilogue_of, text_of
from shapewright.models.graph import ONE, VIEWS, CannotLift, Graph, Input, Node, Operation
from shapewright.models.lifted import Fold, Operand, View
from shapewright.models.operands import behind, fixed
from shapewright.models.orders import lies, order_of
from shapewright.models.views import broadcast, grouped

ROW_AXES = ("m", "n", "p")
"""The axes of programs that read rows of one tensor: reductions, norms, softmax."""

Reads = tuple[tuple[str, tuple[int, ...]], ...]


def biased(operation: Operation, draft: Draft) -> Draft:
    """The draft with the bias that an operator has as its third input."""
    bias = operation.input(2)
    if bias is None:
        return draft
    operand, dims = _read(operation.graph, draft, bias, operation.node)
    return _with(draft.with_operand(operand), "add", ("{x}", f"{{{operand.tensor}}}"), ((operand.tensor, dims),))


def elementwise(operation: Operation) -> Draft:
    """A node on its own, as the beginning of a chain."""
    graph, node, shape = operation.graph, operation.node, operation.shape
    view = tuple((axis,) for axis in order_of(graph, node) if shape[axis] != ONE)
    if not view:
        raise CannotLift("it computes a single value")
    axes = tuple(f"a{number}" for number in range(len(view)))
    dims = tuple(shape[axis] for (axis,) in view)
    draft = Draft(None, {}, None, (), axes, dims, axes[-1], (node.name,), view)
    if node.op == "batch_norm":
        x, along = _read(graph, draft, operation.tensor(0), node, "x")
        return _scaled(graph, draft.with_operand(x), node, (("x", along),))
    tensors = list(dict.fromkeys(node.sources))
    if node.op in COMMUTATIVE:
        tensors.sort(key=lambda name: graph.shape(name) != shape)
    names: dict[Input, str] = {}
    reads: Reads = ()
    for name in tensors:
        operand, along = _read(graph, draft, graph[name], node, "y" if reads else "x")
        draft = draft.with_operand(operand)
        names[name], reads = ("{x}" if not reads else f"{{{operand.tensor}}}"), (*reads, (operand.tensor, along))
    ordered = [names.get(each) or _number(each) for each in _in_order(node, tensors[0])]
    return replace(draft, stages=(Fused(node.op, text_of(node.op, ordered, node.attrs, node.dtype), reads),))


def extended(graph: Graph, draft: Draft, taken: Collection[str]) -> Draft | None:
    """The draft with the one node that reads its value, views in between passed through; None if it cannot be fused."""
    try:
        passed = _passed(graph, draft)
        reader = graph.only_reader(passed.node)
        if reader is None or reader.name in taken:
            return None
        if reader.op == "batch_norm" and reader.inputs[0] == passed.node:
            normalized = _normalized(graph, passed, reader)
            return replace(normalized, nodes=(*normalized.nodes, reader.name))
        if graph.shape(reader.name) != graph.shape(passed.node):
            return None
        dtype = graph[passed.node].dtype
        if reader.dtype == dtype not in DTYPES:
            # What is computed of integers stays exact: stages are of floats.
            return None
        if reader.dtype != dtype:
            passed = _cast(graph, passed, reader)
            if reader.op == "cast":
                return replace(passed, nodes=(*passed.nodes, reader.name))
        return _appended(graph, passed, reader) if reader.op in TEXT else None
    except CannotLift:
        return None


def _cast(graph: Graph, draft: Draft, reader: Node) -> Draft:
    """The draft in the dtype that ``reader`` makes of its value before all else.

    Sums of int32 become floats, floats that were clamped to what bytes have become these, and bytes floats again.
    Raises CannotLift for others: a half that becomes a float was rounded, and fused, it would not be.
    """
    dtype = graph[draft.node].dtype
    if (dtype == "int32" or (dtype in BYTES and draft.stages)) and reader.dtype in DTYPES:
        # Halves are computed in float32, and rounded where they are written.
        return replace(draft, stages=(*draft.stages, Fused("cast", "cast({x}, float32)")))
    last = next(graph[name] for name in reversed(draft.nodes) if graph[name].op not in VIEWS)
    low, high = BYTES.get(reader.dtype, (0, -1))
    is_byte = last.op == "clamp" and low <= last.attrs["low"] <= last.attrs["high"] <= high
    if reader.op == "cast" and dtype == "float32" and is_byte:
        text = f"cast({{x}}, {reader.dtype})"
        return replace(draft, stages=(*draft.stages, Fused("cast", text, dtype=reader.dtype)))
    raise CannotLift(f"{dtype} becomes {reader.dtype}")


def preceded(graph: Graph, draft: Draft, taken: Collection[str]) -> Draft | None:
    """The draft with one elementwise node in front, which computes what its rows are read from and nobody else reads.

    None where there is none. A value that several read stays in memory, and is not computed again for each.
    """
    axes = tuple(name for name, _ in draft.base.extents) if draft.base else ()
    if not axes or not set(axes) <= set(ROW_AXES):
        return None
    rows = {"x"} | {tensor for stage in draft.before for tensor, dims in stage.reads if len(dims) == len(axes)}
    for operand in draft.operands:
        producer, reader = graph[operand.node], graph.only_reader(operand.node)
        is_own = operand.tensor in rows and reader is not None and reader.name in draft.nodes
        if is_own and producer.op in TEXT and producer.name not in taken:
            try:
                return _produced(graph, draft, operand, producer, axes)
            except CannotLift:
                continue
    return None


def _produced(graph: Graph, draft: Draft, operand: Operand, node: Node, axes: tuple[str, ...]) -> Draft:
    """The draft with ``operand`` computed by ``node``, whose own inputs become operands."""
    whole = graph.shape(node.name)
    names: dict[Input, str] = {}
    reads: Reads = ()
    inputs = _in_order(node, next((name for name in node.sources if graph.shape(name) == whole), ""))
    for name in dict.fromkeys(each for each in inputs if isinstance(each, str)):
        source = graph[name]
        while source.op in ("expand", "identity"):
            source = graph[source.sources[0]]
        found = broadcast(graph.shape(source.name), whole, operand.view)
        if found is None:
            raise CannotLift(f"{name} is broadcast along a part of an axis of the program")
        view, dims = found
        tensor = draft.fresh(_role(node.op, len(dims) == len(axes)) if reads else operand.tensor)
        new = fixed(graph, tensor, source, view)
        draft = draft.with_operand(new)
        names[name], reads = f"{{{new.tensor}}}", (*reads, (new.tensor, dims))
    texts = [names.get(each) or _number(each) for each in inputs]
    stage = Produced(node.op, operand.tensor, text_of(node.op, texts, node.attrs, node.dtype), axes, reads)
    rest = tuple(each for each in draft.operands if each.tensor != operand.tensor)
    return replace(draft, operands=rest, before=(stage, *draft.before), nodes=(node.name, *draft.nodes))


def _passed(graph: Graph, draft: Draft) -> Draft:
    """Views that the value goes through: what they change is how the output is looked at."""
    while (reader := graph.only_reader(draft.node)) is not None and reader.op in ("identity", "reshape", "permute"):
        view: View | None = draft.view
        if reader.op == "permute":
            place = {axis: new for new, axis in enumerate(reader.attrs["order"])}
            view = tuple(tuple(place[axis] for axis in group) for group in draft.view)
        elif reader.op == "reshape":
            view = grouped(graph.shape(reader.name), draft.dims) if _is_in_order(draft.view) else None
        if view is None:
            break
        draft = replace(draft, nodes=(*draft.nodes, reader.name), view=view)
    return draft


def _is_in_order(view: View) -> bool:
    order = [axis for group in view for axis in group]
    return order == sorted(order)


def _appended(graph: Graph, draft: Draft, node: Node) -> Draft:
    """One elementwise node behind the draft, whose value it reads."""
    names: dict[Input, str] = {draft.node: "{x}"}
    reads: Reads = ()
    for name in dict.fromkeys(each for each in node.sources if each != draft.node):
        operand, dims = _read(graph, draft, graph[name], node)
        if not operand.constant and not lies(graph, graph[operand.node], operand.view):
            raise CannotLift(f"{name} would have to be transposed")
        draft = draft.with_operand(operand)
        names[name], reads = f"{{{operand.tensor}}}", (*reads, (operand.tensor, dims))
    inputs = tuple(names.get(each) or _number(each) for each in _in_order(node, draft.node))
    longer = _with(draft, node.op, inputs, reads, node.attrs, node.dtype)
    return replace(longer, nodes=(*longer.nodes, node.name))


def _with(
    draft: Draft,
    op: str,
    inputs: tuple[str | float, ...],
    reads: Reads,
    attrs: Mapping[str, Any] | None = None,
    dtype: str = "",
) -> Draft:
    """A stage of ``op``; ``inputs``: ``{x}``, numbers, and the tensors of ``reads``, operands of the draft."""
    epilogue = None
    if len(reads) == 1:
        ((_, dims),) = reads
        # The catalogue's epilogues read tensors along axes, and a single number has none.
        is_whole = bool(draft.axes) and dims == tuple(range(len(draft.axes)))
        epilogue = epilogue_of(op, is_whole, [draft.axes[dim] for dim in dims] == [draft.channel])
    elif not reads and op != "add":
        epilogue = epilogue_of(op, False, False)
    return replace(draft, stages=(*draft.stages, Fused(op, text_of(op, inputs, attrs or {}, dtype), reads, epilogue)))


def _in_order(node: Node, first: str) -> tuple[Input, ...]:
    """A node's inputs, ``first`` in front where the order does not matter: one text for one meaning."""
    if node.op not in COMMUTATIVE:
        return node.inputs
    return tuple(sorted(node.inputs, key=lambda each: each != first))


def _read(
    graph: Graph, draft: Draft, node: Node, reader: Node, role: str | None = None
) -> tuple[Operand, tuple[int, ...]]:
    """A tensor that is broadcast to the value of ``reader``: an operand, and the dims of the output that it has."""
    while node.op in ("expand", "identity"):
        node = graph[node.sources[0]]
    shape, whole = graph.shape(node.name), graph.shape(reader.name)
    # The bias of a convolution runs over its channels, whatever comes behind them.
    is_bias = reader.op == "conv"
    found = (((0,),), (draft.axes.index(draft.channel),)) if is_bias else broadcast(shape, whole, draft.view)
    if found is None:
        raise CannotLift(f"{node.name} is broadcast along a part of an axis of the program")
    view, dims = found
    role = role or _role(reader.op, len(dims) == len(draft.axes))
    return fixed(graph, draft.fresh(role), node, view), dims


def _role(op: str, is_whole: bool) -> str:
    """What a further tensor is called: as the catalogue's epilogues have it, where they do."""
    if op in ("mul", "div"):
        return "gate" if is_whole else "scale"
    return "residual" if is_whole else "bias"


def _number(value: Input) -> float:
    """Raises CannotLift for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise CannotLift(f"{value!r} stands where a number is expected")
    return float(value)


# -- batch normalisation --------------------------------------------------------------------------------------------
def _normalized(graph: Graph, draft: Draft, node: Node) -> Draft:
    """The draft with a normalisation of inference: folded into the convolution before it, or else as a stage."""
    try:
        return _folded(graph, draft, node)
    except CannotLift:
        return _scaled(graph, draft, node)


def _statistics(graph: Graph, node: Node, dtype: str) -> tuple[str | None, ...]:
    """Gamma, beta, mean and variance of a normalisation, where there are such."""
    constants = [None if each is None else behind(graph, graph.source(each))[0] for each in node.inputs[1:]]
    if not all(each is None or each.op == "constant" for each in constants):
        raise CannotLift("its statistics are new at every call")
    if any(each is not None and each.dtype != dtype for each in constants):
        raise CannotLift("its statistics are of another dtype than what it reads")
    return tuple(None if each is None else each.name for each in constants)


def _scaled(graph: Graph, draft: Draft, node: Node, reads: Reads = ()) -> Draft:
    """The draft with a stage that multiplies each channel, and adds to it. ``reads``: of the first stage its input's.

    Halves are left: their value before the norm is rounded, and so would the two constants be.
    """
    shape, names, eps = graph.shape(node.name), _statistics(graph, node, node.dtype), float(node.attrs["eps"])
    if node.dtype not in ("float32", "float64"):
        raise CannotLift(f"a norm of {node.dtype}")
    found = broadcast((shape[1], *[ONE] * (len(shape) - 2)), shape, draft.view)
    if found is None or len(found[1]) != 1:
        raise CannotLift("the channels of the norm are no axis of the program")
    texts = []
    for tensor, kind in (("scale", "scale"), ("shift", "bias")):
        own = Operand(draft.fresh(tensor), _mean(names), ((0,),), True, Fold(kind, (None, *names), eps))
        draft, reads = draft.with_operand(own), (*reads, (own.tensor, found[1]))
        texts.append(f"{{{own.tensor}}}")
    text = text_of("multiply_add", ("{x}", *texts), {}, node.dtype)
    return replace(draft, stages=(*draft.stages, Fused("batch_norm", text, reads)))


def _folded(graph: Graph, draft: Draft, node: Node) -> Draft:
    """The draft with a normalisation folded into the weight and the bias of the convolution right before it."""
    weight = next((each for each in draft.operands if each.tensor == "weight"), None)
    biases = [stage.reads[0][0] for stage in draft.stages if stage.epilogue == "bias"]
    if weight is None or not weight.constant or weight.fold or len(biases) != len(draft.stages) or len(biases) > 1:
        raise CannotLift("there is no convolution right before it")
    names = _statistics(graph, node, graph[weight.node].dtype)
    if not _runs_over_channels(graph, draft):
        raise CannotLift("it runs over another axis than the channels of the convolution before it")
    old = next((each for each in draft.operands if each.tensor in biases), None)
    if old is not None and (not old.constant or old.fold or len(graph.shape(old.node)) != 1):
        raise CannotLift("the bias before it is cast, no vector, or new at every call")
    eps = float(node.attrs["eps"])
    axis = _output_channel(draft, weight)
    weight = replace(weight, fold=Fold("weight", (weight.node, *names), eps, axis))
    fold = Fold("bias", (old.node if old else None, *names), eps)
    bias = Operand(old.tensor if old else "bias", _mean(names), ((0,),), True, fold)
    draft = draft.with_operand(weight).with_operand(bias)
    if old is None:
        draft = _with(draft, "add", ("{x}", "{bias}"), (("bias", (draft.axes.index(draft.channel),)),))
    return draft


def _mean(names: Sequence[str | None]) -> str:
    """A constant that has one number for each channel."""
    mean = names[2]
    assert mean is not None
    return mean


def _runs_over_channels(graph: Graph, draft: Draft) -> bool:
    """Whether the second axis of the value, views of the output passed through, is that of the output's channels."""
    shape, group = graph.shape(draft.node), draft.view[draft.axes.index(draft.channel)]
    is_alone = all(shape[axis] == ONE for axis in group if axis != 1)
    return is_alone and (1 in group or shape[1] == ONE)


def _output_channel(draft: Draft, weight: Operand) -> int:
    """The axis of the weight as it lies that has the channels of the output; any where there is one alone."""
    is_transposed = "transpose" in str(draft.op)
    if is_transposed and dict(draft.args).get("groups", 1) != 1:
        raise CannotLift("the channels of a grouped transposed convolution are no axis of its weight")
    return next(iter(weight.view[1 if is_transposed else 0]), 0)
