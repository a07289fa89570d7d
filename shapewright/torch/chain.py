"""The operator ``torch.ops.shapewright.chain``: calls of tuned libraries one after the other, without Python between.

    chain(Tensor[] tensors, SymInt[] sizes, str plan) -> Tensor[]

``tensors`` are those that the calls read and that none of them makes; ``sizes`` what shapes are made of; ``plan`` says
what is called with what. It is put into graphs behind all derivatives (``shapewright.torch.chains``) and has none. For
each combination of sizes the calls' arguments are written down once, and values that only calls read have places in one
piece of memory, by how long they are needed, which later calls use again. Where no machine code is at hand the calls
are made one by one.
"""

from __future__ import annotations

import ctypes
import logging
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from shapewright.models.lifted import View
from shapewright.torch.arguments import Bound, planned
from shapewright.torch.memory import MEMORY
from shapewright.torch.native import address_of, native
from shapewright.torch.op import NAMESPACE, prepared
from shapewright.torch.plan import DTYPES, Call, Get, Plan, Taken, plan_of
from shapewright.torch.steps import ChainPlan, Made, Step, sizes_of
from shapewright.torch.weights import Found, Operand, Weights

log = logging.getLogger(__name__)

MOST_BOUND = 256
"""Combinations of sizes whose arguments are kept: some kilobytes each."""
MOST_CHAINS = 1024
"""Chains that a process keeps, however many models it compiles: one that was dropped is made again at its next call."""
MOST_OPERANDS = 64
"""Of a call, as native.c has room for."""

_Read = int | tuple[Made, View]
"""An operand: which constant of the chain's, from -1 downwards which of what varies, or what a call made and how it
is joined."""


def may_be_chained(call: Call) -> bool:
    """Whether a call can be part of a chain: its library needs no pool of its own, and its output's elements lie in the
    order of the model's."""
    return call.is_plain and len(call.workload.operands) <= MOST_OPERANDS and native() is not None


# -- calls ----------------------------------------------------------------------------------------------------------
class Chain:
    """A plan, ready to run. Safe to use from several threads. ``watch``: is told of each step what its call took."""

    def __init__(self, plan: ChainPlan) -> None:
        self.plan = plan
        self.calls = [prepared(step.plan) for step in plan.steps]
        self.inputs = 1 + max(each for step in plan.steps for each in step.inputs if isinstance(each, int))
        self.watch: Callable[[int, float], None] | None = None
        self._weights: Weights
        self._varying: list[Get] = []
        """What is got at each call: its shape depends on it."""
        self._read = self._operands()
        self._bound: dict[tuple[Any, ...], Bound] = {}
        code = native()
        self._run: Any = None
        if code is not None and all(call.is_plain for call in self.calls):
            number, place = ctypes.c_int, ctypes.c_void_p
            self._run = ctypes.CFUNCTYPE(number, place, number, number, place, place, place)(
                address_of(code, "run_chain")
            )
        self._threads = max(call.threads for call in self.calls)
        self._is_refused = False

    def _operands(self) -> list[list[_Read]]:
        """Of each call where its operands come from, but for the output."""
        constants, kept = set(self.plan.constants), list[Operand]()

        def read(step: Step, call: Call, name: str, taken: Taken) -> _Read:
            sources = [None if each is None else step.inputs[each] for each in taken.inputs]
            if (made := next((each for each in sources if isinstance(each, Made)), None)) is not None:
                return made, taken.view
            given = tuple(each if isinstance(each, int) else None for each in sources)
            positions, get = (
                [each for each in given if each is not None],
                call.getter(name, replace(taken, inputs=given)),
            )
            if taken.is_kept or constants.issuperset(positions):
                kept.append(Operand(get, tuple(positions), taken.is_kept))
                return len(kept) - 1
            self._varying.append(get)
            return -len(self._varying)

        found = [
            [read(step, call, name, taken) for name, taken in call.taken]
            for step, call in zip(self.plan.steps, self.calls, strict=True)
        ]
        self._weights = Weights(kept, are_frozen=bool(self.plan.frozen))
        return found

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        outs = [
            torch.empty(sizes_of(step.sizes, sizes), dtype=self._dtype(at), device="cpu")
            for at, step in self._outputs()
        ]
        self.into(tensors, sizes, outs)
        return outs

    def _outputs(self) -> Iterable[tuple[int, Step]]:
        return ((at, self.plan.steps[at]) for at in self.plan.outputs)

    def _dtype(self, step: int) -> torch.dtype:
        return DTYPES[plan_of(self.plan.steps[step].plan).dtype]

    def into(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        """Compute with the outputs written to ``outs``."""
        if self._run is None:
            return self._singly(tensors, sizes, outs)
        weights = self._weights.of(tensors)
        varying = [get(tensors) for get in self._varying]
        key = (*sizes, weights.number, *[(value.shape, value.dtype) for value in varying])
        bound = self._bound.get(key) or self._bind(key, weights, varying, sizes)
        memory = MEMORY.take(bound.bytes)
        bases = weights.pointers + array("Q", [each.data_ptr() for each in (*varying, memory, *outs)])
        count, watch = len(bound.steps), self.watch
        seconds = (ctypes.c_double * count)() if watch else None
        given = ctypes.addressof(bound.calls), count, self._threads, bases.buffer_info()[0], seconds, bound.pace
        is_refused = self._run(*given)
        MEMORY.give(memory)
        if is_refused:
            # Made again one by one, the call that fails says why.
            if not self._is_refused:
                self._is_refused = True
                log.warning("a chain of %d calls is made one by one: its machine code refused it", len(self.calls))
            return self._singly(tensors, sizes, outs)
        if watch is not None and seconds is not None:
            for step, took in zip(bound.steps, seconds, strict=True):
                watch(step, took)
        return None

    def _singly(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        made: list[torch.Tensor] = []
        for step, call in zip(self.plan.steps, self.calls, strict=True):
            operands = [
                tensors[each] if isinstance(each, int) else _seen(made[each.step], each, sizes) for each in step.inputs
            ]
            made.append(call(operands, sizes_of(step.sizes, sizes)))
        for at, out in zip(self.plan.outputs, outs, strict=True):
            out.copy_(made[at])

    # -- arguments ----------------------------------------------------------------------------------------------------
    def _bind(
        self, key: tuple[Any, ...], weights: Found, varying: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> Bound:
        bound, shapes = Bound(), [sizes_of(step.sizes, sizes) for step in self.plan.steps]
        constants = len(self._weights)
        memory = constants + len(varying)
        base = {step: memory + 1 + number for number, step in enumerate(self.plan.outputs)}
        offsets, bound.bytes = self._placed(shapes, base)

        def read(each: _Read) -> tuple[Sequence[int], str, int, int]:
            """Shape, dtype, base and offset."""
            if not isinstance(each, int):
                made, view = each
                seen, first = made.placed(math.prod(shapes[made.step]), sizes)
                dtype = self._dtype(made.step)
                offset = offsets.get(made.step, 0) + first * dtype.itemsize
                return _joined(view, seen), _name(dtype), base.get(made.step, memory), offset
            if each >= 0:
                return *weights.described[each], each, 0
            value = varying[-1 - each]
            return tuple(value.shape), _name(value.dtype), constants - 1 - each, 0

        for step, (call, operands) in enumerate(zip(self.calls, self._read, strict=True)):
            if 0 in shapes[step]:
                continue
            shape = _joined(call.view, shapes[step])
            result = shape, _name(self._dtype(step)), base.get(step, memory), offsets.get(step, 0)
            bound.add(step, call.entry, [*map(read, operands), result])
        bound.close()
        # Of two threads that come here at once one is forgotten; either serves.
        kept = list(self._bound.items())[-MOST_BOUND + 1 :]
        self._bound = {**dict(kept), key: bound}
        return bound

    def _placed(self, shapes: Sequence[list[int]], outputs: Iterable[int]) -> tuple[dict[int, int], int]:
        """Where the values that are no outputs lie in the memory of a call, and how much that is."""
        last = {step: step for step in range(len(shapes))}
        for at, step in enumerate(self.plan.steps):
            last.update({each.step: at for each in step.inputs if isinstance(each, Made)})
        inner = [step for step in range(len(shapes)) if step not in set(outputs)]
        needs = [(math.prod(shapes[step]) * self._dtype(step).itemsize, step, last[step]) for step in inner]
        places, total = planned(needs)
        return dict(zip(inner, places, strict=True)), total


def _seen(value: torch.Tensor, made: Made, given: Sequence[int]) -> torch.Tensor:
    sizes, first = made.placed(value.numel(), given)
    return value.flatten()[first : first + math.prod(sizes)].view(sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _joined(view: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[axis] for axis in group) for group in view]


# -- the operator ---------------------------------------------------------------------------------------------------
_chains: dict[str, Chain] = {}


def chain_of(text: str) -> Chain:
    """The chain of a plan, its libraries loaded. Raises ShapewrightError."""
    chain = _chains.get(text)
    if chain is None:
        chain = _chains.setdefault(text, Chain(ChainPlan.read(text)))
        # A frozen program needs its own for as long as it lives.
        kept = [each for each, made in list(_chains.items()) if not made.plan.frozen]
        for oldest in kept[:-MOST_CHAINS]:
            _chains.pop(oldest, None)
    return chain


def chains_so_far() -> list[Chain]:
    """The chains that were run in this process."""
    return list(_chains.values())


def forget_program(number: int) -> None:
    """Drop the chains of a program whose constants are read once (``ChainPlan.frozen``)."""
    for text, chain in list(_chains.items()):
        if chain.plan.frozen == number:
            _chains.pop(text, None)


def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int], plan: str) -> list[torch.Tensor]:
    """What the operator does on the CPU. Inductor's code calls it past the dispatcher."""
    return chain_of(plan)(tensors, sizes)


def direct(*operands: Any, out: torch.Tensor) -> None:
    """What Inductor's code calls for a chain of one output: the tensors, the sizes, the plan."""
    chain = chain_of(operands[-1])
    chain.into(operands[: chain.inputs], operands[chain.inputs : -1], (out,))


def _fake(tensors: Sequence[torch.Tensor], sizes: Sequence[Any], plan: str) -> list[torch.Tensor]:
    steps = ChainPlan.read(plan)
    made = [(steps.steps[at].sizes, plan_of(steps.steps[at].plan)) for at in steps.outputs]
    return [tensors[0].new_empty(sizes_of(each, sizes), dtype=DTYPES[its.dtype]) for each, its in made]


library = torch.library.Library(NAMESPACE, "FRAGMENT")
library.define("chain(Tensor[] tensors, SymInt[] sizes, str plan) -> Tensor[]")
library.impl("chain", run, "CPU")
torch.library.register_fake(f"{NAMESPACE}::chain", _fake, lib=library)
chain = torch.ops.shapewright.chain.default
# By a name that compiled code which was kept on disk finds again.
torch.ops.shapewright.direct_chain = direct
torch.ops.shapewright.direct_chains = run


def is_made_in_order(plan: Plan) -> bool:
    """Whether the output's elements lie in memory as the model's do."""
    axes = [axis for group in plan.output for axis in group]
    return bool(axes) and axes == list(range(len(axes)))
