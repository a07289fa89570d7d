"""A program under construction: an operator, and the elementwise stages that were fused behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from shapewright.models.graph import CannotLift, Graph, Node, Operation, Shape
from shapewright.models.lifted import LiftedOp, Operand, View
from shapewright.models.views import product
from tuner.program.catalogue import OPS
from tuner.program.job.build import ProgramOp, make_workload
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.registry import RULES
from tuner.schedule.rule import NoMatch

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Fused:
    """An elementwise stage: ``text`` of ``{x}``, the value so far, and of reads of further tensors.

    ``op`` says for people what it does; ``epilogue`` is its name in the catalogue, if it has one. ``dtype``: the one
    that it casts to, which the output may have then.
    """

    op: str
    text: str
    reads: tuple[tuple[str, tuple[int, ...]], ...] = ()
    epilogue: str | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Produced:
    """An elementwise stage in front: ``tensor``, an input of the operator, is ``text`` of reads along ``axes``."""

    op: str
    tensor: str
    text: str
    axes: tuple[str, ...]
    reads: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """``base`` is the operator's program alone, None where there is nothing but elementwise stages.

    ``axes`` are the output's, of sizes ``dims``; ``channel`` is the one that a bias runs over. ``nodes`` is what it
    stands for so far; the value of the last one has the output's axes through ``view``.
    """

    op: str | ProgramOp | None
    args: Mapping[str, Any]
    base: Workload | None
    operands: tuple[Operand, ...]
    axes: tuple[str, ...]
    dims: Shape
    channel: str
    nodes: tuple[str, ...]
    view: View
    stages: tuple[Fused, ...] = ()
    before: tuple[Produced, ...] = ()
    """Producers of operands, in the order of the program."""

    @property
    def node(self) -> str:
        return self.nodes[-1]

    def with_operand(self, operand: Operand) -> Draft:
        """One more input, or another one in the place of that of the same tensor."""
        kept = tuple(known for known in self.operands if known.tensor != operand.tensor)
        return replace(self, operands=(*kept, operand))

    def fresh(self, name: str) -> str:
        """A name that no tensor of the program has."""
        taken = {operand.tensor for operand in self.operands} | set(self.base.program.tensors if self.base else ())
        taken |= {each.tensor for each in self.before}
        number, first = 0, name
        while name in taken or name == "out":
            number += 1
            name = f"{first}_{number}"
        return name


def draft_of(
    op: str | ProgramOp, args: Mapping[str, Any], operands: Sequence[Operand], operation: Operation, view: View,
    dtypes: Mapping[str, str] | None = None,
) -> Draft:  # fmt: skip
    """An operator of the catalogue, or a program, for one node, whose value has its output's axes through ``view``.

    ``dtypes``: those of tensors that can only be of one: conditions of bools, operands of integers and their sums.
    """
    base = _made(op, tuple(args.items()), _frozen(dict(dtypes)) if dtypes else "float32")
    if not isinstance(op, str):
        sizes = ", ".join(f"{name}={dim}" for name, dim in args.items())
        base = _labelled(base, f"{operation.node.op}({sizes})")
    (out,) = base.program.outputs
    axes = base.program.stage[out].axes
    channel = (OPS[op].channel if isinstance(op, str) else None) or (axes[-1] if axes else "")
    dims = tuple(product([operation.shape[axis] for axis in group]) for group in view)
    return Draft(op, args, base, tuple(operands), axes, dims, channel, (operation.node.name,), view)


def lifted(draft: Draft, graph: Graph) -> LiftedOp:
    """The finished draft. Raises InvalidInput where the program is refused, CannotLift for dtypes."""
    node = graph[draft.node]
    if draft.base is None:
        draft = _joined(draft)
    workload = _labelled(_workload(draft, _dtypes(draft, graph, node)), _label(draft))
    if any(dim.constant == 0 for _, dim in workload.extents):
        raise CannotLift("it has no elements, or a sum of none")
    by_tensor = {operand.tensor: operand for operand in draft.operands}
    operands = tuple(by_tensor[tensor.name] for tensor in workload.inputs)
    covers = tuple(name for each in draft.nodes for name in graph[each].stands_for)
    return LiftedOp(workload, covers, operands, graph.shape(node.name), draft.view, node.dtype)


def rules_of(workload: Workload, target: Target) -> tuple[str, ...]:
    """The rules that take a workload, the fallback left out."""
    return tuple(
        rule.name for rule in RULES if not rule.is_fallback and not isinstance(rule.match(workload, target), NoMatch)
    )


def reasons(workload: Workload, target: Target) -> str:
    """Why no rule takes a workload."""
    answers = {rule.name: rule.match(workload, target) for rule in RULES if not rule.is_fallback}
    told = "; ".join(f"{name}: {answer.reason}" for name, answer in answers.items() if isinstance(answer, NoMatch))
    return f"no schedule rule takes it but the fallback ({told})"


# -- the program ----------------------------------------------------------------------------------------------------
def _workload(draft: Draft, dtypes: Mapping[str, str]) -> Workload:
    dtype = next(iter(dtypes.values())) if len(set(dtypes.values())) == 1 else dict(dtypes)
    names = [stage.epilogue for stage in draft.stages]
    known = [name for name in names if name is not None]
    # The catalogue's epilogues run over the last axis of a program, if it is none of the catalogue's operators.
    has_its_channel = isinstance(draft.op, str) or draft.channel in ("", *draft.axes[-1:])
    is_known = draft.op is not None and has_its_channel and not draft.before and len(known) == len(names)
    if is_known and len({*known} & {"bias", "add"}) == sum(name in ("bias", "add") for name in known):
        return _made(draft.op, tuple(draft.args.items()), _frozen(dtype), tuple(known))
    return _spelled(draft, dtype)


@lru_cache(maxsize=1024)
def _made(
    op: str | ProgramOp, args: tuple[tuple[str, Any], ...], dtype: tuple[tuple[str, str], ...] | str = "float32",
    epilogue: tuple[str, ...] = (),
) -> Workload:  # fmt: skip
    """A workload, made once for all layers that have it: checking one takes milliseconds."""
    return make_workload(op, dict(args), dtype if isinstance(dtype, str) else dict(dtype), epilogue)


@lru_cache(maxsize=1024)
def _labelled(workload: Workload, label: str) -> Workload:
    """The workload with another label: cached, because a workload infers its shapes only once."""
    return workload if workload.label == label else replace(workload, label=label)


def _frozen(dtype: str | dict[str, str]) -> tuple[tuple[str, str], ...] | str:
    return dtype if isinstance(dtype, str) else tuple(dtype.items())


def _spelled(draft: Draft, dtype: str | dict[str, str]) -> Workload:
    """The program with its stages written out."""
    every, count = ", ".join(draft.axes), len(draft.stages)
    results = [*(f"out_{number}" for number in range(count)), "out"]
    lines: list[str] = []
    fields: dict[str, Any] = {}
    extents = {axis: str(dim) for axis, dim in zip(draft.axes, draft.dims, strict=True)}
    base = draft.base
    if base is not None:
        (out,) = base.program.outputs
        lines += [_produced(each) for each in draft.before]
        lines.append(str(base.program.renamed({}, {out: results[0]})))
        # Sizes that only shapes of the catalogue name are in these already.
        own = {*base.program.axes, *base.program.sizes}
        extents = {name: str(dim) for name, dim in base.extents if name in own}
        fields = {"constant": base.constants, "padded": _padding(base), "shapes": base.shapes}
        before = f"{results[0]}[{every}]"
    else:
        first = draft.operands[0]
        before = _read(draft, first.tensor, draft.stages[0].reads[0][1])
    for stage, result in zip(draft.stages, results[1:], strict=True):
        texts = {tensor: _read(draft, tensor, dims) for tensor, dims in stage.reads} | {"x": before}
        lines.append(f"{result}[{every}] = {stage.text.format(**texts)}")
        before = f"{result}[{every}]"
    return _made(ProgramOp("\n".join(lines), **fields), tuple(extents.items()), _frozen(dtype))


def _label(draft: Draft) -> str:
    """A label in the form of the catalogue's operators with their epilogues."""
    sizes = ", ".join(f"{axis}={dim}" for axis, dim in zip(draft.axes, draft.dims, strict=True))
    first = [*(each.op for each in draft.before), draft.base.label] if draft.base else []
    names = [*first, *(stage.epilogue or stage.op for stage in draft.stages)]
    return " + ".join(names) + ("" if first else f" ({sizes})")


def _produced(stage: Produced) -> str:
    texts = {tensor: f"{tensor}[{', '.join(stage.axes[dim] for dim in dims)}]" for tensor, dims in stage.reads}
    return f"{stage.tensor}[{', '.join(stage.axes)}] = {stage.text.format(**texts)}"


def _read(draft: Draft, tensor: str, dims: Sequence[int]) -> str:
    return f"{tensor}[{', '.join(draft.axes[dim] for dim in dims)}]"


def _padding(workload: Workload) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value if abs(value) < float("inf") else str(value)) for name, value in workload.padding)


def _joined(draft: Draft) -> Draft:
    """Neighbouring axes that every tensor has both of, or neither, as one: fewer programs mean the same."""
    has = [set(dims) for stage in draft.stages for _, dims in stage.reads]
    groups: list[list[int]] = []
    for dim in range(len(draft.dims)):
        if groups and all((dim in dims) == (groups[-1][-1] in dims) for dims in has):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    place = {dim: number for number, group in enumerate(groups) for dim in group}

    def join(view: View, dims: Sequence[int]) -> View:
        numbers = dict.fromkeys(place[dim] for dim in dims)
        parts = {number: [axis for dim, group in zip(dims, view, strict=True) if place[dim] == number for axis in group]
                 for number in numbers}  # fmt: skip
        return tuple(tuple(part) for part in parts.values())

    dims_of = {tensor: dims for stage in draft.stages for tensor, dims in stage.reads}
    stages = tuple(
        replace(stage, reads=tuple((tensor, tuple(dict.fromkeys(place[dim] for dim in dims)))
                                   for tensor, dims in stage.reads))
        for stage in draft.stages
    )  # fmt: skip
    dims = []
    for group in groups:
        size = draft.dims[group[0]]
        for dim in group[1:]:
            size = size * draft.dims[dim]
        dims.append(size)
    return replace(
        draft,
        axes=tuple(f"a{number}" for number in range(len(groups))),
        dims=tuple(dims),
        view=join(draft.view, range(len(draft.dims))),
        operands=tuple(replace(one, view=join(one.view, dims_of[one.tensor])) for one in draft.operands),
        stages=stages,
    )


def _dtypes(draft: Draft, graph: Graph, node: Node) -> dict[str, str]:
    cast = {each.tensor: each.fold.dtype for each in draft.operands if each.fold and each.fold.dtype}
    types = {each.tensor: graph[each.node].dtype for each in draft.operands} | cast | {"out": node.dtype}
    only = {name: dtype for name, dtype in (draft.base.dtypes if draft.base else ()) if dtype not in DTYPES}
    if draft.stages and draft.stages[-1].dtype:
        only["out"] = draft.stages[-1].dtype
    for tensor, dtype in types.items():
        if dtype not in DTYPES and dtype != only.get(tensor):
            allowed = f"not {only[tensor]}" if tensor in only else f"none of {', '.join(DTYPES)}"
            raise CannotLift(f"{tensor} is {dtype or 'of an unknown dtype'}, {allowed}")
    return types
