"""An object in a process of its own, which stands still until it is asked: threads that wait for work take cores, for
milliseconds in some pools, and the next contender would be timed beside them."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
_made = list[Any]()
"""The object, in its process."""


def limit_threads(threads: int) -> None:
    """Limit the threads of libraries that are not loaded yet, as PyTorch and TVM: they read the environment then."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))


class Died(Exception):
    """The process ended, or did not answer in time."""


@dataclass(frozen=True)
class Remote:
    pool: ProcessPoolExecutor
    process: int
    answer_s: float

    def ask(self, method: str, *arguments: Any) -> Any:
        """The method's answer. Raises what it raised, and Died."""
        return self.run(_ask, method, *arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of a function in that process, which then stands still."""
        self.send(signal.SIGCONT)
        try:
            return _result(self.pool.submit(function, *arguments), self.answer_s)
        finally:
            self.send(signal.SIGSTOP)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, number)


@contextmanager
def in_own_process(
    make: Callable[..., Any], *arguments: Any, threads: int, answer_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Remote]:  # fmt: skip
    """What ``make`` gives of the arguments, made in a process whose libraries have so many threads. Raises what it
    raises, and Died."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        # Before ``make`` is sent, whose module may load the libraries.
        process = _result(pool.submit(_begin, dict(environment or {}), threads), answer_s)
        remote = Remote(pool, process, answer_s)
        try:
            remote.run(_make, make, *arguments)
            yield remote
        finally:
            remote.send(signal.SIGKILL)


def _result(future: Future[Any], answer_s: float) -> Any:
    """Raises what the call raised, and Died."""
    try:
        return future.result(answer_s)
    except TimeoutError:
        raise Died(f"its process did not answer within {answer_s:g} s") from None
    except BrokenProcessPool:
        raise Died("its process died") from None


def _begin(environment: Mapping[str, str], threads: int) -> int:
    # All contenders have the same cores: those of a virtual machine may have neighbours that take half of their speed.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ.update(environment)
    limit_threads(threads)
    return os.getpid()


def _make(make: Callable[..., Any], *arguments: Any) -> None:
    _made.append(_answer(lambda: make(*arguments)))


def _ask(method: str, *arguments: Any) -> Any:
    return _answer(lambda: getattr(_made[0], method)(*arguments))


def _answer(call: Callable[[], Any]) -> Any:
    """What a call gives. Raises its error, or its text where that does not survive a pipe, as those of compilers."""
    try:
        return call()
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}") from None
        raise
