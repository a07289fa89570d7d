"""Figures for Prometheus: what this process counts itself, and what the database says when they are scraped.

docs/reference/metrics.md lists the names. Several processes of one service share the counts of the first kind when
PROMETHEUS_MULTIPROC_DIR names a directory of theirs; the second kind is the same from every process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from tuner.storage import Pulse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHARED = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counts of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "shapewright_request_seconds",
            "Time from a request's arrival to the beginning of its answer.",
            ("method", "route", "status"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._lookups = Counter(
            "shapewright_lookups",
            "Lookups of the best kernel, by how it was found.",
            ("match",),
            registry=self._registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the route's template, never a path that a client has chosen."""
        self._requests.labels(method, route, f"{status // 100}xx").observe(seconds)

    def looked_up(self, match: str, count: int = 1) -> None:
        """Count lookups by their ``match``: exact, dispatched, nearest or default."""
        self._lookups.labels(match).inc(count)

    def text(self, pulse: Pulse, open_event_streams: int) -> str:
        """Everything in the Prometheus text format."""
        shown = CollectorRegistry()
        shown.register(_Stored(pulse, open_event_streams))
        counted = self._registry
        if os.environ.get(SHARED):
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        return "".join(generate_latest(registry).decode() for registry in (shown, counted))


@dataclass(frozen=True, eq=False)
class _Stored(Collector):
    """What the database says, as metrics."""

    pulse: Pulse
    open_event_streams: int

    def collect(self) -> Iterator[Metric]:
        pulse = self.pulse
        yield _gauge("jobs", "Jobs by state.", ("state",), [((state,), n) for state, n in pulse.jobs.items()])
        waiting = [((), pulse.queue_age_s)]
        yield _gauge("queue_age_seconds", "How long ago the oldest waiting job was submitted.", (), waiting)
        yield _counter("trials", "Trials that were recorded; its rate is trials per second.", (), [((), pulse.trials)])
        yield _counter("events", "Events of jobs.", (), [((), pulse.events)])
        yield _gauge("records", "Tuning records, imported ones included.", (), [((), pulse.records)])
        failed = [((kind,), n) for kind, n in pulse.failed_trials.items()]
        yield _gauge("failed_trials", "Stored trials that failed, by kind.", ("kind",), failed)
        yield _gauge("devices", "Devices that ever registered.", (), [((), len(pulse.devices))])
        named = [((device.id, device.key), device) for device in pulse.devices]
        ages = [(labels, device.seen_age_s) for labels, device in named]
        yield _gauge("device_seen_age_seconds", "How long ago a worker last saw the device.", ("device", "key"), ages)
        busy = [(labels, device.busy) for labels, device in named]
        yield _gauge("device_busy_ratio", "The part of the last minute that trials took.", ("device", "key"), busy)
        pool = [((state,), n) for state, n in pulse.connections.items()]
        yield _gauge("database_connections", "Connections of this process's pool.", ("state",), pool)
        yield _gauge("open_event_streams", "Event streams that clients follow.", (), [((), self.open_event_streams)])


Samples = Sequence[tuple[tuple[str, ...], float]]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(f"shapewright_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(f"shapewright_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
