"""Graphs rewritten: groups of nodes that were lifted become calls of tuned libraries."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_or

from shapewright.models import views
from shapewright.models.fx import lift
from shapewright.models.lifted import LiftedOp, Operand
from shapewright.models.symbols import dim_of
from shapewright.sources.finder import Finder
from shapewright.sources.reports import NotReplaced
from shapewright.sources.source import Match
from shapewright.torch.changing import integers_as_operands
from shapewright.torch.devices import CUDA, device_of
from shapewright.torch.op import call, prepared
from shapewright.torch.plan import DTYPES, Plan, Taken, is_made_in_order, plan_of
from shapewright.torch.reports import Replaced, Report
from shapewright.torch.sizes import agree, fix_sizes
from shapewright.torch.work import flops_by_name
from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr

aten = torch.ops.aten


def replace_lifted(graph: fx.GraphModule, constants: frozenset[str], finder: Finder) -> Report:
    """Put calls of libraries in the place of what ``finder`` has one for, in a graph of the normal form.

    ``constants``: the placeholders that stay from call to call. Returns what was replaced, and why the rest was not.
    Raises ShapewrightError where the finder is strict.
    """
    report = Report()
    _without_checks(graph)
    agree(graph)
    integers_as_operands(graph)
    flops = flops_by_name(graph.graph)
    lifting = lift(graph, constants)
    if fixed := fix_sizes(graph, constants, finder, lifting, sum(flops.values())):
        report.note(fixed)
        lifting = lift(graph, constants)
    rewriting = _Rewriting(graph, device_of(finder.target))
    rewriting.read_sizes_of_inputs()
    report.kept += [NotReplaced(left.node, left.op, left.reason, flops.get(left.node, 0)) for left in lifting.left]
    for op in lifting.ops:
        where = op.output if len(op.nodes) == 1 else f"{op.nodes[0]}..{op.output}"
        text, key, count = str(op.workload), op.workload.key, sum(flops.get(name, 0) for name in op.nodes)
        if reason := rewriting.unfit(op):
            report.kept.append(NotReplaced(where, text, reason, count))
            continue
        match = finder.find(op.workload)
        if not isinstance(match, Match):
            wanted = finder.wanted(op.workload)
            report.kept.append(NotReplaced(where, str(wanted), match, count, wanted))
            continue
        strided = rewriting.strided(op)
        plans = (rewriting.replace(op, match),)
        threads, digest = match.library.manifest["threads"], match.library.digest
        report.replaced.append(
            Replaced(where, text, key, digest, match.how, match.source, threads, strided, count, match.cache, plans)
        )
    graph.graph.lint()
    graph.recompile()
    return report


def _without_checks(graph: fx.GraphModule) -> None:
    """What only looks at dtypes and sizes, which are known by now, reads no value."""
    for node in reversed(graph.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            graph.graph.erase_node(node)


COPIES = frozenset({aten.clone.default, aten.view.default, aten._unsafe_view.default})
"""What stands between a value and a copy of it in a row."""


class _Rewriting:
    """The nodes of one graph while calls take the places of some."""

    def __init__(self, graph: fx.GraphModule, device: str) -> None:
        self._graph = graph.graph
        self._device = device
        self._nodes = {node.name: node for node in graph.graph.nodes}
        self._symbols: dict[str, fx.Node | tuple[fx.Node, int]] = {}
        """Where the value of each symbol is found: an input, or a dim of one."""
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                self._note_symbols(node)

    def _note_symbols(self, node: fx.Node) -> None:
        value = _value(node)
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            self._symbols[str(value.node.expr)] = node
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                self._symbols.setdefault(str(size.node.expr), (node, axis))

    def read_sizes_of_inputs(self) -> None:
        """Sizes of values in between are computed from those of inputs: what has only its size read may go."""
        for node in [each for each in self._graph.nodes if each.target is aten.sym_size.int]:
            try:
                dim = dim_of(_value(node))
            except InvalidInput:
                continue
            if node.args[0].op != "placeholder" and dim.variables <= set(self._symbols):
                with self._graph.inserting_before(node):
                    size = self._size(dim)
                for user in list(node.users):
                    _exchange(user, node, size)
                self._graph.erase_node(node)

    def unfit(self, op: LiftedOp) -> str:
        """Why a lifted operation cannot be a call in this graph; empty if it can."""
        missing = sorted(name for dim in op.output_shape for name in dim.variables if name not in self._symbols)
        if missing:
            return f"the size {missing[0]} is not at hand"
        values = [_value(self._nodes[name]) for name in (*_inputs(op), op.output)]
        devices = {value.device if isinstance(value, torch.Tensor) else None for value in values}
        if len(devices) != 1 or (device := devices.pop()) is None or device.type != self._device:
            return f"it does not run on {'one GPU' if self._device == CUDA else 'the CPU'}"
        if len(op.workload.outputs) != 1 or op.workload.outputs[0].dtype not in DTYPES:
            return "its output is not one tensor of a dtype that PyTorch has"
        return ""

    def strided(self, op: LiftedOp) -> tuple[str, ...]:
        """The operands that a call has to copy, since their elements are not in a row."""
        return tuple(
            operand.tensor
            for operand, tensor in zip(op.operands, op.workload.inputs, strict=True)
            if not tensor.constant and operand.fold is None and not self._is_in_a_row(operand)
        )

    def _is_in_a_row(self, operand: Operand) -> bool:
        axes = [axis for group in operand.view for axis in group]
        node = self._nodes[operand.node]
        # The normal form copies by itself what a view or a product needs in a row.
        while node.target in COPIES:
            node = node.args[0]
        if node.target is call and is_made_in_order(plan_of(node.args[2])):
            # What it took the place of may have had other strides.
            return axes == sorted(axes)
        value = _value(node)
        expected: Any = 1
        for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
            if not statically_known_true(sym_or(size == 1, stride == expected)):
                return False
            expected = expected * size
        return axes == sorted(axes)

    def replace(self, op: LiftedOp, match: Match) -> str:
        """Call the library where the last node stands. Returns the plan's text."""
        last, packed = self._nodes[op.output], op.workload.constants
        given: dict[fx.Node, int] = {}
        with self._graph.inserting_before(last):
            taken = []
            for operand, tensor in zip(op.operands, op.workload.inputs, strict=True):
                nodes = [None if name is None else self._nodes[name] for name in _read(operand)]
                view = operand.view
                if operand.split:
                    nodes, view = [self._split(operand)], views.each(len(tensor.dims))
                places = tuple(None if node is None else given.setdefault(node, len(given)) for node in nodes)
                taken.append(Taken(places, view, operand.fold, tensor.name in packed))
            plan = Plan(match.library.digest, tuple(taken), op.output_view, op.workload.outputs[0].dtype).text()
            # What keeps a library from being called shows here, and not in the model's first call.
            prepared(plan)
            sizes = list(map(self._size, op.output_shape))
            new = self._graph.call_function(call, (list(given), sizes, plan))
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)
        self._nodes[op.output] = new
        for node in [last, *(self._nodes[name] for name in reversed(op.nodes[:-1]))]:
            if not node.users and node.op != "placeholder":
                self._graph.erase_node(node)
        return plan

    def _split(self, operand: Operand) -> fx.Node:
        """An operand's node with its last dim as rows, by a view that is put here."""
        node = self._nodes[operand.node]
        shape = [dim_of(size) for size in _value(node).shape]
        *dims, last = (views.product([shape[axis] for axis in group]) for group in operand.view)
        sizes = [*map(self._size, dims), (last.constant or 0) // operand.split, operand.split]
        return self._graph.call_function(aten.reshape.default, (node, sizes))

    def _size(self, dim: DimExpr) -> Any:
        """A size, as a number or a node that is put here."""
        symbols = {name: fx.Proxy(self._symbol(name)) for name in sorted(dim.variables)}
        return _plain(dim.evaluate(symbols))

    def _symbol(self, name: str) -> fx.Node:
        symbol = self._symbols[name]
        if isinstance(symbol, fx.Node):
            return symbol
        return self._graph.call_function(aten.sym_size.int, symbol)


def _exchange(user: fx.Node, old: fx.Node, new: Any) -> None:
    """``new``, a node or a number, where ``user`` reads ``old``."""
    user.args, user.kwargs = (
        fx.map_arg(each, lambda node: new if node is old else node) for each in (user.args, user.kwargs)
    )


def _inputs(op: LiftedOp) -> list[str]:
    """The nodes that a call reads, each once, in order."""
    return list(dict.fromkeys(name for operand in op.operands for name in _read(operand) if name is not None))


def _read(operand: Operand) -> tuple[str | None, ...]:
    return operand.fold.nodes if operand.fold else (operand.node,)


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _plain(size: Any) -> Any:
    return size.node if isinstance(size, fx.Proxy) else size
