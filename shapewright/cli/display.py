"""Live progress of a job on stderr: a panel that redraws itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from shapewright.cli.outcomes import OUTCOME_COLUMNS, outcome_rows
from shapewright.cli.output import table
from tuner.durations import format_duration
from tuner.errors import clean
from tuner.search.outcome import Outcome, total_of
from tuner.search.summary import PAST_SEARCH, SearchSummary

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"
PLAIN_EVERY_S = 2.0
"""Plain lines come at most this often, so that a log stays readable."""
MAX_ROWS = 12
"""Workloads that the panel shows, beside their total."""


@dataclass
class TaskView:
    """The figures of one search task of the job, and its speed-up over the default as it grew.

    ``count``: how often the model holds the workload.
    """

    workload: str = ""
    count: int = 1
    summary: SearchSummary | None = None
    speedups: list[float] = field(default_factory=list)

    def apply(self, data: Mapping[str, Any]) -> None:
        self.summary = SearchSummary.from_json(data)
        if (speedup := self.summary.outcome.speedup_vs_default) is not None:
            self.speedups.append(speedup)


@dataclass
class JobView:
    """The state of a job after a stream of its events."""

    job_id: str
    name: str = ""
    state: str = "WAITING"
    error: str = ""
    tasks: dict[int, TaskView] = field(default_factory=dict)
    current: int = 0
    libraries: int = 0
    message: str = ""

    @staticmethod
    def of(job: Mapping[str, Any]) -> JobView:
        """The view of a job as the service returns it, before its events."""
        tasks = {task["position"]: TaskView(task["workload"], task["count"]) for task in job.get("tasks", ())}
        return JobView(job["id"], job["name"], job["state"], tasks=tasks)

    def apply(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take one event in. Kinds that this version does not know change nothing."""
        if kind == "state":
            self.state = str(data.get("state", self.state))
            self.error = str(data.get("error") or "")
            # What was said before the job was taken up again is no news any more.
            self.message = "" if self.state in ("WAITING", "RUNNING") else self.message
        elif kind == "progress":
            self.current = int(data.get("position") or 0)
            self.tasks.setdefault(self.current, TaskView()).apply(data)
        elif kind == "library":
            self.libraries += 1
            self.message = f"library {str(data.get('digest', ''))[:12]}"
        elif kind == "log":
            self.message = str(data.get("message", ""))

    @property
    def task(self) -> TaskView:
        return self.tasks.get(self.current) or TaskView()

    @property
    def summary(self) -> SearchSummary:
        """The figures of the task that is searched."""
        return self.task.summary or SearchSummary()

    @property
    def begun(self) -> bool:
        return any(task.summary for task in self.tasks.values())

    @property
    def outcome(self) -> Outcome:
        """What the searches that have begun came to together."""
        return total_of([(task.count, task.summary.outcome) for task in self.tasks.values() if task.summary])

    @property
    def left_s(self) -> float | None:
        """Seconds until the search ends; None once it has: what comes then takes no share of the budget."""
        searching = self.state == "RUNNING" and self.summary.phase not in PAST_SEARCH
        return self.summary.remaining_s if searching else None

    def line(self, told: str = "") -> str:
        """``RUNNING searching  32/256 trials  1.42x over the default (best so far in the search)  2 min 10 s left``

        A message that was ``told`` before is left out.
        """
        parts = [self.state + (f" {self.summary.activity}" if self.begun and self.state == "RUNNING" else "")]
        if self.current:
            parts.append(f"search task {self.current + 1}")
        if self.begun:
            parts.append(trials_text(self.summary))
            parts.append(str(self.task.summary.outcome if self.task.summary else ""))
        if self.left_s is not None:
            parts.append(f"{format_duration(self.left_s, whole=True)} left")
        message = self.message if self.message != told else ""
        return "  ".join(text for text in (*parts, self.error, message) if text)

    def rows(self) -> list[tuple[str, ...]]:
        """A line of OUTCOME_COLUMNS for each of several workloads, and one for their total."""
        if len(self.tasks) < 2:
            return []
        parts = [(task.workload, task.count, task.summary) for _, task in sorted(self.tasks.items())]
        return outcome_rows(parts)


def trials_text(summary: SearchSummary) -> str:
    budget = f"/{summary.trials_budget}" if summary.trials_budget is not None else ""
    failed = f" ({summary.failed} failed)" if summary.failed else ""
    return f"{summary.trials}{budget} trials{failed}" + (f", {summary.ending}" if summary.ending else "")


def sparkline(values: list[float], width: int = 32) -> str:
    """The last ``width`` values as bars, from the least to the greatest of them."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)


class Display(Protocol):
    """Shows a job while its events arrive. Used as a context manager; ``show`` after each event."""

    def show(self, view: JobView) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainDisplay:
    """One line for each change of state or phase, and in between one every few seconds if it says something new.

    A message stands on one line alone.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown: tuple[object, ...] = ()
        self._last_s = float("-inf")
        self._line = ""
        self._told = ""

    def show(self, view: JobView) -> None:
        what = (view.state, view.current, view.summary.phase, view.libraries, view.message)
        line = view.line()
        if line != self._line and (what != self._shown or self._clock() - self._last_s >= PLAIN_EVERY_S):
            with suppress(OSError):
                text = clean(f"{view.job_id}  {view.line(self._told)}").replace("\n", " ")
                print(text, file=self._stream, flush=True)
            self._shown, self._last_s, self._line, self._told = what, self._clock(), line, view.message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveDisplay:
    """A panel on a terminal: state, a bar of the budget, the speed-up over the default as it grew."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (rich takes a while to import, and only this needs it)
        from rich.live import Live  # noqa: PLC0415

        self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=False)

    def show(self, view: JobView) -> None:
        self._live.update(panel(view))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)


def panel(view: JobView) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.panel import Panel  # noqa: PLC0415
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = Table.grid(padding=(0, 2))
    rows.add_row("state", _state(view))
    if view.state == "RUNNING" and view.summary.steps:
        rows.add_row("", ProgressBar(total=view.summary.steps, completed=view.summary.step or 0, width=32))
    rows.add_row("trials", Text(trials_text(view.summary)))
    if (share := view.summary.budget_share) is not None:
        rows.add_row("budget", ProgressBar(total=1.0, completed=share, width=32))
    if view.left_s is not None:
        rows.add_row("time left", Text(format_duration(view.left_s, whole=True)))
    if (coverage := view.summary.interval_coverage) is not None:
        rows.add_row("cost model", Text(f"{100 * coverage:.0f} % of times within its 80 % intervals"))
    if view.task.speedups:
        rows.add_row("speed-up", Text(f"{view.summary.outcome}  {sparkline(view.task.speedups)}"))
    for text in filter(None, (view.error, view.message)):
        rows.add_row("", Text(clean(text)))
    title = clean(view.name or view.job_id).replace("\n", " ")
    place = f", search task {view.current + 1}" if view.current else ""
    shown = Group(rows, *(Text(line, no_wrap=True) for line in _lines(view)))
    return Panel(shown, title=Text(title + place), title_align="left", expand=False)


def _state(view: JobView) -> RenderableType:
    """While it runs, what it is doing, beside something that moves: some parts report nothing for seconds."""
    from rich.spinner import Spinner  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if view.state != "RUNNING":
        return Text(clean(view.state))
    return Spinner("dots", Text(f"{view.state} ({view.summary.activity})"))


def _lines(view: JobView) -> list[str]:
    """The table of several workloads; of very many the first, and the total."""
    rows = view.rows()
    return table(OUTCOME_COLUMNS, [*rows[: min(MAX_ROWS, len(rows) - 1)], rows[-1]]).splitlines() if rows else []


def display_for(stream: TextIO | None = None) -> Display:
    """A live panel where stderr is a terminal, plain lines where it is not."""
    stream = stream or sys.stderr
    return LiveDisplay() if stream.isatty() else PlainDisplay(stream)
