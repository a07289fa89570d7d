"""Latencies of kernels across jobs: the median of the readings of each at one speed of the device."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, select

from tuner.library.choice import Medians
from tuner.records import PROTOCOL
from tuner.storage.sql.schema import kernel_latencies

_known = kernel_latencies.c
_MEDIANS = select(_known.kernel_id, _known.instance, _known.latency_s).where(
    _known.workload_id == bindparam("workload_id"),
    _known.target_id == bindparam("target_id"),
    _known.threads == bindparam("threads"),
    _known.protocol == PROTOCOL,
    _known.instance.in_(bindparam("instances", expanding=True)),
    _known.kernel_id.in_(bindparam("kernels", expanding=True)),
)


def medians_of(
    connection: Connection, workload_id: int, target_id: int, threads: int, wanted: Collection[tuple[str, str]]
) -> Medians:
    """The medians of each (kernel id, instance in symbols) that is ``wanted`` and was measured."""
    if not wanted:
        return {}
    same = {"workload_id": workload_id, "target_id": target_id, "threads": threads}
    kernels, instances = (sorted(set(names)) for names in zip(*wanted, strict=True))
    rows = connection.execute(_MEDIANS, {**same, "kernels": kernels, "instances": instances})
    return {(row.kernel_id, row.instance): row.latency_s for row in rows}
