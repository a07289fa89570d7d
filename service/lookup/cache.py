"""Values that never change under their key, kept while they are in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The ``size`` values that were used last. Safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def many(self, keys: Iterable[K], load: Callable[[Sequence[K]], Mapping[K, V]]) -> dict[K, V]:
        """The values of all keys; ``load`` is called once, with those that are not kept, if there are any.

        A key that ``load`` does not know is left out, and asked for again the next time.
        """
        wanted = dict.fromkeys(keys)
        with self._lock:
            result = {key: self._kept[key] for key in wanted if key in self._kept}
            for key in result:
                self._kept.move_to_end(key)
        missing = [key for key in wanted if key not in result]
        if missing:
            loaded = load(missing)
            result |= loaded
            with self._lock:
                self._kept.update(loaded)
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        return result
