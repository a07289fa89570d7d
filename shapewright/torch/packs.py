"""Constants packed once, and again when they have changed.

A packed form belongs to one library, one constant of it, and one tensor: the storage, the place in it, and the strides.
It holds as long as the tensor's version is the one that was packed: every in-place operation of PyTorch counts the
version up, `load_state_dict` and optimizers included. A tensor put in place of another (``.data = ...``) has another
storage. What changes memory behind PyTorch's back is not seen: through ``weight.data.copy_(...)``, whose version is not
the weight's, or through NumPy. ``forget`` drops what was packed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


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
        _all.add(self)

    def of(self, *tensors: torch.Tensor) -> Any:
        entry = self._entries.get(tensors[0].data_ptr())
        if entry is not None and self._holds(entry, tensors):
            return entry.made
        return self._made(tensors)

    def of_one(self, tensor: torch.Tensor) -> Any:
        """The same for a single tensor: every call of a library comes here."""
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
            return entry.made

    def forget(self) -> None:
        with self._lock:
            self._entries = {}

    def __len__(self) -> int:
        return len(self._entries)


def forget() -> None:
    """Drop every packed constant: the next call of each library packs anew. For weights that were changed where
    PyTorch does not see it, as through ``weight.data`` or NumPy."""
    for packs in list(_all):
        packs.forget()


_all: weakref.WeakSet[Packs] = weakref.WeakSet()
