"""A Builder that builds each kernel once, and may do so ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure._base import Builder, BuildResult
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel


class KeptBuilds:
    """The builds of one search task by ``builder``, kept for whoever measures a kernel again. One that the machine
    failed over is not: it is made again when it is asked for.

    ``beside``: how many kernels may be built at once while something is measured; 0: none are built ahead of time. All
    calls of the builder come from one thread. Close it before the builder.
    """

    def __init__(self, task: SearchTask, builder: Builder, beside: int = 0) -> None:
        self._task, self._builder, self.beside = task, builder, beside
        self._builds: dict[MicroKernel, BuildResult] = {}
        self._coming: dict[MicroKernel, Future[list[BuildResult]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="builds")

    def build(self, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        """One result for each kernel, in order. Raises what the builder raises."""
        self._start([kernel for kernel in kernels if self._is_new(kernel)], len(kernels))
        for kernel in kernels:
            if kernel in self._coming:
                self._builds |= {build.kernel: build for build in self._coming.pop(kernel).result()}
        results = [self._builds[kernel] for kernel in kernels]
        for kernel in {each.kernel for each in results if each.error_kind is ErrorKind.MACHINE}:
            del self._builds[kernel]
        return results

    def library(self, dispatcher: Dispatcher, job_id: str | None) -> LibraryFiles:
        """A library by the builder, of what it built, once that is idle. Raises what the builder raises."""
        objects = {kernel: self._builds[kernel].code for kernel in dispatcher.kernels if self.is_linkable(kernel)}
        return self._thread.submit(self._builder.library, dispatcher, job_id, objects).result()

    def has(self, kernel: MicroKernel) -> bool:
        """Whether it was built, or could not be."""
        return kernel in self._builds

    def is_linkable(self, kernel: MicroKernel) -> bool:
        """Whether a library needs no compiler for it."""
        return kernel in self._builds and bool(self._builds[kernel].code)

    def start(self, kernels: Sequence[MicroKernel]) -> None:
        """Begin to build these, which ``build`` will be called with next."""
        if self.beside:
            self._start([kernel for kernel in kernels if self._is_new(kernel)], self.beside)

    def drop(self) -> None:
        """Forget what was started and is not begun: nobody needs it any more."""
        self._coming = {kernel: build for kernel, build in self._coming.items() if not build.cancel()}

    def close(self) -> None:
        """Wait for what is being built; what was not begun is not."""
        self._thread.shutdown(cancel_futures=True)

    def _is_new(self, kernel: MicroKernel) -> bool:
        return kernel not in self._builds and kernel not in self._coming

    def _start(self, kernels: Sequence[MicroKernel], at_once: int) -> None:
        for first in range(0, len(kernels), at_once or 1):
            some = kernels[first : first + at_once]
            self._coming |= dict.fromkeys(some, self._thread.submit(self._builder.build, self._task, some))
