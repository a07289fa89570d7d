"""Calls of tuned libraries one after the other, without Python between.

The calls' arguments are written down once (``shapewright.torch.arguments``), and values that only calls read have
places in one piece of memory, by how long they are needed, which later calls use again. Where rows of a batch are
independent the calls of a segment are made for some of them, then for the next ones (``shapewright.torch.batches``).
Where no machine code is at hand the calls are made one by one.
"""

from __future__ import annotations

import ctypes
import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from shapewright.models.lifted import View
from shapewright.torch.arguments import (
    Bound,
    Described,
    Form,
    Got,
    Number,
    joined,
    numbers_of,
    place_of,
    times,
    varying,
)  # fmt: skip
from shapewright.torch.batches import Source, batch_of
from shapewright.torch.frozen import constants_of
from shapewright.torch.joins import JOIN, Copying, Join
from shapewright.torch.memory import MEMORY
from shapewright.torch.native import chain_runner, native
from shapewright.torch.op import prepared
from shapewright.torch.placing import Places, Within, places_of
from shapewright.torch.plan import DTYPES, Call, Taken, plan_of
from shapewright.torch.steps import ChainPlan, Made, Step, sizes_of
from shapewright.torch.transposes import TRANSPOSE, Transpose
from shapewright.torch.weights import Found, Operand, Weights

log = logging.getLogger(__name__)
# As Inductor calls it, past the dispatcher, where this version of PyTorch has it; on the CPU whatever the default is.
empty: Callable[..., torch.Tensor] = getattr(
    torch._C._dynamo.guards, "_empty_strided_cpu", partial(torch.empty_strided, device="cpu")
)

MOST_BOUND = 256
"""Combinations of sizes whose numbers are kept: some kilobytes each, several times that for batches in parts."""
MOST_FORMS = 8
"""Descriptions of its calls that a chain keeps: another one is needed for constants of other shapes or dtypes."""
MOST_OPERANDS = 64
"""Of a call, as native.c has room for."""

COPIES: Mapping[str, type[Copying]] = {JOIN: Join, TRANSPOSE: Transpose}
"""Steps that are no calls of libraries, by what stands in the place of the digest."""


def may_be_chained(call: Call) -> bool:
    """Whether a call can be part of a chain: its library needs no pool of its own, and its output's elements lie in the
    order of the model's."""
    return call.is_plain and len(call.workload.operands) <= MOST_OPERANDS and native() is not None


# -- calls ----------------------------------------------------------------------------------------------------------
class Chain:
    """A plan, ready to run. Safe to use from several threads. ``watch``: is told of each step what its call took."""

    def __init__(self, plan: ChainPlan) -> None:
        self.plan = plan
        self.calls = [_call_of(step.plan) for step in plan.steps]
        read = 1 + max(each for step in plan.steps for each in step.inputs if isinstance(each, int))
        self.inputs = read - len(plan.names)
        self.watch: Callable[[int, float], None] | None = None
        self._weights: Weights
        self._varying: list[Callable[[Sequence[torch.Tensor]], Got]] = []
        """What is got at each call: its shape depends on it."""
        self._views: list[View] = []
        """Of what varies."""
        self._read = self._operands()
        self._sizes = [numbers_of(step.sizes) for step in plan.steps]
        self._last = {step: step for step in range(len(plan.steps))}
        for at, step in enumerate(plan.steps):
            self._last.update({each.step: at for each in step.inputs if isinstance(each, Made)})
        self._within = self._found_within()
        within = {step: own.join for step, own in self._within.items()}
        self._batch = batch_of(plan, self.calls, self._read, self._last, within)
        self._shapes: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]] = {}
        self._forms: dict[tuple[Any, ...], Form] = {}
        self._bound: dict[tuple[Any, ...], Bound] = {}
        code = native()
        self._run: Callable[..., int] | None = None
        if code is not None and all(call.is_plain for call in self.calls):
            self._run = chain_runner(code)
        self._threads = max(call.threads for call in self.calls)
        self._is_refused = False

    def _operands(self) -> list[list[Source]]:
        """Of each call where its operands come from, but for the output."""
        constants, kept, seen = set(self.plan.constants), list[Operand](), dict[tuple[int, View], int]()

        def read(step: Step, call: Call | Copying, name: str, taken: Taken) -> Source:
            sources = [None if each is None else step.inputs[each] for each in taken.inputs]
            if (made := next((each for each in sources if isinstance(each, Made)), None)) is not None:
                return made, taken.view
            given = tuple(each if isinstance(each, int) else None for each in sources)
            positions = [each for each in given if each is not None]
            if taken.is_kept or constants.issuperset(positions):
                get = call.getter(name, replace(taken, inputs=given))
                kept.append(Operand(get, tuple(positions), taken.is_kept))
                return len(kept) - 1
            # Rotary embeddings of all layers read the same: it is looked at once.
            number = seen.setdefault((positions[0], taken.view), len(seen))
            if number == len(self._varying):
                self._varying.append(varying(call.copies, name, positions[0], taken.view))
                self._views.append(taken.view)
            return -1 - number

        found = [
            [read(step, call, name, taken) for name, taken in call.taken]
            for step, call in zip(self.plan.steps, self.calls, strict=True)
        ]
        self._weights = Weights(kept, self._kept if self.plan.names else None, are_frozen=bool(self.plan.frozen))
        return found

    def _kept(self) -> list[torch.Tensor]:
        """The tensors that a call is not given."""
        return constants_of(self.plan.frozen, self.plan.names)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        outs = [empty(*each) for each in self._shapes.get(tuple(sizes)) or self._shaped(sizes)]
        self.into(tensors, sizes, outs)
        return outs

    def _shaped(self, sizes: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """Sizes, strides and dtypes of the outputs."""
        shapes = [tuple(sizes_of(self.plan.steps[at].sizes, sizes)) for at in self.plan.outputs]
        strides = [
            tuple(math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape)))
            for shape in shapes
        ]
        found = list(zip(shapes, strides, map(self._dtype, self.plan.outputs), strict=True))
        self._shapes = {**dict(list(self._shapes.items())[-MOST_BOUND + 1 :]), tuple(sizes): found}
        return found

    def _dtype(self, step: int) -> torch.dtype:
        return DTYPES[plan_of(self.plan.steps[step].plan).dtype]

    def into(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        """Compute with the outputs written to ``outs``."""
        if self._run is None:
            return self._singly(tensors, sizes, outs)
        weights = self._weights.of(tensors)
        got = [get(tensors) for get in self._varying]
        threads = min(self._threads, torch.get_num_threads())
        key = (*sizes, threads, weights.number, *[(value.shape, value.dtype, is_viewed) for value, is_viewed in got])
        bound = self._bound.get(key) or self._bind(key, weights, got, sizes, threads)
        memory = MEMORY.take(bound.bytes)
        bases = weights.pointers + array("Q", [value.data_ptr() for value, _ in got])
        bases.extend([memory.data_ptr(), *[each.data_ptr() for each in outs]])
        count, watch = len(self.calls), self.watch
        seconds = (ctypes.c_double * (count * threads))() if watch else None
        numbers, parts = bound.numbers.buffer_info()[0], bound.parts and ctypes.addressof(bound.parts)
        is_refused = self._run(
            ctypes.addressof(bound.calls), count, threads, bases.buffer_info()[0], numbers, seconds, bound.pace, parts
        )
        MEMORY.give(memory)
        if is_refused:
            # Made again one by one, the call that fails says why.
            if not self._is_refused:
                self._is_refused = True
                log.warning("a chain of %d calls is made one by one: its machine code refused it", len(self.calls))
            return self._singly(tensors, sizes, outs)
        if watch is not None and seconds is not None:
            for step in range(count):
                watch(step, sum(seconds[step::count]))
        return None

    def _singly(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], outs: Sequence[torch.Tensor]) -> None:
        made: list[torch.Tensor] = []
        tensors = [*tensors, *self._kept()]
        for step, call in zip(self.plan.steps, self.calls, strict=True):
            operands = [
                tensors[each] if isinstance(each, int) else _seen(made[each.step], each, sizes) for each in step.inputs
            ]
            made.append(call(operands, sizes_of(step.sizes, sizes)))
        for at, out in zip(self.plan.outputs, outs, strict=True):
            out.copy_(made[at])

    # -- arguments ----------------------------------------------------------------------------------------------------
    def _bind(
        self, key: tuple[Any, ...], weights: Found, got: Sequence[Got], sizes: Sequence[int], threads: int
    ) -> Bound:  # fmt: skip
        shapes = [tuple(value.shape) for value, _ in got]
        kind = (weights.number, *[(value.dim(), value.dtype, is_viewed) for value, is_viewed in got])
        # Of two threads that come here at once one is forgotten; either serves.
        form = self._forms.get(kind)
        if form is None:
            form = self._form(weights, got, sizes, shapes)
            self._forms = {**dict(list(self._forms.items())[-MOST_FORMS + 1 :]), kind: form}
        bound = form.bound(sizes, shapes)
        if self._batch is not None:
            constants = [math.prod(shape) * DTYPES[dtype].itemsize for shape, dtype in weights.described]
            bound = self._batch.in_parts(form, bound, sizes, shapes, constants, threads)
        kept = list(self._bound.items())[-MOST_BOUND + 1 :]
        self._bound = {**dict(kept), key: bound}
        return bound

    def _form(
        self, weights: Found, got: Sequence[Got], sizes: Sequence[int], given: Sequence[tuple[int, ...]]
    ) -> Form:  # fmt: skip
        constants = len(self._weights)
        memory, shapes = constants + len(got), self._sizes
        form = Form(memory)
        base = {step: memory + 1 + number for number, step in enumerate(self.plan.outputs)}
        inner = [step for step in range(len(shapes)) if step not in base]
        places = self._places(inner, sizes, given)
        offsets = dict(zip(inner, places.offsets, strict=True))

        def read(each: Source) -> Described:
            if not isinstance(each, int):
                made, view = each
                seen, first = place_of(made, times(shapes[made.step]))
                dtype = self._dtype(made.step)
                behind, offset = times([first, dtype.itemsize]), offsets.get(made.step, 0)
                at = f"{offset} + {behind}" if behind and offset else behind or offset
                return joined(view, seen), _name(dtype), base.get(made.step, memory), at
            if each >= 0:
                return *weights.described[each], each, 0
            place = -1 - each
            value, is_viewed = got[place]
            own: list[Number] = [f"v[{place}][{axis}]" for axis in range(value.dim())]
            seen = own if is_viewed else joined(self._views[place], own)
            return seen, _name(value.dtype), constants + place, 0

        for step, (call, operands) in enumerate(zip(self.calls, self._read, strict=True)):
            shape = joined(call.view, shapes[step])
            result = shape, _name(self._dtype(step)), base.get(step, memory), offsets.get(step, 0)
            form.add(call.entry, [*map(read, operands), result])
        form.close(places)
        return form

    def _places(self, inner: Sequence[int], sizes: Sequence[int], given: Sequence[tuple[int, ...]]) -> Places:
        """Where the values that are no outputs lie in the memory of a call."""
        needs = [(times([*self._sizes[step], self._dtype(step).itemsize]), step, self._last[step]) for step in inner]
        numbers = {step: number for number, step in enumerate(inner)}
        within = {numbers[step]: replace(own, join=numbers[own.join]) for step, own in self._within.items()}
        return places_of(needs, sizes, given, within)

    def _found_within(self) -> dict[int, Within]:
        """The values that a join takes and nobody reads later, both in the memory of a call; by step.

        A join would have to live as long as they do: those of a dense block all to its end. A join of joins copies them
        for the same reason.
        """
        found: dict[int, Within] = {}
        for step, (call, operands) in enumerate(zip(self.calls, self._read, strict=True)):
            if not isinstance(call, Join) or step in self.plan.outputs:
                continue
            rows, behind = times(self._sizes[step][axis] for axis in call.view[0]), list[Number]()
            if isinstance(rows, int) and rows != 1:
                continue
            for each in operands:
                # Behind what a call is given nobody knows the place.
                if isinstance(each, int):
                    break
                made, view = each
                is_last = self._last[made.step] == step and not isinstance(self.calls[made.step], Join)
                if made.step not in self.plan.outputs and made.piece is None and is_last:
                    found.setdefault(made.step, Within(step, rows, " + ".join(map(str, behind)) or 0))
                seen, _ = place_of(made, times(self._sizes[made.step]))
                behind.append(times([joined(view, seen)[1], self._dtype(step).itemsize]))
        return found


def _call_of(text: str) -> Call | Copying:
    plan = plan_of(text)
    copying = COPIES.get(plan.digest)
    return prepared(text) if copying is None else copying(plan)


def _seen(value: torch.Tensor, made: Made, given: Sequence[int]) -> torch.Tensor:
    sizes, first = made.placed(value.numel(), given)
    return value.flatten()[first : first + math.prod(sizes)].view(sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
