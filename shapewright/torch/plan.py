"""Plans: how tensors of a model become the operands of a library's call, and its output the model's.

A plan is a text (JSON), so that a graph that is exported or cached carries it whole. Views are those of
``shapewright.models.lifted``: for each dim of an operand the axes of the tensor that make it up.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from shapewright import forks
from shapewright.models.lifted import Fold, View, unviewed, viewed
from shapewright.sources.libraries import library_of
from shapewright.torch.devices import CPU, aligned
from shapewright.torch.native import share_threads
from shapewright.torch.packs import Packs
from tuner.errors import InvalidInput
from tuner.program.language.rows import independent_rows

if TYPE_CHECKING:
    from shapewright.library import Library

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    )
}
"""PyTorch's dtypes by the notation's names."""

Run = Callable[[Sequence[Any]], None]
Get = Callable[[Sequence[torch.Tensor]], Any]
"""An operand of the library's call, of the tensors of the model's."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Where an operand comes from: the positions of its tensors (several are folded into one), and its view."""

    inputs: tuple[int | None, ...]
    view: View
    fold: Fold | None = None
    packed: bool = False
    """Whether the library packs it."""

    @property
    def is_kept(self) -> bool:
        """Whether it is made once, and again when its tensors have changed."""
        return self.packed or self.fold is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """The call of a library in a model: its digest, its operands in order, and the view and dtype of the output."""

    digest: str
    operands: tuple[Taken, ...]
    output: View
    dtype: str

    def text(self) -> str:
        """What ``plan_of`` reads."""
        operands = [
            [list(taken.inputs), taken.view, int(taken.packed), _fold_json(taken.fold)] for taken in self.operands
        ]
        data = {"library": self.digest, "operands": operands, "output": self.output, "dtype": self.dtype}
        return json.dumps(data, separators=(",", ":"), sort_keys=True)


@functools.lru_cache(maxsize=65536)
def plan_of(text: str) -> Plan:
    """Raises InvalidInput for what is no plan."""
    try:
        data = json.loads(text)
        operands = tuple(
            Taken(tuple(inputs), _view(view), _fold(fold, inputs), bool(packed))
            for inputs, view, packed, fold in data["operands"]
        )
        return Plan(data["library"], operands, _view(data["output"]), data["dtype"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            "plan", f"is not one of this version ({error})", "compile or export the model again"
        ) from None


def is_made_in_order(plan: Plan) -> bool:
    """Whether the output's elements lie in memory as the model's do."""
    axes = [axis for group in plan.output for axis in group]
    return bool(axes) and axes == list(range(len(axes)))


def output_of(plan: Plan, sizes: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    """An output of the model's ``sizes`` without a value, with the strides that a call gives it."""
    result = like.new_empty(_joined(plan.output, sizes), dtype=DTYPES[plan.dtype])
    return unviewed(result, plan.output, sizes)


class Call:
    """A plan, ready to run. Safe to use from several threads."""

    def __init__(self, plan: Plan) -> None:
        self._library = library = library_of(plan.digest)
        self._is_for_gpu = library.is_for_gpu
        share_threads(library)
        # What is packed here is the library's own: only sizes that nothing else determines are left to compare.
        self._unwatched: Run = (lambda operands: library(*operands)) if library.has_sized_constants else library.run
        self._run: Run = self._unwatched
        self._view = plan.output
        self._rank = sum(map(len, plan.output))
        self._flat = _flattening(plan.output) if self._rank else None
        self._dtype = DTYPES[plan.dtype]
        self.copies: dict[str, int] = {}
        """How often each operand had to be copied because its elements were not in a row, by name."""
        self.workload = library.workload
        names = (tensor.name for tensor in library.workload.inputs)
        self.taken = list(zip(names, plan.operands, strict=True))
        """The inputs of the library's call: the name, and where it comes from."""
        self._operands = [self.getter(name, taken) for name, taken in self.taken]
        self._direct = list(self._getters_in_order(self.taken))

    def watch(self, around: Callable[[Call, Callable[[], None]], None] | None) -> None:
        """Have ``around`` run the library, of every call from now on; None: nobody."""
        run = self._unwatched
        self._run = run if around is None else lambda operands: around(self, lambda: run(operands))

    @property
    def view(self) -> View:
        """Of the output."""
        return self._view

    @property
    def entry(self) -> int:
        """The address of the library's code."""
        return self._library.entry

    @property
    def threads(self) -> int:
        """Of the library."""
        return self._library.threads

    @property
    def is_plain(self) -> bool:
        """Whether a call is one of the library's code on the CPU, without a pool to be had or sizes to be compared
        before."""
        library = self._library
        return not (library.has_sized_constants or library.needs_pool or library.is_for_gpu)

    @property
    def l2_bytes(self) -> int:
        """Of a core that the library was built for."""
        return self._library.dispatcher.task.known_target.hardware.l2_bytes

    @property
    def rows(self) -> tuple[bool, ...] | None:
        """Of each input whether row i of the output is computed of its row i alone, and of others as a whole; None
        where rows depend on one another."""
        by_row = independent_rows(self.workload)
        return None if by_row is None else tuple(name in by_row for name, _ in self.taken)

    def __call__(self, operands: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        if self._flat is None or len(sizes) != self._rank:
            # The result is a view, which must not know what it is a view of: whoever called may write to it.
            with torch._C._AutoDispatchBelowADInplaceOrView():
                result = torch.empty(_joined(self._view, sizes), dtype=self._dtype, device=self._device_of(operands))
                if result.numel():
                    self._run([*[get(operands) for get in self._operands], result])
                return unviewed(result, self._view, sizes)
        # Sizes one by one: PyTorch reads a list more slowly.
        out = torch.empty(*sizes, dtype=self._dtype, device=self._device_of(operands))
        if 0 not in sizes:
            values = [get(operands) for get in self._operands]
            values.append(self._flat(out))
            self._run(values)
        return out

    def _device_of(self, operands: Sequence[torch.Tensor]) -> Any:
        """Where the output is: on the GPU that the operands are on."""
        return operands[0].device if self._is_for_gpu else CPU

    def direct(self, operands: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """A call where each operand comes by itself, in the library's order: its tensors as they are if it is kept,
        else one that was viewed already."""
        values = [get(operands) for get in self._direct]
        values.append(result)
        self._run(values)

    def getter(self, name: str, taken: Taken) -> Get:
        """What gives the input of that name."""
        positions = [position for position in taken.inputs if position is not None]
        if not taken.is_kept:
            return self._varying(name, positions[0], taken.view)
        return _kept(_packs(self._library, name, taken), positions)

    def _getters_in_order(self, named: Sequence[tuple[str, Taken]]) -> Iterator[Get]:
        first = 0
        for name, taken in named:
            count = sum(position is not None for position in taken.inputs)
            if taken.is_kept:
                yield _kept(_packs(self._library, name, taken), range(first, first + count))
            else:
                yield _aligned_at(first) if self._is_for_gpu else operator.itemgetter(first)
            first += count

    def _varying(self, name: str, position: int, view: View) -> Get:
        """An operand that is new at every call, as a tensor without gaps."""
        flat, rank, is_for_gpu = _flattening(view), sum(map(len, view)), self._is_for_gpu

        def get(operands: Sequence[torch.Tensor]) -> torch.Tensor:
            given = operands[position]
            if flat is not None and given.dim() == rank and given.is_contiguous():
                return aligned(flat(given)) if is_for_gpu else flat(given)
            tensor = viewed(given, view).contiguous()
            if is_for_gpu:
                tensor = aligned(tensor)
            if tensor.data_ptr() != given.data_ptr():
                self.copies[name] = self.copies.get(name, 0) + 1
            return tensor

        return get


def _aligned_at(position: int) -> Get:
    return lambda operands: aligned(operands[position])


def _flattening(view: View) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A view that joins axes and keeps their order, of tensors without gaps; None where it does something else."""
    axes = [axis for group in view for axis in group]
    if axes != list(range(len(axes))) or not all(view):
        return None
    # From the back: joining axes changes the positions of those behind them.
    joined = [(group[0], group[-1]) for group in reversed(view) if len(group) > 1]
    # Every call of a library comes here: the usual ones go without a loop.
    if not joined:
        return lambda tensor: tensor
    if len(joined) == 1:
        ((first, last),) = joined
        return lambda tensor: tensor.flatten(first, last)
    return lambda tensor: functools.reduce(lambda value, ends: value.flatten(*ends), joined, tensor)


def _kept(packs: Packs, positions: Sequence[int]) -> Get:
    if len(positions) == 1:
        (only,) = positions
        return lambda operands: packs.of_one(operands[only])
    return lambda operands: packs.of(*[operands[position] for position in positions])


_shared: dict[tuple[Any, ...], Packs] = {}
_shared_lock = forks.lock()


def _packs(library: Library, name: str, taken: Taken) -> Packs:
    """Packed forms are shared by all calls that take the constant in the same way."""
    present = tuple(position is not None for position in taken.inputs)
    key = (library.digest, name, taken.view, present, taken.fold and replace(taken.fold, nodes=()))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Packs(lambda *tensors: _packed(library, name, taken, tensors))
        return _shared[key]


def _packed(library: Library, name: str, taken: Taken, tensors: Sequence[torch.Tensor]) -> Any:
    value = tensors[0].detach()
    if taken.fold is not None:
        given = iter(tensor.detach() for tensor in tensors)
        value = taken.fold.value({node: next(given) for node in taken.fold.nodes if node is not None})
    value = viewed(value, taken.view).contiguous()
    if library.is_for_gpu:
        value = aligned(value)
    if not taken.packed:
        return value
    packed = library.pack(name, value if library.is_for_gpu else _array(value))
    return packed if library.has_sized_constants else packed.tensor


def _array(tensor: torch.Tensor) -> Any:
    """An array of NumPy over the memory of a tensor, bfloat16 included."""
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes  # noqa: PLC0415 - for those who have such a tensor

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def _joined(view: View, sizes: Sequence[Any]) -> list[Any]:
    return [sizes[group[0]] if len(group) == 1 else math.prod(sizes[axis] for axis in group) for group in view]


def _view(data: Sequence[Sequence[int]]) -> View:
    return tuple(tuple(map(int, group)) for group in data)


def _fold_json(fold: Fold | None) -> list[Any] | None:
    return None if fold is None else [fold.kind, fold.eps, fold.axis, fold.dtype]


def _fold(data: Sequence[Any] | None, inputs: Sequence[int | None]) -> Fold | None:
    if data is None:
        return None
    nodes = tuple(None if position is None else str(index) for index, position in enumerate(inputs))
    kind, eps, axis, *dtype = data
    return Fold(kind, nodes, eps, axis, *dtype)
