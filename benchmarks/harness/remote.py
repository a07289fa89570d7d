"""An object in a process of its own, asked over a pipe, which stands still until it is asked: threads that wait for
work take cores, for milliseconds in some pools, and the next contender would be timed beside them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
STOP_S = 10.0


def limit_threads(threads: int) -> None:
    """Limit the threads of libraries that are not loaded yet, as PyTorch and TVM: they read the environment then."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))


class Died(Exception):
    """The process ended, or did not answer in time."""


class Remote:
    def __init__(self, connection: Connection, process: BaseProcess, answer_s: float) -> None:
        self._connection, self._process, self._answer_s = connection, process, answer_s

    def ask(self, method: str, *arguments: Any) -> Any:
        """The method's answer. Raises what it raised, and Died."""
        _send(self._process, signal.SIGCONT)
        try:
            self._connection.send((method, arguments))
            return self.answer()
        except BrokenPipeError:
            raise Died("its process died") from None
        finally:
            _send(self._process, signal.SIGSTOP)

    def answer(self) -> Any:
        if not self._connection.poll(self._answer_s):
            raise Died(f"its process did not answer within {self._answer_s:g} s")
        try:
            answer, error = self._connection.recv()
        except EOFError:
            raise Died("its process died") from None
        if error is not None:
            raise error
        return answer


@contextmanager
def in_own_process(
    make: Callable[..., Any], *arguments: Any, threads: int, answer_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Remote]:  # fmt: skip
    """What ``make`` gives of the arguments, made in a process whose libraries have so many threads. Raises what it
    raises, and Died."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, environment or {}, threads, make, arguments), daemon=True)
    process.start()
    # Held by that process alone: its end is the end of the connection.
    theirs.close()
    try:
        remote = Remote(ours, process, answer_s)
        remote.answer()
        yield remote
    finally:
        ours.close()
        _send(process, signal.SIGCONT)
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def _send(process: BaseProcess, number: signal.Signals) -> None:
    # While nobody has asked whether it is alive, the number of a child that ended is nobody else's.
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)


def _serve(
    connection: Connection, environment: Mapping[str, str], threads: int, make: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:  # fmt: skip
    os.environ.update(environment)
    limit_threads(threads)
    made, error = _outcome(make, *arguments)
    with suppress(EOFError, BrokenPipeError):
        connection.send((None, error))
        while True:
            method, given = connection.recv()
            connection.send(_outcome(getattr(made, method), *given))


def _outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """What a call gives, or its error: the text of one that does not survive a pipe, as those of compilers."""
    try:
        return call(*arguments), None
    except Exception as error:
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return None, error
        return None, RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
