"""The workloads of a graph: operators one by one, elementwise consumers fused into them.

A node that computes is either lifted, as part of one LiftedOp, or listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from shapewright.models import attention, contractions, experts, rotary, rows, windows
from shapewright.models.defects import defect
from shapewright.models.draft import Draft, lifted, reasons, rules_of
from shapewright.models.elementwise import COSTLY, ELEMENTWISE
from shapewright.models.fusing import biased, elementwise, extended, preceded
from shapewright.models.graph import OUTPUT, VIEWS, CannotLift, Graph, Node, Operation
from shapewright.models.lifted import Left, LiftedOp, Lifting
from shapewright.models.operands import constant_behind
from tuner.errors import InvalidInput
from tuner.program.target import Target, native

OPERATORS: Mapping[str, Callable[[Operation], Draft]] = {
    "linear": contractions.linear,
    "matmul": contractions.matmul,
    "int_matmul": contractions.int_matmul,
    "linear_int4": contractions.linear_int4,
    "grouped_matmul": experts.grouped_product,
    "conv": windows.conv,
    "layer_norm": rows.layer_norm,
    "rms_norm": rows.rms_norm,
    "instance_norm": rows.instance_norm,
    "softmax": rows.softmax,
    "log_softmax": rows.softmax,
    "reduce": rows.reduce,
    "max_pool": windows.pool,
    "avg_pool": windows.pool,
    "attention": attention.attention,
    "rotary": rotary.rotary,
}
"""Functions that make a program of a node, by neutral name; they raise CannotLift or InvalidInput with the reason."""
ROWS = frozenset({"layer_norm", "rms_norm", "instance_norm", "softmax", "log_softmax", "reduce"})
"""Operators whose rule computes elementwise stages as it reads rows."""
BIASED = frozenset({"linear", "matmul", "conv"})
"""Operators whose third input is added."""
IN_CHAINS = VIEWS | {"cat", "part"}
"""What calls of libraries that follow one another may have between them (``shapewright.torch.chains``)."""
QUIET = VIEWS | {"input", "constant", "scalar", "part", "full", "dequantised"}
"""Nodes that compute nothing."""
TYPICAL = 64
"""A size by which operators are compared."""
FEW = 1024
"""Elements that are not worth a call of their own: of 32, one took 16 us, its code being in no cache (decision 110)."""
MIN_ELEMENTWISE = 2
"""Elementwise operations on their own that are worth a kernel anywhere: one pass over memory in place of as many."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """The program of an operator, ``node``. ``rules`` take it where nothing is fused, the preferred one first."""

    node: str
    draft: Draft
    op: LiftedOp
    rules: tuple[str, ...]

    @property
    def work(self) -> int:
        """Operations where every shape variable is TYPICAL."""
        return self.op.workload.flops(self.op.workload.dims(dict.fromkeys(self.op.workload.variables, TYPICAL)))


def lift_graph(graph: Graph, target: Target | None = None) -> Lifting:
    """Workloads for ``target``, this machine if it is None, and what was left, in the order of the graph.

    A defect of our own that is met at a node leaves that node, and what was put together with it.
    """
    order = {name: place for place, name in enumerate(graph.nodes)}
    work = _Work(graph, target or native(), {}, {}, set())
    # Elementwise nodes are offered to operators first; what two operators could take goes to the larger one.
    operators = (node for node in graph if node.op not in QUIET and node.op not in ELEMENTWISE)
    begun = [each for node in operators if (each := work.begun(node))]
    begun.sort(key=lambda each: (-each.work, order[each.draft.node]))
    grown = [longer for each in begun if (longer := work.grown(each))]
    # What stands before rows and behind no operator: it is computed as they are read.
    for each in grown:
        if graph[each.node].op in ROWS:
            work.grown(each, preceded)
    work.note_between()
    for node in graph:
        if node.op in ELEMENTWISE and node.name not in work.taken and (own := work.begun(node)):
            work.grown(own)
    # What is reported reads what was lifted, not what might have been.
    work.between.clear()
    ops = {op.output: op for op in work.taken.values()}
    in_order = sorted(ops.values(), key=lambda op: order[op.output])
    rest = (Left(node.name, node.op, work.left[node.name]) for node in graph if node.name in work.left)
    told = (one for one in rest if one.node not in work.taken and not work.is_unreported(graph[one.node]))
    return Lifting(tuple(in_order), tuple(told))


Longer = Callable[[Graph, Draft, Collection[str]], Draft | None]


@dataclass(frozen=True, slots=True)
class _Work:
    """What becomes of the nodes of a graph: ``taken`` by an operation, or ``left`` for a reason. ``between``: the
    elementwise ones that stand between operations."""

    graph: Graph
    target: Target
    taken: dict[str, LiftedOp]
    left: dict[str, str]
    between: set[str]

    def begun(self, node: Node) -> _Begun | None:
        """A program of the node alone; None, and a reason, if there is none."""
        try:
            draft = _draft(Operation(self.graph, node))
            op = lifted(draft, self.graph)
            rules = rules_of(op.workload, self.target)
            if not rules:
                raise CannotLift(reasons(op.workload, self.target))
            return _Begun(node.name, draft, op, rules)
        except (CannotLift, InvalidInput) as error:
            self.left[node.name] = _reason(error)
        except Exception as error:  # a defect of ours, of whatever kind, must not end the model
            self.left[node.name] = defect(error, node.name)
        return None

    def is_unreported(self, node: Node) -> bool:
        """Whether a node that is left goes unreported: arithmetic on single values takes no time, and a cast that only
        lifted operations read is of a constant, or computed by these themselves."""
        values = [node, *(self.graph[each] for each in node.sources)]
        is_single = node.op not in OPERATORS and all(each.shape == () or each.op == "scalar" for each in values)
        if node.op != "cast" or node.shape is None or not self._is_taken(node):
            return is_single
        return is_single or not self.graph.readers(node.name) or constant_behind(self.graph, node) is not None

    def _is_taken(self, node: Node, through: Collection[str] = VIEWS) -> bool:
        """Whether nobody but operations, or what stands between them, reads a value, ``through`` what it goes."""
        readers = self.graph.readers(node.name) - self.taken.keys() - self.between
        passed = [self.graph[each] for each in readers if each != OUTPUT and self.graph[each].op in through]
        return len(passed) == len(readers) and all(self._is_taken(each, through) for each in passed)

    def note_between(self) -> None:
        """Find the elementwise nodes that read constants, and values of operations or of one another alone, and whose
        own nobody else reads: on CPUs, calls that follow one another are made without PyTorch between them."""
        if self.target.gpu is not None:
            return
        self.between.update(node.name for node in self.graph if node.op in ELEMENTWISE and node.name not in self.taken)
        while gone := {name for name in self.between if not self._is_between(self.graph[name])}:
            self.between.difference_update(gone)

    def _is_between(self, node: Node) -> bool:
        read = [name for name in node.sources if not self._is_constant(name)]
        return self._is_taken(node, IN_CHAINS) and bool(read) and all(map(self._is_of_operations, read))

    def _is_constant(self, name: str) -> bool:
        node = self.graph[name]
        # A view may be of a number, which is no node.
        return node.op == "constant" or (node.op in VIEWS and all(map(self._is_constant, node.sources)))

    def _is_of_operations(self, name: str) -> bool:
        if name in self.taken or name in self.between:
            return True
        node = self.graph[name]
        return node.op in IN_CHAINS and bool(node.sources) and all(map(self._is_of_operations, node.sources))

    def grown(self, begun: _Begun, longer_of: Longer = extended) -> _Begun | None:
        """Take an operator with what can be fused behind it, or in front of it."""
        try:
            grown = self._grown(begun, longer_of)
        except Exception as error:  # as above
            self.left[begun.node] = defect(error, begun.node)
            for name in begun.draft.nodes:
                self.taken.pop(name, None)
            return None
        node = self.graph[begun.node]
        if begun.draft.base is None and node.name not in self.between and (reason := _gains_nothing(grown, node)):
            self.left[begun.node] = reason
            return None
        self.taken.update(dict.fromkeys(grown.draft.nodes, grown.op))
        return grown

    def _grown(self, begun: _Begun, longer_of: Longer) -> _Begun:
        draft, op = begun.draft, begun.op
        while (longer := longer_of(self.graph, draft, self.taken)) is not None:
            try:
                more = lifted(longer, self.graph)
            except (CannotLift, InvalidInput):
                # With this stage it is no program any more (too many of them, another dtype): it ends before it.
                break
            # A longer program must not lose the rule that its operator is best with.
            if begun.rules[0] not in rules_of(more.workload, self.target):
                break
            draft, op = longer, more
        return replace(begun, draft=draft, op=op)


def _gains_nothing(chain: _Begun, node: Node) -> str:
    """Why elementwise operations from ``node`` on are not worth a call; empty if they are."""
    if len(chain.draft.nodes) < MIN_ELEMENTWISE and node.op not in COSTLY:
        return "a single pass over memory on its own: a kernel gains nothing"
    sizes = [dim.constant for dim in chain.draft.dims if dim.constant is not None]
    if len(sizes) == len(chain.draft.dims) and math.prod(sizes) <= FEW:
        return f"no more than {FEW} elements: a call would take longer than they do"
    return ""


def _reason(error: CannotLift | InvalidInput) -> str:
    if isinstance(error, InvalidInput):
        return f"{error.field}: {error.problem}" if error.field else error.problem
    return str(error)


def _draft(operation: Operation) -> Draft:
    node = operation.node
    if node.op in ELEMENTWISE:
        return elementwise(operation)
    if node.op not in OPERATORS:
        raise CannotLift(node.reason or f"{node.op} on its own is not lifted")
    draft = OPERATORS[node.op](operation)
    return biased(operation, draft) if node.op in BIASED else draft
