"""What a service serves, as offers to a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from shapewright.queries import WorkloadLike
from shapewright.snapshot.entries import Entry
from shapewright.snapshot.writing import Offer
from tuner.program.job.cache import parse_cache
from tuner.program.job.range_text import parse_ranges
from tuner.program.language.spans import Span
from tuner.program.language.workload import JsonObject

if TYPE_CHECKING:
    from shapewright.client import Client

MAX_WORKLOADS, MAX_LIBRARIES = 100_000, 10_000


def served_offers(
    client: Client,
    workloads: Sequence[WorkloadLike] = (),
    target: str | None = None,
    threads: int | None = None,
    cache: str | None = None,
) -> Iterator[Offer]:
    """The library that is served for each target, number of threads, state of caches and range of ``workloads``, or of
    all.

    ``target`` (a fingerprint), ``threads`` and ``cache`` take those alone. A job or a search task is asked for by its
    workload, whatever its range. Nothing is downloaded until an offer is read. Raises ServiceError.
    """
    named: Sequence[WorkloadLike] = workloads or [each["key"] for each in client.workloads(MAX_WORKLOADS)]
    for workload in named:
        places = {
            (row["workload_key"], row["target_fingerprint"], row["threads"], row["cache"], row["made_for"]): None
            for row in client.libraries(workload, target, MAX_LIBRARIES)
            if row["superseded_by"] is None and row["wrong_kernel"] is None
            if threads in (None, row["threads"]) and cache in (None, row["cache"])
        }
        for key, fingerprint, number, state, made_for in places:
            ranges = _every_size(made_for) or None
            yield _offer(client, client.served(key, target=fingerprint, threads=number, cache=state, ranges=ranges))


def _every_size(made_for: str) -> dict[str, Span]:
    """The sizes that a library was made for, from their text, in which a step of 1 is left out."""
    ranges = parse_ranges(made_for) if "=" in made_for else {}
    return {name: range(span[0], span[1] + 1) if isinstance(span, tuple) else span for name, span in ranges.items()}


def _offer(client: Client, served: JsonObject) -> Offer:
    key, digest = served["workload_key"], served["digest"]
    entry = Entry(
        digest=digest,
        workload_key=key,
        target_fingerprint=served["target_fingerprint"],
        threads=served["threads"],
        cache=parse_cache(served["cache"]),
        made_for=_every_size(served["made_for"]),
        protocol=served["protocol"],
        created_at=served["created_at"],
    )
    return Offer(entry, partial(client.library_files, key, digest))
