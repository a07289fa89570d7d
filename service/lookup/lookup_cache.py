"""A cache of what lookups read and what never changes: kernels by their ids, dispatch tables by the digests of their
libraries, search tasks by their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.lookup.cache import Cache
from tuner.library.dispatch_table import ServedTable
from tuner.library.dispatcher import kernel_json, symbol_bounds
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel
from tuner.storage import BuiltLibrary
from tuner.storage.sql import ClientStorage


@dataclass(frozen=True, slots=True)
class ShownKernel:
    """A kernel, and its public form."""

    kernel: MicroKernel
    shown: JsonObject

    @staticmethod
    def of(kernel: MicroKernel) -> ShownKernel:
        return ShownKernel(kernel, kernel_json(kernel))


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A search task, the range of each symbol, and its default kernel."""

    task: SearchTask
    bounds: Mapping[str, tuple[int, int]]
    default: ShownKernel

    @staticmethod
    def of(task: SearchTask) -> KnownTask:
        return KnownTask(task, symbol_bounds(task), ShownKernel.of(default_kernel(task)))


class LookupCache:
    """Values of one database, read where they are missing. Safe to use from several threads."""

    def __init__(self, storage: ClientStorage) -> None:
        self._storage = storage
        self._symbols: Cache[str, frozenset[str]] = Cache(16_384)
        self._tables: Cache[str, ServedTable] = Cache(8192)
        self._tasks: Cache[int, KnownTask] = Cache(4096)
        self._kernels: Cache[str, ShownKernel] = Cache(16_384)

    def symbols(self, workload_keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """The names of each workload's symbols, by its key; workloads that are not known are left out."""

        def load(missing: Sequence[str]) -> Mapping[str, frozenset[str]]:
            forms = self._storage.workload_forms(missing)
            return {key: _symbols_of(form.workload) for key, form in forms.items()}

        return self._symbols.many(workload_keys, load)

    def tasks(self, numbers: Iterable[int]) -> Mapping[int, KnownTask]:
        def load(missing: Sequence[int]) -> Mapping[int, KnownTask]:
            return {number: KnownTask.of(task) for number, task in self._storage.tasks(missing).items()}

        return self._tasks.many(numbers, load)

    def tables(self, libraries: Iterable[BuiltLibrary]) -> Mapping[str, ServedTable]:
        """Dispatch tables by the digests of their libraries."""
        numbers = {library.digest: library.number for library in libraries}

        def load(missing: Sequence[str]) -> Mapping[str, ServedTable]:
            tables = self._storage.dispatch_tables([numbers[digest] for digest in missing])
            return {digest: ServedTable(tables[numbers[digest]]) for digest in missing}

        return self._tables.many(numbers, load)

    def kernels(self, ids: Iterable[str]) -> Mapping[str, ShownKernel]:
        def load(missing: Sequence[str]) -> Mapping[str, ShownKernel]:
            return {name: ShownKernel.of(kernel) for name, kernel in self._storage.kernels(missing).items()}

        return self._kernels.many(ids, load)


def _symbols_of(canonical: JsonObject) -> frozenset[str]:
    """The symbols of a workload in canonical form, where extents are numbers or symbols."""
    return frozenset(size for size in canonical["extents"].values() if isinstance(size, str))
