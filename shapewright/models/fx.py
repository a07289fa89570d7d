"""Graphs of torch.fx as the neutral graph: of ``torch.export``, of TorchDynamo, and of AOTAutograd behind it.

Operations are known by the names of ATen's overload packets, of functions and of methods; shapes and dtypes come from
``meta["val"]`` (or ``"example_value"``). Imports torch only where a graph is at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shapewright.models.fx_calls import ELEMENTWISE_NAMES, Call
from shapewright.models.fx_operators import TRANSLATIONS
from shapewright.models.graph import VIEWS, CannotLift, Graph, Input, Node, Shape
from shapewright.models.lifted import Lifting
from shapewright.models.lifting import lift_graph
from shapewright.models.patterns import recognised
from shapewright.models.symbols import dim_of
from shapewright.models.translated import Translated
from tuner.errors import InvalidInput
from tuner.program.target import Target

PARTS = frozenset({"slice", "select", "split", "chunk", "split_with_sizes", "unbind", "tensor_split", "narrow"})
"""Views of a part of a tensor: nothing is computed, and nothing is told about it."""
IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv"})
"""Python's operators that change their first operand."""


def lift(
    module: Any,
    constants: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    target: Target | None = None,
) -> Lifting:
    """Lift a ``torch.fx.GraphModule``.

    ``constants``: placeholders whose values stay (weights that became inputs); ``get_attr`` nodes always do. ``names``:
    shape variables by symbol of the graph; a symbol that is left out keeps its own name.
    """
    return lift_graph(graph_of(module, constants).renamed(names or {}), target)


def graph_of(module: Any, constants: Collection[str] = ()) -> Graph:
    """The neutral graph of a ``torch.fx.GraphModule``; its nodes keep their names."""
    nodes: dict[str, Node] = {}
    several: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    for node in module.graph.nodes:
        if node.op == "output":
            outputs = tuple(dict.fromkeys(_nodes_in(node.args)))
            continue
        value = _value(module, node)
        shape, dtype = _described(value)
        source = node.args[0].name if node.op == "call_function" and _name(node) == "getitem" else ""
        if source in several:
            # What computes several values is known by the first of them, which is read from it.
            nodes[node.name] = _first_of(node, nodes, several) if node.args[1] == 0 else Node(node.name, "part")
            continue
        nodes[node.name] = replace(_node(node, nodes, constants, shape, dtype), place=_place(node))
        if isinstance(value, list | tuple) and nodes[node.name].op != "part":
            several[node.name] = node.name
    return recognised(Graph(nodes, outputs))


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
    op = _name(node)
    sources = tuple(dict.fromkeys(_nodes_in((node.args, node.kwargs))))
    if not dtype:
        return Node(node.name, "scalar", sources, {}, shape, dtype)
    if op in PARTS or (op == "getitem" and isinstance(node.args[0], type(node))):
        return Node(node.name, "part", sources, {}, shape, dtype)
    try:
        translated = _translated(node, op, nodes, shape, dtype)
    except CannotLift as reason:
        return Node(node.name, "unknown", sources, {}, shape, dtype, f"{op}: {reason}")
    return Node(node.name, translated.op, translated.inputs, translated.attrs, shape, dtype)


def _translated(node: Any, op: str, nodes: Mapping[str, Node], shape: Shape | None, dtype: str) -> Translated:
    if isinstance(_value(None, node), list | tuple) and any(user.args[1] != 0 and user.users for user in node.users):
        raise CannotLift("an output beside the first one is read")
    if _is_in_place(node, op):
        op = op[1:] if op in IN_PLACE else op.removesuffix("_")
        _check_overwritten(node, nodes)
    call = Call(node, _input, nodes, shape, dtype)
    if op in ELEMENTWISE_NAMES:
        return call.elementwise(ELEMENTWISE_NAMES[op])
    if op not in TRANSLATIONS:
        raise CannotLift("the operator has no translation")
    translated = TRANSLATIONS[op](call)
    if _nodes_in(tuple(translated.attrs.values())):
        raise CannotLift("an argument that must be constant is computed")
    return translated


def _is_in_place(node: Any, op: str) -> bool:
    return op in IN_PLACE or (op.endswith("_") and not op.endswith("__")) or bool(node.kwargs.get("inplace"))


def _check_overwritten(node: Any, nodes: Mapping[str, Node]) -> None:
    """Raise CannotLift unless what is changed in place is a new tensor that nothing else reads."""
    changed = node.args[0]
    source = nodes.get(str(getattr(changed, "name", "")))
    if source is None or len(changed.users) > 1 or source.op in (*VIEWS, "input", "constant", "part"):
        raise CannotLift("it changes a tensor in place that others may read")


def _input(value: Any) -> Input:
    """A node's argument. Raises CannotLift for what is neither a node nor a number nor nothing."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if hasattr(value, "op") and hasattr(value, "users"):
        return str(value.name)
    raise CannotLift(f"the argument {value!r} is no tensor")


def _name(node: Any) -> str:
    """``linear`` of aten.linear.default, of torch.nn.functional.linear, or of a method."""
    if isinstance(node.target, str):
        return str(node.target)
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def _nodes_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for each in value.values() for name in _nodes_in(each)]
    if isinstance(value, list | tuple):
        return [name for each in value for name in _nodes_in(each)]
    return [str(value.name)] if hasattr(value, "op") and hasattr(value, "users") else []


def _value(module: Any, node: Any) -> Any:
    value = node.meta.get("val", node.meta.get("example_value"))
    if value is None and node.op == "get_attr":
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
    return value


def _place(node: Any) -> str:
    """The module that a node belongs to, as in ``layers.0.attention``."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _described(value: Any) -> tuple[Shape | None, str]:
    """Shape and dtype of a tensor, or of the first of several; no dtype where the value is none."""
    if isinstance(value, list | tuple):
        return _described(value[0]) if value else (None, "")
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return None, ""
    dtype = str(value.dtype).removeprefix("torch.")
    try:
        return tuple(map(dim_of, value.shape)), dtype
    except InvalidInput:
        return None, dtype
