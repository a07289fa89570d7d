"""What a frozen program computes of its constants alone, as the bias of each pair of positions that a table has.

It is computed once, and again after ``sw.torch.forget``; the program keeps it as another constant.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from shapewright.torch.frozen import FOLDED, constants_of, keep_folded
from shapewright.torch.packs import checks_values, note_change, tell_forgotten
from shapewright.torch.repeats import is_function, is_returned, is_view

MAX_ELEMENTS = 1 << 22
"""Of a value that is kept beside the constants that it was computed of."""


class Folded:
    """Values of ``code``, a graph of constants of a program. Safe to use from several threads."""

    def __init__(self, program: int, names: Collection[str], code: fx.GraphModule) -> None:
        """``names``: of the inputs, in order."""
        self._program, self._names, self._code = program, tuple(names), code
        constants = self._constants()
        self.values = [_apart(value, constants) for value in self._computed(constants)]
        tell_forgotten(self)

    def _constants(self) -> list[torch.Tensor]:
        return constants_of(self._program, self._names)

    def _computed(self, constants: Collection[torch.Tensor]) -> list[torch.Tensor]:
        """As tensors that may be written to later, whatever mode is active."""
        with torch.inference_mode(False), torch.no_grad():
            return self._code(*constants)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.values)

    def forget(self, storages: Collection[int] | None = None) -> None:
        """Compute them anew, in the memory that they have, if a constant lies in one of these storages."""
        constants = self._constants()
        if storages is None or any(each.untyped_storage()._cdata in storages for each in constants):
            for value, fresh in zip(self.values, self._computed(constants), strict=True):
                value.copy_(fresh)
            note_change()


def _apart(value: torch.Tensor, constants: Collection[torch.Tensor]) -> torch.Tensor:
    """A value in memory of its own."""
    storages = {each.untyped_storage()._cdata for each in constants}
    return value.clone() if value.untyped_storage()._cdata in storages else value


def fold_constants(module: fx.GraphModule, constants: Mapping[str, str | None], program: int) -> dict[str, str]:
    """Put attributes in the place of what is computed of constants alone.

    ``constants``: the placeholders that stay from call to call, and how the program names each. Returns the names of
    the attributes' nodes, and how the program names these. Nothing is folded where each call compares the values of
    constants (``SHAPEWRIGHT_CHECK_WEIGHTS``).
    """
    if checks_values():
        return {}
    graph = module.graph
    inputs = {node for node in graph.find_nodes(op="placeholder") if constants.get(node.name)}
    known = set(inputs)
    for node in graph.nodes:
        sources = node.all_input_nodes
        # What the caller gets is another tensor at each call.
        if sources and is_function(node) and known.issuperset(sources) and not is_returned(node):
            known.add(node)
    computed = [node for node in graph.nodes if node in known and node not in inputs and _is_kept(node, known)]
    if not computed:
        return {}
    behind = _behind(computed)
    needed = [node for node in graph.nodes if node in behind]
    names = [name for node in needed if node in inputs and (name := constants[node.name])]
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        folded = Folded(program, names, _code(module, needed, computed))
    own = keep_folded(program, folded, folded.values)
    attributes = {}
    for node, (name, value) in zip(computed, own.items(), strict=True):
        attribute = f"_{name.replace(' ', '_')}"
        module.register_buffer(attribute, value, persistent=False)
        with graph.inserting_before(node):
            new = graph.get_attr(attribute)
        new.meta = {**node.meta, FOLDED: name}
        node.replace_all_uses_with(new)
        attributes[new.name] = name
    graph.eliminate_dead_code()
    return attributes


def _is_kept(node: fx.Node, known: Collection[fx.Node]) -> bool:
    """Whether a node's value is one that something else reads, through views or as it is."""
    value = node.meta.get("val")
    if _is_seen_through(node) or not isinstance(value, torch.Tensor) or value.numel() > MAX_ELEMENTS:
        return False
    return _is_read(node, known)


def _is_read(node: fx.Node, known: Collection[fx.Node]) -> bool:
    return any(user not in known or (_is_seen_through(user) and _is_read(user, known)) for user in node.users)


def _is_seen_through(node: fx.Node) -> bool:
    return is_view(node) and node.target is not operator.getitem


def _behind(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed of."""
    found: set[fx.Node] = set()
    rest = list(nodes)
    while rest:
        node = rest.pop()
        if node not in found:
            found.add(node)
            rest += node.all_input_nodes
    return found


def _code(module: fx.GraphModule, nodes: Collection[fx.Node], results: Collection[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in results])
    return fx.GraphModule(module, graph)
