"""Constants packed once, and again when they have changed.

A packed form belongs to one library, one constant of it, and one tensor: the storage, the place in it, and the strides.
It holds as long as the tensor's version is the one that was packed: every in-place operation of PyTorch counts the
version up, ``load_state_dict`` included. A tensor put in place of another (``.data = ...``) has another storage. An
optimizer need not count (those with ``fused=True`` do not): after each step what was made of its parameters is dropped.

Not seen is what else changes memory behind PyTorch's back: ``weight.data.copy_(...)`` and ``weight.data.lerp_(...)``,
whose version is not the weight's; a tensor that the weight was cut from by ``.data =``; NumPy and DLPack; another
process. ``forget`` drops what was packed. With SHAPEWRIGHT_CHECK_WEIGHTS=1 every call compares a checksum.
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
import weakref
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from shapewright.torch.memory import MEMORY

CHECK = "SHAPEWRIGHT_CHECK_WEIGHTS"
UNSEEN = (
    "shapewright: a constant of a model was changed where PyTorch does not count it, and was packed again since "
    f"{CHECK} is set. Call sw.torch.forget() after such a change"
)


# -- who relies on what was made -------------------------------------------------------------------------------------
class Told(Protocol):
    """Relies on what ``Packs`` gave, as long as ``changes()`` is the same, and is told to let it go."""

    def forget(self) -> None: ...


class Made(Protocol):
    """Holds what was made of constants, and drops it, or makes it anew, of those in some storages or of all."""

    def forget(self, storages: Collection[int] | None = None) -> None: ...

    def __len__(self) -> int: ...


def changes() -> int:
    """Another number whenever something was made or dropped."""
    return _now


def tell_changes(told: Told) -> None:
    _told.add(told)


def tell_forgotten(made: Made) -> None:
    """Have ``forget`` reach what was made, as long as somebody keeps it."""
    _all.add(made)


def checks_values() -> bool:
    """Whether every call compares a checksum."""
    return os.environ.get(CHECK, "") not in ("", "0")


_numbers = itertools.count(1)
_now = 0
_told: weakref.WeakSet[Told] = weakref.WeakSet()


def note_change() -> None:
    """Something was made or dropped."""
    global _now  # noqa: PLW0603 - one number for all
    # Of two threads that come here at once either number is a new one.
    _now = next(_numbers)
    for each in list(_told):
        each.forget()


# -- constants --------------------------------------------------------------------------------------------------------
class _Held:
    """A tensor as it was when something was made of it."""

    __slots__ = ("cdata", "pointer", "shape", "storage", "stride", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # A weak reference keeps the address of a storage from being used for another one.
        self.storage, self.cdata = StorageWeakRef(storage), storage._cdata
        self.pointer, self.stride, self.shape = tensor.data_ptr(), tensor.stride(), tensor.shape
        self.version = tensor._version

    def holds_for(self, tensor: torch.Tensor) -> bool:
        """Raises RuntimeError for a tensor of inference mode, which has no version."""
        return (  # type: ignore[no-any-return]
            tensor._version == self.version
            and tensor.data_ptr() == self.pointer
            and tensor.untyped_storage()._cdata == self.cdata
            and tensor.stride() == self.stride
            and tensor.shape == self.shape
        )


class _Entry:
    """What was made of some tensors."""

    __slots__ = ("first", "made", "others")

    def __init__(self, tensors: Sequence[torch.Tensor], made: Any) -> None:
        self.first, *self.others = map(_Held, tensors)
        self.made = made

    def holds_for(self, tensors: Sequence[torch.Tensor]) -> bool:
        first, *others = tensors
        return self.first.holds_for(first) and all(
            held.holds_for(other) for held, other in zip(self.others, others, strict=True)
        )

    def is_of(self, storages: Collection[int]) -> bool:
        """Whether one of its tensors lies in one of these storages, which are alive."""
        return any(held.cdata in storages for held in (self.first, *self.others))

    @property
    def is_dead(self) -> bool:
        return any(held.storage.expired() for held in (self.first, *self.others))


class Packs:
    """What ``make`` gives of one or several constant tensors, made once for their present values.

    Safe to use from several threads. Tensors of inference mode have no versions: nothing is kept of them.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.Lock()
        if checks_values():
            self._check()
        tell_forgotten(self)

    def of(self, *tensors: torch.Tensor) -> Any:
        entry = self._entries.get(tensors[0].data_ptr())
        if entry is not None and self._holds(entry, tensors):
            return entry.made
        return self._made(tensors)

    def of_one(self, tensor: torch.Tensor) -> Any:
        """``of`` for a single tensor: every call of a library comes here."""
        entry = self._entries.get(pointer := tensor.data_ptr())
        try:
            # As ``_Held.holds_for``, without a call: this is much of what a call of a library costs.
            if (
                entry is not None
                and tensor._version == (held := entry.first).version
                and pointer == held.pointer
                and tensor.untyped_storage()._cdata == held.cdata
                and tensor.stride() == held.stride
                and tensor.shape == held.shape
            ):
                return entry.made
        except RuntimeError:
            pass
        return self._made((tensor,))

    @staticmethod
    def _holds(entry: _Entry, tensors: Sequence[torch.Tensor]) -> bool:
        try:
            return entry.holds_for(tensors)
        except RuntimeError:
            return False

    def _made(self, tensors: Sequence[torch.Tensor]) -> Any:
        if any(tensor.is_inference() for tensor in tensors):
            return self._make(*tensors)
        with self._lock:
            entry = self._entries.get(tensors[0].data_ptr())
            if entry is None or not self._holds(entry, tensors):
                entry = _Entry(tensors, self._make(*tensors))
                alive = {pointer: other for pointer, other in self._entries.items() if not other.is_dead}
                self._entries = {**alive, tensors[0].data_ptr(): entry}
                note_change()
            return entry.made

    def _check(self) -> None:
        """Compare the values of the tensors, at every call."""
        sums: dict[int, int] = {}

        def of(*tensors: torch.Tensor) -> Any:
            now, first = _checksum(tensors), tensors[0].data_ptr()
            entry = self._entries.get(first)
            if entry is not None and self._holds(entry, tensors) and sums.get(first) != now:
                warnings.warn(UNSEEN, stacklevel=2)
                self.forget()
            sums[first] = now
            return self._made(tensors)

        self.of = of  # type: ignore[method-assign]
        self.of_one = of  # type: ignore[method-assign,assignment]

    def forget(self, storages: Collection[int] | None = None) -> None:
        """All of it, or what was made of tensors in these storages."""
        with self._lock:
            entries = self._entries if storages is not None else {}
            self._entries = {pointer: each for pointer, each in entries.items() if not each.is_of(storages or ())}
        note_change()

    def __len__(self) -> int:
        return len(self._entries)


def _checksum(tensors: Sequence[torch.Tensor]) -> int:
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy(), total)
    return total


def forget(tensors: Sequence[torch.Tensor] | None = None) -> None:
    """Drop every packed constant, or those made of ``tensors``: the next call of each library packs anew. For weights
    that were changed where PyTorch does not see it, as through ``weight.data``, NumPy or another process. Without
    ``tensors`` the memory that calls use again is freed, too."""
    if tensors is None:
        MEMORY.release()
    storages = None if tensors is None else {each.untyped_storage()._cdata for each in tensors if _has_storage(each)}
    for made in list(_all):
        made.forget(storages)


def _has_storage(tensor: torch.Tensor) -> bool:
    return (tensor.is_cpu or tensor.is_cuda) and tensor.layout is torch.strided and not tensor.is_nested


@torch._disable_dynamo  # type: ignore[untyped-decorator]
def _forget_stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if any(map(len, _all)):
        forget([each for group in optimizer.param_groups for each in group["params"]])


_all: weakref.WeakSet[Made] = weakref.WeakSet()
register_optimizer_step_post_hook(_forget_stepped)
