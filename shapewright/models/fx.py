"""Graphs of torch.fx in the normal form of ``shapewright.models.aten`` as the neutral graph.

Operators are known by ATen's overloads and their schemas, shapes and dtypes by ``meta["val"]``. Imports torch only
where a graph is at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shapewright.models.fx_calls import Call
from shapewright.models.fx_operators import TRANSLATIONS, WITHOUT_MEANING
from shapewright.models.fx_parts import GETITEM, PARTS, SLICE, part_of
from shapewright.models.graph import CannotLift, Graph, Input, Node, Shape
from shapewright.models.lifted import Lifting
from shapewright.models.lifting import lift_graph
from shapewright.models.patterns import recognised
from shapewright.models.symbols import dim_of
from shapewright.models.translated import Translated
from tuner.errors import InvalidInput
from tuner.program.target import Target

NUMBERS = {"aten.full.default": "fill_value", "aten.scalar_tensor.default": "s"}
"""Operators that make a tensor of one number; those without axes are read as the number."""
FRESH = "aten.lift_fresh_copy.default"
"""The copy that each call makes of a tensor that is written out in the model."""


def lift(
    module: Any,
    constants: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    target: Target | None = None,
) -> Lifting:
    """Lift a ``torch.fx.GraphModule`` of ATen's operators.

    ``constants``: placeholders whose values stay (weights that became inputs); ``get_attr`` nodes always do. ``names``:
    shape variables by symbol of the graph; a symbol that is left out keeps its own name.
    """
    return lift_graph(graph_of(module, constants).renamed(names or {}), target)


def graph_of(module: Any, constants: Collection[str] = (), sizes: Mapping[str, int] | None = None) -> Graph:
    """The neutral graph of a ``torch.fx.GraphModule``; its nodes keep their names. ``sizes``: of symbols."""
    nodes: dict[str, Node] = {}
    several: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    for node in module.graph.nodes:
        if node.op == "output":
            outputs = tuple(dict.fromkeys(_nodes_in(node.args)))
            continue
        if returns_nothing(node):
            continue
        value = _value(module, node)
        shape, dtype = _described(value, sizes)
        source = node.args[0].name if str(node.target) == GETITEM else ""
        if source in several:
            # What computes several values is known by the first of them, which is read from it.
            part = Node(node.name, "part", (), {}, shape, dtype)
            nodes[node.name] = _first_of(node, nodes, several) if node.args[1] == 0 else part
            continue
        nodes[node.name] = replace(_node(node, nodes, constants, shape, dtype), place=_place(node))
        if isinstance(value, list | tuple) and nodes[node.name].op != "part":
            several[node.name] = node.name
    return recognised(Graph(nodes, outputs))


def returns_nothing(node: Any) -> bool:
    """Whether a node checks something and has no value: it does not count as a reader."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.returns


def _first_of(node: Any, nodes: dict[str, Node], several: dict[str, str]) -> Node:
    """The node that reads the first of several values takes the place of the one that computes them."""
    source = node.args[0].name
    known = several[source]
    if known != source:
        return replace(nodes[known], name=node.name, op="identity", inputs=(known,), attrs={}, covers=())
    several[source] = node.name
    return replace(nodes.pop(source), name=node.name, covers=(source, node.name))


def _node(node: Any, nodes: Mapping[str, Node], constants: Collection[str], shape: Shape | None, dtype: str) -> Node:
    if node.op == "get_attr" or node.name in constants:
        return Node(node.name, "constant", (), {}, shape, dtype)
    if node.op == "placeholder":
        return Node(node.name, "input", (), {}, shape, dtype)
    if str(node.target) == FRESH and node.args[0].op == "get_attr":
        # The tensor itself is none that PyTorch traces: its copy is what there is to read.
        return Node(node.name, "input", (), {}, shape, dtype)
    sources = tuple(dict.fromkeys(_nodes_in((node.args, node.kwargs))))
    if str(node.target) == "aten.sym_size.int":
        # It looks at the tensor, and does not read its value.
        return Node(node.name, "scalar")
    if not dtype:
        return Node(node.name, "scalar", sources, {}, shape, dtype)
    if str(node.target) in PARTS:
        source, attrs = part_of(node, nodes)
        # A slice is all of what it is taken from where that is as large.
        is_whole = str(node.target) == SLICE and bool(attrs) and shape is not None and nodes[source].shape == shape
        op, kept = ("identity", {}) if is_whole else ("part", attrs)
        return Node(node.name, op, (source,), kept, shape, dtype)
    try:
        translated = _translated(node, nodes, shape, dtype)
    except CannotLift as reason:
        return Node(node.name, "unknown", sources, {}, shape, dtype, f"{_named(node)}: {reason}")
    return Node(node.name, translated.op, translated.inputs, translated.attrs, shape, dtype)


def _translated(node: Any, nodes: Mapping[str, Node], shape: Shape | None, dtype: str) -> Translated:
    op = str(node.target)
    if op not in TRANSLATIONS:
        raise CannotLift("the operator has no translation")
    if isinstance(_value(None, node), list | tuple) and any(user.args[1] != 0 and user.users for user in node.users):
        raise CannotLift("an output beside the first one is read")
    call = Call(node, _input, nodes, shape, dtype)
    translated = TRANSLATIONS[op](call)
    call.check_read(*WITHOUT_MEANING.get(op, ()))
    if _nodes_in(tuple(translated.attrs.values())):
        raise CannotLift("an argument that must be constant is computed")
    return translated


def _input(value: Any) -> Input:
    """A node's argument. Raises CannotLift for what is neither a node nor a number nor nothing."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if _is_node(value):
        number = value.args[-1] if str(value.target) in NUMBERS and not value.meta["val"].shape else None
        return _held(number, value.meta["val"].dtype) if type(number) in (int, float) else str(value.name)
    raise CannotLift(f"the argument {value!r} is no tensor")


def _held(number: Any, dtype: Any) -> Any:
    """A number as a tensor of a dtype of PyTorch's holds it. Programs round to float32 by themselves."""
    if dtype.is_floating_point and dtype.itemsize >= 4:
        return number
    import torch  # noqa: PLC0415 - there is a graph of it

    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        # A bool is a number here.
        return +torch.tensor(number).to(dtype).item()


def _named(node: Any) -> str:
    """``linear`` of aten.linear.default; other targets by their own name."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "users")


def _nodes_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for each in value.values() for name in _nodes_in(each)]
    if isinstance(value, list | tuple):
        return [name for each in value for name in _nodes_in(each)]
    return [str(value.name)] if _is_node(value) else []


def _value(module: Any, node: Any) -> Any:
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
    return value


def _place(node: Any) -> str:
    """The module that a node belongs to, as in ``layers.0.attention``."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _described(value: Any, sizes: Mapping[str, int] | None) -> tuple[Shape | None, str]:
    """Shape and dtype of a tensor, or of the first of several; no dtype where the value is none."""
    if isinstance(value, list | tuple):
        return _described(value[0], sizes) if value else (None, "")
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return None, ""
    dtype = str(value.dtype).removeprefix("torch.")
    try:
        return tuple(dim_of(size, sizes) for size in value.shape), dtype
    except InvalidInput:
        return None, dtype
