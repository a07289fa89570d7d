"""The runner of a bundle, on the machine with the GPU. It imports NumPy alone, and modules that do.

Candidates run in a process of their own, one after the other, those of all search tasks by turns: what there is no
time for is missing everywhere alike. What one answers is on the disk before the next begins, where a later run goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import multiprocessing
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tuner.bundle.form import BUNDLE, RESULTS, Entry, read_bundle
from tuner.bundle.results import Results
from tuner.bundle.session import Work, serve
from tuner.errors import GpuFailed, ShapewrightError
from tuner.measure.gpu.facts import GpuFacts, hold_gpu
from tuner.measure.gpu.facts import ask as facts_of_gpu
from tuner.measure.limits import RUN_TIMEOUT_S, run_limit_s
from tuner.measure.sandbox.confinement import PR_SET_PDEATHSIG
from tuner.measure.verification.verify import cases
from tuner.program.language.arrays import NUMPY
from tuner.records import ErrorKind

# Layouts import it as they pack: a bundle holds what its runner imports.
from tuner.schedule import matrices  # noqa: F401

OPEN_S = 120.0
"""How long a driver may take to begin with an entry."""
END_S = 10.0
JsonObject = dict[str, Any]


class Session:
    """A process of candidates; ``is_over``: it can do no more. Raises GpuFailed where the GPU is at fault."""

    def __init__(self, work: Work) -> None:
        # Forked: what candidates are verified with is there. This process never opens the driver.
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(work, theirs, self._connection), daemon=True)
        self._process.start()
        theirs.close()
        self.is_over = False

    def open(self, entry: int) -> None:
        answer, problem = self._ask((entry, None), OPEN_S)
        if problem or answer is not None:
            self.is_over = True
            raise GpuFailed(answer or problem)

    def trial(self, entry: int, candidate: int, limit_s: float, instances: int) -> list[JsonObject]:
        """What it answers at each instance, or what has become of it."""
        began_s = time.monotonic()
        answer, problem = self._ask((entry, candidate), limit_s)
        if not problem:
            answers, self.is_over = answer
            # What a GPU has no memory for may be what earlier candidates hold.
            self.is_over = self.is_over or any(each.get("error_kind") == ErrorKind.MACHINE for each in answers)
            return list(answers)
        self.is_over = True
        is_late = time.monotonic() - began_s >= limit_s
        kind = ErrorKind.RUN_TIMEOUT if is_late else ErrorKind.CRASH
        return [{"error_kind": kind.value, "error": problem}] * instances

    def _ask(self, request: object, limit_s: float) -> tuple[Any, str]:
        try:
            self._connection.send(request)
            if self._connection.poll(limit_s):
                return self._connection.recv(), ""
        except (EOFError, OSError):
            self._process.join(END_S)
            return None, f"its process died of it: exit code {self._process.exitcode}"
        return None, f"not done after {limit_s:.3g} s"

    def close(self) -> None:
        self._process.kill()
        self._process.join(END_S)
        self._connection.close()


def _serve(work: Work, own: Connection, others: Connection) -> None:
    # It ends with the runner, however that ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    others.close()
    serve(work, own)


@dataclass
class Run:
    """A run of a bundle on one GPU; ``timeout_s``: see ``run_limit_s``."""

    folder: Path
    out: Path
    number: int
    seconds: float = inf
    timeout_s: float = RUN_TIMEOUT_S
    entries: Sequence[Entry] = field(init=False)
    began_s: float = field(default_factory=time.monotonic)

    def measure(self) -> bool:
        """Measure what is not known yet, while there is time; whether all is known then. Raises ShapewrightError."""
        bundle = read_bundle(self.folder)
        self.entries = bundle.entries
        facts = facts_of_gpu(self.number)
        every = self._order(facts)
        hold_gpu(facts)
        with Results(self.out, facts, f"{socket.gethostname()}:gpu{self.number}", bundle.digest) as results:
            todo = [each for each in every if each not in results.done]
            print(f"{facts.name} ({facts.arch}), {self._states()}: {len(todo)} candidates to measure, "
                  f"{len(results.done)} are known; results in {results.path}", flush=True)  # fmt: skip
            left = self._all(facts, results, todo) if todo else 0
        print(f"{results.told()}; {left} left" if left else f"{results.told()}; all is done", flush=True)
        return not left

    def _states(self) -> str:
        return "caches " + " and ".join(sorted({each.task.cache.value for each in self.entries}))

    def _order(self, facts: GpuFacts) -> list[tuple[int, int]]:
        """(entry, candidate): the first of each entry for this GPU, then the second of each."""
        archs = {each.task.known_target.mcpu for each in self.entries}
        if facts.arch not in archs:
            has = f"{self.folder} has code for {', '.join(sorted(archs))}"
            raise GpuFailed(f"{facts.name} is {facts.arch}, {has}: make a bundle with --arch {facts.arch}")
        pairs = [
            (place, number)
            for place, each in enumerate(self.entries) if each.task.known_target.mcpu == facts.arch and _is_known(each)
            for number in range(len(each.candidates))
        ]  # fmt: skip
        return sorted(pairs, key=lambda pair: pair[::-1])

    def _all(self, facts: GpuFacts, results: Results, todo: list[tuple[int, int]]) -> int:
        """How many are left."""
        gpu = facts.target.gpu
        assert gpu is not None
        known = {entry: cases(self.entries[entry].task.workload) for entry in dict.fromkeys(entry for entry, _ in todo)}
        with tempfile.TemporaryDirectory(prefix="shapewright-bundle-") as scratch:
            work = Work(self.folder, self.entries, known, self.number, gpu, Path(scratch))
            for done, answers in enumerate(self._trials(work, todo)):
                results.add(*todo[done], *answers)
                if time.monotonic() - self.began_s > self.seconds:
                    return len(todo) - done - 1
        return 0

    def _trials(self, work: Work, todo: list[tuple[int, int]]) -> Iterator[tuple[list[JsonObject], float]]:
        session: Session | None = None
        try:
            for entry, candidate in todo:
                if session is None or session.is_over:
                    if session is not None:
                        session.close()
                    session = Session(work)
                task, began_s = self.entries[entry].task, time.monotonic()
                session.open(entry)
                limit_s = run_limit_s(task, task.instances, self.timeout_s)
                yield session.trial(entry, candidate, limit_s, len(task.instances)), time.monotonic() - began_s
        finally:
            if session is not None:
                session.close()


def _is_known(entry: Entry) -> bool:
    """Whether NumPy has its dtypes here; says so where not."""
    missing = {each.dtype for each in entry.task.workload.tensors.values()} - set(NUMPY)
    if missing:
        print(
            f"left out: {entry.task.workload}: {', '.join(missing)} needs ml_dtypes (pip install ml_dtypes)", flush=True
        )
    return not missing


def parser_of(folder: Path) -> argparse.ArgumentParser:
    """The runner's command line."""
    parser = argparse.ArgumentParser(
        description="Measures the kernels of this bundle on a GPU of this machine. A run that was interrupted goes on.",
    )
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="as the driver counts them; 0 if left out")
    parser.add_argument("--seconds", type=float, default=inf, metavar="S", help="of all; no limit if left out")
    parser.add_argument("--out", type=Path, default=folder / RESULTS, metavar="DIR", help=f"{RESULTS}/ if left out")
    return parser


def main(folder: Path) -> None:
    options = parser_of(folder).parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        Run(folder, options.out, options.gpu, options.seconds).measure()
    except ShapewrightError as error:
        sys.exit(f"{BUNDLE}: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
