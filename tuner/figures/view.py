"""The data that the figures of a search are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from tuner.figures.columns import Columns, columns_of
from tuner.library.dispatcher import Dispatcher
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.program.target.calibration import Levels
from tuner.records import Baselines, MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.importance import EVENT, Importance
from tuner.search.observations import compared_at, normalized, reference_anchor_s
from tuner.search.summary import SearchSummary


class Event(Protocol):
    """What figures read of a job's event (tuner.storage.JobEvent, NewEvent)."""

    @property
    def kind(self) -> str: ...

    @property
    def data(self) -> JsonObject: ...


@dataclass(frozen=True)
class SearchView:
    """One search task with everything that is known of it at one time.

    ``results``: in the order they were stored, latencies as the device would have measured them at one clock
    (tuner.search.observations.normalized). ``progress``: the summaries of the progress events, in order.
    ``dispatcher``: of the library, once there is one. ``view_of`` makes one of what is stored.
    """

    task: SearchTask
    results: Sequence[MeasureResult] = ()
    progress: Sequence[SearchSummary] = ()
    dispatcher: Dispatcher | None = None
    baselines: Baselines = field(default_factory=Baselines)
    levels: Levels | None = None
    """What the device reads from each level of memory, where it is calibrated."""
    importance: Importance | None = None
    """How much each axis matters, once the search has ended."""

    @cached_property
    def columns(self) -> Columns:
        """The results as columns, made once for all figures of a view."""
        return columns_of(self.task.instances, self.results)

    @cached_property
    def chosen(self) -> tuple[MicroKernel, ...]:
        """The library's kernels; before there is one, those that are the fastest at an instance."""
        if self.dispatcher is not None:
            return self.dispatcher.kernels
        columns = self.columns
        best = columns.fastest[0][: len(self.task.instances)]
        return tuple(columns.kernels[index] for index in dict.fromkeys(best.tolist()) if index >= 0)

    @cached_property
    def labels(self) -> dict[MicroKernel, str]:
        """Short names of the chosen kernels, ``k1 · 3f09ac``, numbered from 1 in the library's order."""
        return {kernel: f"k{number} · {kernel.id[:6]}" for number, kernel in enumerate(self.chosen, 1)}

    def label(self, kernel: MicroKernel) -> str:
        """Its short name; of one that was not chosen the first digits of its id."""
        return self.labels.get(kernel) or kernel.id[:6]


def view_of(
    task: SearchTask,
    results: Iterable[MeasureResult],
    events: Iterable[Event] = (),
    dispatch: Mapping[str, Any] | None = None,
    baselines: Mapping[str, Any] | None = None,
    position: int = 0,
    levels: Levels | None = None,
) -> SearchView:
    """The view of one search task from what is stored of it.

    ``results`` as they were measured, in order; ``events`` of the whole job, in order, of which those of the task at
    ``position`` are taken; ``dispatch`` and ``baselines`` as their ``to_json`` wrote them; ``levels`` of the device's
    calibration. Raises ShapewrightError for
    a dispatch table of an unknown format.
    """
    measured, told = list(results), list(events)
    dispatcher = Dispatcher.from_json(dispatch) if dispatch else None
    compared = compared_at(Baselines.from_json(baselines), reference_anchor_s(measured))
    progress, importance = progress_of(told, position), importance_in(told, position)
    return SearchView(task, normalized(measured), progress, dispatcher, compared, levels, importance)


def progress_of(events: Iterable[Event], position: int = 0) -> list[SearchSummary]:
    """The progress events of the search task at ``position`` in its job."""
    return [
        SearchSummary.from_json(event.data)
        for event in events
        if event.kind == "progress" and event.data.get("position", position) == position
    ]


def importance_in(events: Iterable[Event], position: int = 0) -> Importance | None:
    """What the last event of its kind says of the search task at ``position``; None where there is none, or none that
    can be read."""
    own = [each.data for each in events if each.kind == EVENT and each.data.get("position", position) == position]
    try:
        return Importance.from_json(own[-1]) if own else None
    except (KeyError, TypeError, ValueError):
        return None
