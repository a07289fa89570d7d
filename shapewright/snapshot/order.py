"""Which of several libraries for the same workload, target, threads and caches is the best: the rule by which a service
serves.

Compared at the instances of their searches, as far as they lie in the range asked for: by the times in their dispatch
tables, where what is only predicted gains nothing over what was measured. The older one stays unless another is faster
by more than 3 %. A library that does not say when it was built counts as the oldest; those are ordered by digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shapewright.snapshot.entries import Entry
from tuner.library import choice
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import MANIFEST, dispatcher_of, manifest_of
from tuner.program.job.range_text import Ranges
from tuner.program.language.workload import format_shape
from tuner.records import protocol_of

Read = Callable[[Entry], Mapping[str, bytes]]
KEPT = ("best", "newest", "all")
"""What a merge keeps of each place."""


def best_of(entries: Sequence[Entry], read: Read, ranges: Ranges | None = None) -> Entry:
    """The best of at least one library of one workload, target, threads and caches, over ``ranges`` of its symbols.

    ``ranges`` left out are those of the first. ``read`` gives a library's files. Raises ShapewrightError.
    """
    ordered = sorted(entries, key=_age)
    if len(ordered) == 1:
        return ordered[0]
    dispatchers = [dispatcher_of(files, manifest_of(files[MANIFEST])) for files in map(read, ordered)]
    points = choice.points_of([each.task for each in dispatchers], ranges or ordered[0].made_for)
    candidates = [
        choice.Candidate(entry.digest, _times(dispatcher, points, entry.protocol == protocol_of(entry.cache)))
        for entry, dispatcher in zip(ordered, dispatchers, strict=True)
    ]
    return ordered[choice.choose(points, candidates)]


def newest_of(entries: Sequence[Entry]) -> Entry:
    return max(entries, key=_age)


def _age(entry: Entry) -> tuple[str, str]:
    return entry.created_at or "", entry.digest


def _times(dispatcher: Dispatcher, points: Sequence[choice.Point], comparable: bool) -> choice.Times:
    """What a library takes at each point, as its own table says. Nothing if it was measured differently."""
    medians = {
        (dispatcher.kernels[row.kernel].id, format_shape(dispatcher.task.workload.dims(row.shape))): seconds
        for row in dispatcher.table
        if comparable and (seconds := row.measured_latency_s) is not None
    }
    return choice.times_of(dispatcher, points, medians, predicted=comparable)
