"""PyTorch's own database of operators (OpInfo) through the backend, with libraries that replace what they can.

Each operator has a reader behind it, which a kernel may fuse. Its inputs come as they are or with other strides, and a
second time with twice as many rows. Rows are told to be dynamic, which is one graph for both where PyTorch itself makes
no second one, or found to be at the second call, which is a graph of fixed sizes and another one. All of that for each
sample is most of an hour for a core: each run draws one case for each sample of each operator (``drawn``).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

import torch
from torch.utils import _pytree

from tests.shapewright.torch.replacing import Replacing, same

Function = Callable[..., Any]
REFUSALS = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedFakeTensorException")
"""What PyTorch's tracing says of graphs that it cannot take: they run as without a compiler."""
LAYOUTS = ("as it is", "strided")


@dataclass(frozen=True)
class Laid:
    """How a sample comes: its layout, and whether PyTorch is told that rows are dynamic."""

    layout: str
    is_told: bool

    def __str__(self) -> str:
        return f"{self.layout}, rows {'told' if self.is_told else 'found'} to be dynamic"


def drawn(random: Random, samples: int) -> list[Laid]:
    """A case for each of an operator's samples: as evenly as can be, both layouts and both ways to be dynamic."""
    layouts, told = random.sample(LAYOUTS, 2), random.sample((True, False), 2)
    return [Laid(layouts[place % 2], told[place % 2]) for place in range(samples)]


@dataclass
class Outcomes:
    """``wrong``: where PyTorch's compiler is right without libraries; ``counted``: by kind of outcome how many."""

    wrong: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    replaced: set[str] = field(default_factory=set)


def operators(dtype: torch.dtype) -> list[Any]:
    """Those that a CPU has for ``dtype``, in order; what ``empty`` and its like give is no value."""
    # Takes as long to load as PyTorch itself, and one process needs it.
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return [op for op in op_db if dtype in op.dtypes and "empty" not in op.name]


def check(op: Any, dtype: torch.dtype, replacing: Replacing, outcomes: Outcomes, cases: Sequence[Laid]) -> None:
    """Compare an operator's first samples, each in its case, compiled, with eager ones, strides and dtypes included."""
    for place, (case, sample) in enumerate(zip(cases, _samples(op, dtype, len(cases)), strict=False)):
        flat, tree = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        given = [_laid(each, case.layout) for each in flat]
        positions = [n for n, each in enumerate(given) if isinstance(each, torch.Tensor)]
        tensors = [given[n] for n in positions]
        compared = _Compared(_read(op, given, tree, positions), tensors, case.is_told)
        outcome = compared.outcome(replacing, op.name, outcomes)
        outcomes.counted[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong"):
            outcomes.wrong.append(f"{op.formatted_name} {dtype}, sample {place} {case}: {outcome}")


def _samples(op: Any, dtype: torch.dtype, count: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), count))


def _laid(value: Any, layout: str) -> Any:
    """A tensor with gaps between its elements and its axes the other way round, where it has several."""
    if layout == "as it is" or not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout != torch.strided:
        return value
    order = range(value.dim() - 1, -1, -1)
    return value.permute(*order).contiguous().permute(*order)


def _read(op: Any, given: Sequence[Any], tree: Any, positions: Sequence[int]) -> Function:
    def function(*tensors: torch.Tensor) -> Any:
        values = list(given)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        first, args, kwargs = _pytree.tree_unflatten(values, tree)
        found = op.op(first, *args, **kwargs)
        return _pytree.tree_map(lambda each: torch.relu(each * 2) if _is_float(each) else each, found)

    return function


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


@dataclass
class _Compared:
    """A function of tensors, compiled and eager. ``is_told``: rows are dynamic from the first call on."""

    function: Function
    tensors: list[torch.Tensor]
    is_told: bool

    def outcome(self, replacing: Replacing, name: str, outcomes: Outcomes) -> str:
        """``same``, ``refused: why``, ``not compared: why``, or ``wrong: what`` where PyTorch's compilers are right."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                right, again = (_called(self.function, self.tensors) for _ in range(2))
                same(again, right)
            except Exception as error:
                return f"not compared: {type(error).__name__}"
            problem = self._problem(replacing.compiled(self.function, dynamic=None))
            if replacing.report.replaced:
                outcomes.replaced.add(name)
            if left := [kept.reason for kept in replacing.report.kept if kept.where == "the whole graph"]:
                if not problem and left[0].startswith(REFUSALS):
                    return f"refused: {left[0]}"
                problem = problem or f"left as a whole: {left[0]}"
            if not problem:
                return "same"
            # Inductor's strides are those that PyTorch's own descriptions of operators give, eager's are not always.
            for backend in ("aot_eager", "inductor"):
                torch._dynamo.reset()
                if own := self._problem(torch.compile(self.function, backend=backend)):
                    return f"not compared: {own}"
            return f"wrong: {problem}"

    def _problem(self, fast: Function) -> str:
        try:
            for tensors in [self.tensors, *([doubled] if (doubled := _doubled(self.function, self.tensors)) else [])]:
                same(_called(fast, tensors, is_told=self.is_told), _called(self.function, tensors))
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        return ""


def _called(function: Function, tensors: Sequence[torch.Tensor], *, is_told: bool = False) -> Any:
    torch.manual_seed(0)
    given = [each.clone(memory_format=torch.preserve_format) for each in tensors]
    for each in given:
        if is_told and each.dim() and each.shape[0] > 1:
            torch._dynamo.maybe_mark_dynamic(each, 0)
    return function(*given)


def _doubled(function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """The inputs with twice as many rows, where the operator takes them."""
    twice = [torch.cat([each, each]) if each.dim() and _is_float(each) else each for each in tensors]
    try:
        _called(function, twice)
    except Exception:
        return None
    return twice
