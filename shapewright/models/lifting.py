"""From a graph to workloads: operators one by one, elementwise consumers fused into them.

A node that computes is either lifted, as part of one LiftedOp, or listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from shapewright.models import attention, contractions, rows
from shapewright.models.draft import Draft, lifted, reasons, rules_of
from shapewright.models.elementwise import COSTLY, TEXT
from shapewright.models.fusing import biased, elementwise, extended, preceded
from shapewright.models.graph import VIEWS, CannotLift, Graph, Node, Operation
from shapewright.models.lifted import Left, LiftedOp, Lifting
from tuner.errors import InvalidInput
from tuner.program.target import Target, native

OPERATORS: Mapping[str, Callable[[Operation], Draft]] = {
    "linear": contractions.linear,
    "matmul": contractions.matmul,
    "conv": contractions.conv,
    "layer_norm": rows.layer_norm,
    "rms_norm": rows.rms_norm,
    "softmax": rows.softmax,
    "reduce": rows.reduce,
    "max_pool": rows.pool,
    "avg_pool": rows.pool,
    "attention": attention.attention,
}
"""By neutral name what makes a program of a node; raises CannotLift or InvalidInput with the reason."""
ROWS = frozenset({"layer_norm", "rms_norm", "softmax", "reduce"})
"""Operators whose rule computes elementwise stages as it reads rows."""
BIASED = frozenset({"linear", "matmul", "conv"})
"""Operators whose third input is added."""
QUIET = VIEWS | {"input", "constant", "scalar", "part"}
"""Nodes that compute nothing."""
TYPICAL = 64
"""A size by which operators are compared."""
MIN_ELEMENTWISE = 2
"""Elementwise operations on their own that are worth a kernel: one pass over memory in place of as many."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """An operator's own program, before anything is fused behind it. ``rules`` take it, the preferred one first."""

    draft: Draft
    op: LiftedOp
    rules: tuple[str, ...]

    @property
    def work(self) -> int:
        """Operations where every shape variable is TYPICAL."""
        return self.op.workload.flops(self.op.workload.dims(dict.fromkeys(self.op.workload.variables, TYPICAL)))


def lift_graph(graph: Graph, target: Target | None = None) -> Lifting:
    """Workloads for ``target``, this machine if it is None, and what was left, in the order of the graph."""
    target = target or native()
    order = {name: place for place, name in enumerate(graph.nodes)}
    taken: dict[str, LiftedOp] = {}
    left: dict[str, str] = {}
    # Elementwise nodes are offered to operators first; what two operators could take goes to the larger one.
    operators = [node for node in graph if node.op not in QUIET and node.op not in TEXT]
    begun = _begun(graph, operators, target, left)
    rows: list[_Begun] = []
    for each in sorted(begun, key=lambda each: (-each.work, order[each.draft.node])):
        grown = _grown(graph, each, target, taken)
        taken |= dict.fromkeys(grown.draft.nodes, grown.op)
        rows += [grown] if graph[each.draft.node].op in ROWS else []
    # What stands before rows and behind no operator: it is computed as they are read.
    for each in rows:
        grown = _grown(graph, each, target, taken, preceded)
        taken |= dict.fromkeys(grown.draft.nodes, grown.op)
    for node in graph:
        if node.op in TEXT and node.name not in taken:
            for each in _begun(graph, [node], target, left):
                grown = _grown(graph, each, target, taken)
                if len(grown.draft.nodes) >= MIN_ELEMENTWISE or node.op in COSTLY:
                    taken |= dict.fromkeys(grown.draft.nodes, grown.op)
                else:
                    left[node.name] = "a single pass over memory on its own: a kernel gains nothing"
    ops = {op.output: op for op in taken.values()}
    in_order = sorted(ops.values(), key=lambda op: order[op.output])
    rest = (Left(node.name, node.op, left[node.name]) for node in graph if node.name in left)
    return Lifting(tuple(in_order), tuple(one for one in rest if one.node not in taken))


def _begun(graph: Graph, nodes: Iterable[Node], target: Target, left: dict[str, str]) -> list[_Begun]:
    """The nodes that a program can be made of; the reasons of the others go into ``left``."""
    found = []
    for node in nodes:
        try:
            draft = _draft(Operation(graph, node))
            op = lifted(draft, graph)
        except (CannotLift, InvalidInput) as error:
            left[node.name] = _reason(error)
            continue
        rules = rules_of(op.workload, target)
        if rules:
            found.append(_Begun(draft, op, rules))
        else:
            left[node.name] = reasons(op.workload, target)
    return found


Longer = Callable[[Graph, Draft, Collection[str]], Draft | None]


def _grown(graph: Graph, begun: _Begun, target: Target, taken: Collection[str], longer_of: Longer = extended) -> _Begun:
    """An operator with what can be fused behind it, or in front of it."""
    draft, op = begun.draft, begun.op
    while (longer := longer_of(graph, draft, taken)) is not None:
        try:
            more = lifted(longer, graph)
        except (CannotLift, InvalidInput):
            # With this stage it is no program any more (too many of them, another dtype): it ends before it.
            break
        # A longer program must not lose the rule that its operator is best with.
        if begun.rules[0] not in rules_of(more.workload, target):
            break
        draft, op = longer, more
    return replace(begun, draft=draft, op=op)


def _reason(error: CannotLift | InvalidInput) -> str:
    if isinstance(error, InvalidInput):
        return f"{error.field}: {error.problem}" if error.field else error.problem
    return str(error)


def _draft(operation: Operation) -> Draft:
    node = operation.node
    if node.op in TEXT:
        return elementwise(operation)
    if node.op not in OPERATORS:
        raise CannotLift(node.reason or f"{node.op} on its own is not lifted")
    draft = OPERATORS[node.op](operation)
    return biased(operation, draft) if node.op in BIASED else draft
