"""A search shown in a notebook while it runs, and its result."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tuner.durations import format_duration
from tuner.program.language.workload import JsonObject
from tuner.search.summary import PAST_SEARCH, SearchSummary

LINE_EVERY_S = 2.0
"""Outside of a notebook a line is printed at most this often, and at each change of phase."""
Rows = Sequence[tuple[str, str]]


class Progress:
    """A callback of ``sw.tune``: a table that changes in its place in a notebook, lines on stderr everywhere else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._summary: SearchSummary | None = None
        self._handle: Any = None
        self._shown, self._shown_s = "", float("-inf")

    def __call__(self, data: JsonObject) -> None:
        """Take in the data of a progress event, and show it."""
        self._summary = SearchSummary.from_json(data)
        if _in_notebook():
            self._redraw()
        elif self._summary.phase != self._shown or self._clock() - self._shown_s >= LINE_EVERY_S:
            self._shown, self._shown_s = self._summary.phase, self._clock()
            print("  ".join(value for _, value in rows_of(self._summary)), file=sys.stderr, flush=True)

    def _repr_html_(self) -> str:
        if self._summary is None:
            return table([("state", "waiting")])
        bar = ""
        if self._summary.steps:
            bar = f'<progress max="{self._summary.steps}" value="{self._summary.step or 0}"></progress>'
        elif (share := self._summary.budget_share) is not None:
            bar = f'<progress max="1" value="{share:.3f}"></progress>'
        return table(rows_of(self._summary)) + bar

    def _redraw(self) -> None:
        from IPython.display import display  # noqa: PLC0415  (only a notebook has it)

        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)


def rows_of(summary: SearchSummary) -> Rows:
    """What is said of a search: what it is doing, its trials, what they came to, its time."""
    rows = [("state", summary.activity), ("trials", summary.trials_text)]
    if text := str(summary.outcome):
        rows.append(("speed-up", text))
    rows.append(("elapsed", format_duration(summary.elapsed_s, whole=True)))
    if summary.phase not in PAST_SEARCH and (left_s := summary.remaining_s) is not None:
        rows.append(("left", f"{format_duration(left_s, whole=True)} left"))
    return rows


def table(rows: Rows) -> str:
    """HTML of two columns."""
    lines = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{''.join(lines)}</table>"


def _in_notebook() -> bool:
    """Whether this process is the kernel of one: IPython in a terminal shows no HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")
