"""Scaled dot-product attention as a program.

Models have heads beside positions, [b, i, h, d], and transpose them for the product. Programs read them as they lie,
and write the output so too, where the model transposes it back: then nothing is copied. Where several queries share a
key, the program reads it at ``h // share``. Elements of values are ``c`` where these are of another width than keys.
The catalogue's operator stands for what is none of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shapewright.models.draft import Draft, draft_of
from shapewright.models.elementwise import shortest
from shapewright.models.graph import ONE, CannotLift, Graph, Node, Operation
from shapewright.models.heads import ELEMENTS, heads_in
from shapewright.models.lifted import Operand, View
from shapewright.models.masks import plain_mask
from shapewright.models.operands import behind
from shapewright.models.views import each, grouped
from tuner.program.job.build import ProgramOp
from tuner.program.language.dims import DimExpr

PROGRAM = (
    "dots[{rows}, j] = sum(d) {q} * {k}\n"
    "scores[{rows}, j] = {scores}\n"
    "top[{rows}] = max(j) scores[{rows}, j]\n"
    "e[{rows}, j] = exp(scores[{rows}, j] - top[{rows}])\n"
    "z[{rows}] = sum(j) e[{rows}, j]\n"
    "mixed[{rows}, {c}] = sum(j) e[{rows}, j] * {v}\n"
    "out[{out}] = {result}"
)
"""The catalogue's attention with other orders of axes, or with a mask."""
QUOTIENT = "mixed[{rows}, {c}] / z[{rows}]"
RESULT = f"where(extent(j) > 0, {QUOTIENT}, 0.0)"
"""Rows are 0 where there is no column."""
GUARDED = f"where(top[{{rows}}] == -inf, 0.0, {QUOTIENT})"
"""Rows of which a mask hides every column are 0, and so they are where there is none."""
PLAIN = {"q": "bhid", "k": "bhjd", "v": "bhjd"}
"""Axes of the catalogue's operands; ``g`` stands in the place of ``h`` where several heads share a key."""


def attention(operation: Operation) -> Draft:
    """q, k, v of [b, h, ., d], without h, or with one axis more in front; a mask of floats that is added, or of bools
    that say what is seen.

    ``transposed_keys``: k comes as [b, h, d, j]; ``heads_behind``: all come as [b, ., h, d]; ``from_end``: the last
    query sees all keys where it is causal, in place of the first one seeing the first; ``nan_rows``: what sees no key
    is NaN, in place of 0.
    """
    graph = operation.graph
    nodes = [operation.tensor(place) for place in range(3)]
    ranks = {len(graph.shape(node.name)) for node in nodes}
    if len(ranks) != 1 or not ranks <= {3, 4, 5}:
        raise CannotLift("queries, keys and values do not have four axes each")
    (rank,) = ranks
    whole = ["bihd", "bjhd", "bjhd"] if operation.node.attrs.get("heads_behind") else [*PLAIN.values()]
    names = [axes.replace("h", "") if rank == 3 else "a" * (rank - 4) + axes for axes in whole]
    if operation.node.attrs.get("transposed_keys"):
        names[1] = names[1].replace("jd", "dj")
    if graph.shape(nodes[2].name)[-1] != graph.shape(nodes[0].name)[-1]:
        names[2] = names[2].replace("d", "c")
    if rank == 4:
        nodes, names = _shared(graph, nodes, names)
    sizes = _sizes(graph, nodes, names)
    share, made = _share(sizes), names[0].replace("d", names[2][-1])
    if operation.shape != (*graph.shape(operation.tensor(0).name)[:-1], sizes[made[-1]]):
        # A mask that hides nothing, and so is left out, may say how large the scores become.
        raise CannotLift("the mask's shape is not that of the scores")
    scale, mask = _scale(operation, sizes["d"]), plain_mask(graph, operation.input(3))
    seen = _seen(operation, sizes)
    laid = _laid_out(graph, nodes, names, share)
    behind_it, out = _transposed_back(operation, made) if rank > 3 else ((), f"bhi{made[-1]}")
    operands = list({each.operand.tensor: each.operand for each in laid}.values())
    view: View = tuple((made.index(axis),) if axis in made else () for axis in out)
    is_plain = [each.axes for each in laid] == [*PLAIN.values()] and out == "bhid"
    if mask is None and is_plain and seen in ("", FROM_END):
        settings = {} if scale is None else {"scale": scale}
        settings |= {"causal": True} if seen else {}
        draft = draft_of("attention", {**sizes, **settings}, operands, operation, view)
    else:
        added, read = (None, "") if mask is None else _mask(operation, mask, sizes, names[0])
        is_bool = added is not None and mask is not None and mask.dtype == "bool"
        may_be_nan = mask is None or operation.node.attrs.get("nan_rows", False)
        own = {"rows": "a, b, h, i" if rank == 5 else "b, h, i", "c": made[-1]}
        text = PROGRAM.format(
            scores=_scores(scale, sizes["d"], seen, read, is_bool).format(**own),
            result=(RESULT if may_be_nan else GUARDED).format(**own),
            **own,
            **{name: each.read for name, each in zip("qkv", laid, strict=True)},
            out=", ".join(out),
        )
        args = {axis: size for axis, size in sizes.items() if axis != "g"}
        dtypes = {"mask": "bool"} if is_bool else {}
        shapes = {each.operand.tensor: each.shape for each in laid if each.shape}
        program = ProgramOp(text, shapes=tuple(shapes.items()))
        draft = draft_of(program, args, [*operands, *([added] if added else [])], operation, view, dtypes)
    return replace(draft, nodes=(*draft.nodes, *behind_it), view=each(rank)) if behind_it else draft


def _shared(graph: Graph, nodes: list[Node], names: list[str]) -> tuple[list[Node], list[str]]:
    """Keys and values before they were repeated for several heads, or that have fewer heads than the queries."""
    heads = graph.shape(nodes[0].name)[names[0].index("h")]
    found = [nodes[0], *(_unrepeated(graph, node) for node in nodes[1:])]
    axes = [names[0]]
    for node, name in zip(found[1:], names[1:], strict=True):
        axes.append(name if graph.shape(node.name)[name.index("h")] == heads else name.replace("h", "g"))
    return found, axes


def _unrepeated(graph: Graph, node: Node) -> Node:
    """[b, g, s, d] behind a copy of each head, [b, g, copies, s, d], that is looked at as [b, h, s, d]."""
    copies = graph.source(node.sources[0]) if node.op == "reshape" else node
    whole = graph.source(copies.sources[0]) if copies.op == "expand" else node
    before = graph.source(whole.sources[0]) if whole.op == "reshape" else node
    five, four, shape = (graph.shape(each.name) for each in (copies, before, node))
    if node.op == "reshape" and len(five) == 5 and len(four) == 4 and len(shape) == 4:
        is_copied = (five[:2], five[3:]) == (four[:2], four[2:]) and graph.shape(whole.name)[2] == ONE
        if is_copied and shape == (five[0], five[1] * five[2], *five[3:]):
            return before
    return node


def _share(sizes: dict[str, DimExpr]) -> str:
    """The heads of keys by those of queries, as an index."""
    if "g" not in sizes:
        return "h"
    h, g = sizes["h"].constant, sizes["g"].constant
    if not h or not g or h % g:
        raise CannotLift(f"{sizes['h']} heads of queries beside {sizes['g']} of keys")
    return f"h//{h // g}"


def _sizes(graph: Graph, nodes: list[Node], names: list[str]) -> dict[str, DimExpr]:
    """The extents of the program's axes. Raises CannotLift where operands do not agree."""
    sizes: dict[str, DimExpr] = {}
    for node, axes in zip(nodes, names, strict=True):
        for axis, size in zip(axes, graph.shape(node.name), strict=True):
            if sizes.setdefault(axis, size) != size:
                raise CannotLift(f"queries, keys and values differ: an axis is {sizes[axis]} here and {size} there")
    sizes.setdefault("h", DimExpr.of(1))
    return {axis: sizes[axis] for axis in "abhijdcg" if axis in sizes}


def _scale(operation: Operation, d: DimExpr) -> float | None:
    """The scale of the scores, None where it is the catalogue's own."""
    scale = operation.attr("scale")
    if scale is None and d.constant is None:
        raise CannotLift("the depth is dynamic, so the scale is no constant")
    usual = None if not d.constant else 1.0 / math.sqrt(d.constant)
    # Models round it to float32, or multiply it of two roots.
    if scale is None or (usual and math.isclose(scale, usual, rel_tol=1e-6)):
        return None
    return float(scale) if operation.node.dtype == "float64" else shortest(scale)


FROM_END = "j <= i + (extent(j) - extent(i))"
"""What a causal mask leaves visible, as the catalogue writes it; the same as ``j <= i`` where sizes are equal."""


def _seen(operation: Operation, sizes: dict[str, DimExpr]) -> str:
    """The condition under which a causal mask leaves a key visible; nothing where there is no such mask."""
    if not operation.attr("causal"):
        return ""
    if sizes["j"] == DimExpr.of(0):
        raise CannotLift("there are no keys")
    return FROM_END if sizes["i"] == sizes["j"] or operation.node.attrs.get("from_end") else "j <= i"


def _scores(scale: float | None, d: DimExpr, seen: str, mask: str, is_bool: bool) -> str:
    """The scores of the products, as the catalogue writes them, with ``{rows}`` for the axes of a row."""
    scores = f"{1.0 / math.sqrt(d.constant or 1) if scale is None else scale!r} * dots[{{rows}}, j]"
    if mask:
        scores = f"where({mask}, {scores}, -inf)" if is_bool else f"{scores} + {mask}"
    return f"where({seen}, {scores}, -inf)" if seen else scores


# -- how operands lie -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Laid:
    """Queries, keys or values as an operand, and how a program reads it. ``axes``: those that it has where they are its
    own alone; ``shape``: that of a tensor of which it is a part."""

    operand: Operand
    read: str
    axes: str = ""
    shape: tuple[str, ...] = ()


def _laid_out(graph: Graph, nodes: list[Node], names: list[str], share: str) -> list[_Laid]:
    """Parts of one tensor are read from one operand, called by the letters of them all."""
    given = list(zip("qkv", nodes, names, strict=True))
    wider = {name: heads_in(graph, node, axes, share) for name, node, axes in given if "h" in axes or "g" in axes}
    letters: dict[tuple[str, View, int], str] = {}
    for name, heads in wider.items():
        if heads is not None:
            key = heads.node.name, heads.view, heads.split
            letters[key] = letters.get(key, "") + name
    found = []
    for name, node, axes in given:
        if (heads := wider.get(name)) is not None:
            tensor = letters[heads.node.name, heads.view, heads.split]
            operand = Operand(tensor, heads.node.name, heads.view, split=heads.split)
            read = f"{tensor}[{', '.join(heads.read)}]"
            found.append(_Laid(operand, read, shape=tuple(map(str, heads.shape))))
            continue
        operand, own = _laid(graph, name, node, axes) if len(axes) > 3 else _viewed(name, node, axes)
        found.append(_Laid(operand, f"{name}[{', '.join(own).replace('g', share)}]", own))
    return found


def _laid(graph: Graph, name: str, node: Node, axes: str) -> tuple[Operand, str]:
    """An operand before its transposes, if its rows still lie along d, and its axes in that order."""
    source, order = behind(graph, node)
    before = "".join(axes[order.index(axis)] for axis in range(len(axes)))
    if source.op != "constant" and before[-1] in ELEMENTS:
        return Operand(name, source.name, each(len(axes))), before
    return _viewed(name, node, axes)


def _viewed(name: str, node: Node, axes: str) -> tuple[Operand, str]:
    """An operand as the catalogue has it."""
    wanted = PLAIN[name] if "g" not in axes else PLAIN[name].replace("h", "g")
    wanted = ("a" if "a" in axes else "") + (wanted if "c" not in axes else wanted.replace("d", "c"))
    view: View = tuple((axes.index(axis),) if axis in axes else () for axis in wanted)
    return Operand(name, node.name, view), wanted


def _transposed_back(operation: Operation, axes: str) -> tuple[tuple[str, ...], str]:
    """The nodes up to the one transpose that reads the output, of these axes, and those that it leaves; the elements of
    a head must stay the last."""
    passed: list[str] = []
    reader = operation.graph.only_reader(operation.node.name)
    while reader is not None and reader.op == "identity":
        passed.append(reader.name)
        reader = operation.graph.only_reader(reader.name)
    order = tuple(reader.attrs["order"]) if reader is not None and reader.op == "permute" else ()
    if reader is not None and order and order[-1] == len(axes) - 1:
        return (*passed, reader.name), "".join(axes[axis] for axis in order)
    return (), axes


def _mask(operation: Operation, mask: Node, sizes: dict[str, DimExpr], queries: str) -> tuple[Operand, str]:
    """The mask along those axes of the scores that it has, and how it is read."""
    graph = operation.graph
    while mask.op in ("expand", "identity"):
        mask = graph[mask.sources[0]]
    shape, axes = graph.shape(mask.name), queries[: queries.index("d")].replace("i", "") + "ij"
    offset = len(axes) - len(shape)
    kept = [axis for axis, size in enumerate(shape) if size.constant != 1]
    if offset < 0 or not kept or any(shape[axis] != sizes[axes[axis + offset]] for axis in kept):
        raise CannotLift("the mask's shape is not that of the scores")
    view = grouped(shape, tuple(shape[axis] for axis in kept))
    if view is None:
        raise CannotLift("the mask's shape is not that of the scores")
    return Operand("mask", mask.name, view), f"mask[{', '.join(axes[axis + offset] for axis in kept)}]"
