"""Rotary embeddings as programs: the halves of each head as the two parts of complex numbers, which are turned.

Heads are read where a product has put them, and written as attention takes them: nothing is copied on the way.
"""

from __future__ import annotations

from shapewright.models.draft import Draft, draft_of
from shapewright.models.graph import CannotLift, Graph, Node, Operation, Shape
from shapewright.models.heads import heads_in
from shapewright.models.lifted import Operand
from shapewright.models.operands import fixed
from shapewright.models.views import broadcast, each
from tuner.program.job.build import ProgramOp

PROGRAM = "out[{out}] = {x} * {cosine} + where(d < {half}, -{turned}, {turned}) * {sine}"
AXES = ("bhid", "bihd")
"""Heads before positions, as attention has them, or behind."""


def rotary(operation: Operation) -> Draft:
    """x of four axes, the last one dims of a head; cosines and sines are the same for all heads."""
    graph, x = operation.graph, operation.tensor(0)
    shape = operation.shape
    cos, sin = (_angles(graph, operation.tensor(place), shape, name) for place, name in ((1, "cosine"), (2, "sine")))
    axes = next((axes for axes in AXES if len(shape) == 4 and _is_apart(axes, (cos, sin), shape)), None)
    size = shape[-1].constant if shape else None
    if axes is None or not size:
        raise CannotLift("its cosines and sines are not those of positions alone, the same for all of some heads")
    heads = heads_in(graph, x, axes, of_parts=False)
    shapes: tuple[tuple[str, Shape], ...] = ()
    operand, read = Operand("x", x.name, each(4)), list(axes)
    if heads is not None:
        operand = Operand("x", heads.node.name, heads.view, split=heads.split)
        read, shapes = list(heads.read), (("x", heads.shape),)
    half = size // 2
    text = PROGRAM.format(
        out=", ".join(axes), half=half, x=f"x[{', '.join(read)}]",
        turned=f"x[{', '.join([*read[:-1], f'(d + {half}) % {size}'])}]",
        **{one.tensor: f"{one.tensor}[{', '.join(axes[dim] for dim in dims)}]" for one, dims in (cos, sin)},
    )  # fmt: skip
    sizes = dict(zip(axes, shape, strict=True))
    return draft_of(ProgramOp(text, shapes=shapes), sizes, [operand, cos[0], sin[0]], operation, each(4))


def _angles(graph: Graph, node: Node, whole: Shape, name: str) -> tuple[Operand, tuple[int, ...]]:
    """Cosines or sines as an operand, and the axes of the value that they have."""
    while node.op in ("expand", "identity"):
        node = graph[node.sources[0]]
    found = broadcast(graph.shape(node.name), whole, each(len(whole)))
    if found is None or len(whole) - 1 not in found[1]:
        raise CannotLift(f"{node.name} is not broadcast to whole heads")
    view, dims = found
    return fixed(graph, name, node, view), dims


def _is_apart(axes: str, angles: tuple[tuple[Operand, tuple[int, ...]], ...], shape: Shape) -> bool:
    """Whether heads are where ``axes`` says: an axis of constant size along which nothing is turned otherwise."""
    at = axes.index("h")
    return shape[at].constant is not None and all(at not in dims for _, dims in angles)
