"""Where the time of a model goes: in tuned kernels, in what PyTorch does between them, and in neither.

The whole is timed by itself, as it runs. The parts are timed in further calls: kernels where a library or a chain is
called, PyTorch's own where Python calls a function of C that computes (an operator, or a kernel of Inductor). What is
left is overhead: guards, allocation, arguments, Python.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch

from shapewright.torch.chain_op import chains_so_far
from shapewright.torch.op import calls_so_far
from shapewright.torch.plan import Call

OWN = str(Path(__file__).parent)
SPACES = frozenset({"_fft", "_linalg", "_nn", "_special"})
"""Modules of ``torch._C`` whose functions are operators, beside those of ``torch`` itself and methods of tensors."""
DISPATCHER = torch._ops.__file__
INDUCTORS = "kernel"
"""The function of C of each module that Inductor compiles."""
SHARE = 0.1
"""Which of the sorted readings counts: others of this machine can only lengthen them."""
T = TypeVar("T")
WARM_CALLS, LEAST_CALLS, MOST_CALLS = 3, 3, 1000


@dataclass(frozen=True, slots=True)
class Part:
    """Something that takes time. ``calls``, and ``seconds`` in all, of one call of the model."""

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of one call of a model where little disturbs it: the tenth percentile of many. ``kernels`` are named by
    their workloads."""

    seconds: float
    kernels: tuple[Part, ...]
    between: tuple[Part, ...]

    @property
    def overhead(self) -> float:
        """What neither kernels nor PyTorch's own take; not below 0, where timing the parts slows them."""
        return max(0.0, self.seconds - sum(each.seconds for each in (*self.kernels, *self.between)))

    def to_json(self) -> dict[str, Any]:
        """``{"seconds": s, "kernels": [{"name", "calls", "seconds"}], "between": [...], "overhead": s}``"""
        named = {
            name: [{"name": each.name, "calls": each.calls, "seconds": each.seconds} for each in parts]
            for name, parts in (("kernels", self.kernels), ("between", self.between))
        }
        return {"seconds": self.seconds, **named, "overhead": self.overhead}

    def __str__(self) -> str:
        def line(name: str, seconds: float, calls: str = "") -> str:
            share = seconds / self.seconds if self.seconds else 0.0
            return f"{1e6 * seconds:>10.1f} us {share:>6.1%} {calls:>8}  {name}"

        lines = [line("a call of the model", self.seconds)]
        for title, parts in (("tuned kernels", self.kernels), ("PyTorch between", self.between)):
            lines.append(line(title, sum(each.seconds for each in parts)))
            lines += [line(f"  {each.name}", each.seconds, f"{each.calls:g} x") for each in parts]
        return "\n".join([*lines, line("overhead", self.overhead)])


def profiled(call: Callable[[], object], seconds: float) -> Profile:
    """The profile of ``call``, which takes about so many seconds and some calls to warm up, in this thread."""
    with torch.no_grad():
        for _ in range(WARM_CALLS):
            call()
        whole = _repeated(lambda: _seconds_of(call), seconds / 2)
        watching = _Watching()
        with watching.everything():
            rounds = _repeated(lambda: watching.of(call), seconds / 2)
    return Profile(
        _low(whole),
        _parts([kernels for kernels, _ in rounds]),
        _parts([between for _, between in rounds]),
    )


def _seconds_of(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def _repeated(sample: Callable[[], T], seconds: float) -> list[T]:
    until, found = time.perf_counter() + seconds, list[T]()
    while len(found) < LEAST_CALLS or (time.perf_counter() < until and len(found) < MOST_CALLS):
        found.append(sample())
    return found


def _low(readings: Iterable[float]) -> float:
    ordered = sorted(readings)
    return ordered[int(SHARE * (len(ordered) - 1))]


def _parts(rounds: list[Mapping[str, tuple[int, float]]]) -> tuple[Part, ...]:
    """The parts over the rounds, the longest first."""
    names = dict.fromkeys(name for each in rounds for name in each)
    parts = [
        Part(
            name,
            statistics.median(each.get(name, (0, 0.0))[0] for each in rounds),
            _low(each.get(name, (0, 0.0))[1] for each in rounds),
        )
        for name in names
    ]
    return tuple(sorted((each for each in parts if each.calls), key=lambda each: -each.seconds))


class _Watching:
    """Adds up what calls take, by name."""

    def __init__(self) -> None:
        self._kernels: dict[str, tuple[int, float]] = {}
        self._between: dict[str, tuple[int, float]] = {}
        self._open: list[tuple[str, float]] = []
        """Functions of C that Python is in: what they compute ("" if nothing that counts), and since when."""
        self._inside = 0.0
        """What kernels took within the outermost one of them."""

    def of(self, call: Callable[[], object]) -> tuple[Mapping[str, tuple[int, float]], Mapping[str, tuple[int, float]]]:
        self._kernels, self._between, self._open = {}, {}, []
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            call()
        finally:
            sys.setprofile(before)
        return self._kernels, self._between

    @contextmanager
    def everything(self) -> Iterator[None]:
        """All calls of libraries are timed meanwhile."""
        calls, chains = calls_so_far(), chains_so_far()
        try:
            for each in calls:
                each.watch(self._timed)
            for chain in chains:
                names = [str(step.workload) for step in chain.calls]
                chain.watch = lambda step, seconds, names=names: self._kernel(names[step], seconds)
            yield
        finally:
            for each in calls:
                each.watch(None)
            for chain in chains:
                chain.watch = None

    def _timed(self, call: Call, run: Callable[[], None]) -> None:
        before = time.perf_counter()
        run()
        self._kernel(str(call.workload), time.perf_counter() - before)

    def _kernel(self, name: str, seconds: float) -> None:
        count, total = self._kernels.get(name, (0, 0.0))
        self._kernels[name] = count + 1, total + seconds
        self._inside += seconds

    def _event(self, frame: Any, event: str, function: Any) -> None:
        """Of ``sys.setprofile``."""
        if event == "c_call":
            name = "" if self._open else _computes(frame, function)
            self._open.append((name, time.perf_counter()))
            if len(self._open) == 1:
                self._inside = 0.0
        elif event in ("c_return", "c_exception") and self._open:
            name, since = self._open.pop()
            # An operator that calls libraries is theirs.
            if name and not self._inside:
                count, total = self._between.get(name, (0, 0.0))
                self._between[name] = count + 1, total + time.perf_counter() - since


def _computes(frame: Any, function: Any) -> str:
    """The name of what a function of C computes for PyTorch; empty if it is nothing that counts."""
    file, name, of = frame.f_code.co_filename, str(function.__name__), getattr(function, "__self__", None)
    if file.startswith(OWN):
        return ""
    if file == DISPATCHER:
        # The function has no name; the operator that calls it does.
        return str(frame.f_locals.get("self", name))
    if isinstance(of, torch.Tensor) or getattr(torch, name, None) is function:
        return name
    if not isinstance(of, ModuleType):
        return ""
    if name == INDUCTORS and getattr(of, "__file__", None):
        return f"Inductor's {Path(str(of.__file__)).parent.name}"
    return name if of.__name__.rpartition(".")[2] in SPACES and of.__name__.startswith("torch._C.") else ""
