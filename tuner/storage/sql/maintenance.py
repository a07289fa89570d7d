"""Stale knowledge: records and libraries that an upgrade, or their origin, keeps from being compared with today's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, not_, select

from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject
from tuner.records import PROTOCOL, PROTOCOLS, cache_of
from tuner.schedule.registry import current_version
from tuner.storage.maintenance import StaleKnowledge
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.identity import split_label
from tuner.storage.sql.latencies import MEASURED
from tuner.storage.sql.lookup_statements import is_current
from tuner.storage.sql.schema import artifacts, micro_kernels, targets, tuning_records, workloads

LookupScope = tuple[int, int, int, Cache]
"""The numbers of a workload and a target, threads, and the state of the caches."""

_record = tuning_records.c
_scope = (_record.workload_id, _record.target_id, _record.threads)


class StaleRecords(Part):
    def stale_knowledge(self) -> tuple[StaleKnowledge, ...]:
        """Everything that is stored and not comparable with what this version measures, the most first.

        Reads all records: seconds where there are millions.
        """
        with self._database.long_read() as connection:
            rows = connection.execute(_stale()).all()
            known = {_place(row) for row in connection.execute(_remeasured())}
            names = _names(connection)
            result = [_stale_of(row, names, _place(row) in known) for row in rows]
            result += _stale_libraries(connection, names)
        return tuple(sorted(result, key=lambda each: (-each.count, each.workload_key, each.reason, each.detail)))


def _place(row: AnyRow) -> LookupScope:
    return row.workload_id, row.target_id, row.threads, cache_of(row.protocol)


def _comparable() -> ColumnElement[bool]:
    """Records of this database's devices, measured as this version does, of kernels that mean to it what they did."""
    return and_(_record.provenance == MEASURED, _record.protocol.in_(PROTOCOLS), is_current(micro_kernels.c))


def _stale() -> Select[Any]:
    kinds = (_record.provenance, _record.protocol, micro_kernels.c.rule, micro_kernels.c.rule_version)
    return (
        select(*_scope, *kinds, func.count().label("records"), func.max(_record.created_at).label("newest_at"))
        .join(micro_kernels, micro_kernels.c.id == _record.kernel_id)
        .where(_record.latency_s.is_not(None), not_(_comparable()))
        .group_by(*_scope, *kinds)
    )


def _remeasured() -> Select[Any]:
    """The scopes that have comparable records."""
    joined = select(*_scope, _record.protocol).join(micro_kernels, micro_kernels.c.id == _record.kernel_id)
    return joined.where(_record.latency_s.is_not(None), _comparable()).distinct()


def _names(connection: Connection) -> tuple[dict[int, tuple[str, str]], dict[int, str]]:
    """The key and the label of every workload, and the fingerprint of every target, by number."""
    stored = connection.execute(select(workloads.c.id, workloads.c.key, workloads.c.workload))
    result = {row.id: (row.key, split_label(row.workload)[1]) for row in stored}
    return result, {row.id: row.fingerprint for row in connection.execute(select(targets.c.id, targets.c.fingerprint))}


Names = tuple[dict[int, tuple[str, str]], dict[int, str]]


def _stale_of(row: AnyRow, names: Names, remeasured: bool) -> StaleKnowledge:
    if row.provenance != MEASURED:
        reason, detail = row.provenance, "measured for another database"
    elif row.protocol not in PROTOCOLS:
        reason, detail = "protocol", f"measured by protocol {row.protocol}, now {PROTOCOL}"
    else:
        version = current_version(row.rule)
        now = "which is no longer there" if version is None else f"now {version}"
        reason, detail = "rule", f"version {row.rule_version} of rule {row.rule}, {now}"
    key, label = names[0][row.workload_id]
    return StaleKnowledge(
        workload_key=key,
        label=label,
        target_fingerprint=names[1][row.target_id],
        threads=row.threads,
        cache=cache_of(row.protocol),
        reason=reason,
        detail=detail,
        count=row.records,
        newest_at=row.newest_at,
        remeasured=remeasured,
    )


def _stale_libraries(connection: Connection, names: Names) -> Iterator[StaleKnowledge]:
    """The newest library that is served for each workload, target, threads and caches, if another toolchain built it
    than the newest of all."""
    columns = (artifacts.c[name] for name in ("workload_id", "target_id", "threads", "cache", "superseded_by"))
    # The manifest as it is: a database that looks into it itself refuses the statement for one that is no JSON.
    query = select(*columns, artifacts.c.manifest, artifacts.c.created_at)
    newest: dict[LookupScope, tuple[Any, JsonObject]] = {}
    now: JsonObject = {}
    for row in connection.execute(query.order_by(artifacts.c.id)):
        now = toolchain = _toolchain(row.manifest)
        if row.superseded_by is None:
            newest[row.workload_id, row.target_id, row.threads, Cache(row.cache)] = row, toolchain
    for (workload_id, target_id, threads, cache), (row, toolchain) in newest.items():
        if toolchain != now:
            key, label = names[0][workload_id]
            detail = f"built by {_versions(toolchain)}, now {_versions(now)}"
            target = names[1][target_id]
            yield StaleKnowledge(key, label, target, threads, cache, "toolchain", detail, 1, row.created_at, False)


def _toolchain(manifest: JsonObject) -> JsonObject:
    result = manifest.get("toolchain")
    return result if isinstance(result, dict) else {}


def _versions(toolchain: JsonObject) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(toolchain.items())) or "what is not known"
