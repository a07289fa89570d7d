"""Tuning records as a file: JSON lines that databases exchange, and that a search may start from.

The first line is the header, ``{"format": "shapewright-records", "version": 1}``; every other line is one record with
all that its latency depends on, so lines can be cut, joined and filtered by any tool. Reading and writing hold one line
at a time. Instances are in the symbols of the workload, as in everything that is shared between jobs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from tuner.errors import InvalidInput, shown
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target
from tuner.records import MeasureResult, TuningRecord
from tuner.storage.levels import is_deeper

FORMAT = "shapewright-records"
VERSION = 1
MAX_LINE = 2**20
"""Characters (or bytes) of a line: a record is about a thousand, and a large program may be with it."""
MAX_TEXT = 4096
"""Characters of an error, a name or a moment."""
MAX_LEVELS = 32
"""Levels of arrays and objects of a record, what is carried along with it as it is included."""
MAX_AXES = 64
MAX_SAMPLES = 256
MAX_INT = 2**53
"""Every reader of JSON keeps integers exact up to here."""
MAX_COUNT = 2**31 - 1
"""The largest version, round and attempt: every database keeps integers up to here."""

_MEMBERS = (
    *("workload", "workload_key", "target", "target_fingerprint", "threads", "protocol", "provenance"),
    *("result", "created_at", "job_id"),
)


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """A record outside a database: with its workload (canonical form) and its target spelled out.

    ``provenance`` says where it was measured: ``kind`` is ``measured``, or what the database that wrote it calls it;
    other members are carried along. Whoever reads a file measures again before a record decides anything.
    """

    workload: JsonObject
    target: Target
    record: TuningRecord
    provenance: JsonObject = field(default_factory=lambda: {"kind": "measured"})

    def to_json(self) -> JsonObject:
        record = self.record
        return {
            "workload": self.workload,
            "workload_key": record.workload_key,
            "target": _target_json(self.target),
            "target_fingerprint": record.target_fingerprint,
            "threads": record.threads,
            "protocol": record.protocol,
            "provenance": self.provenance,
            "result": record.result.to_json(),
            "created_at": record.created_at,
            "job_id": record.job_id,
        }


@lru_cache(maxsize=64)
def _target_json(target: Target) -> JsonObject:
    """Many lines share a target. Nobody changes what this returns."""
    return target.to_json()


def write_records(records: Iterable[SharedRecord]) -> Iterator[str]:
    """The lines of a file, each with its line end: the header, then the records in the order given."""
    yield _line({"format": FORMAT, "version": VERSION})
    for record in records:
        yield _line(record.to_json())


def read_records(lines: Iterable[str | bytes]) -> Iterator[SharedRecord]:
    """The records of a file, one at a time; empty lines are passed over.

    Raises InvalidInput on field ``line N`` (from 1) for the first line that cannot be used; what came before it has
    been handed out by then. A workload and a target must be what their key and their fingerprint name.
    """
    reader, has_header = _Reader(), False
    for number, line in enumerate(lines, 1):
        try:
            if (data := _parsed(line)) is None:
                continue
            if has_header:
                yield reader.record(data)
            else:
                _check_header(data)
                has_header = True
        except InvalidInput as error:
            raise error.within(f"line {number}") from None
    if not has_header:
        raise InvalidInput("line 1", "there is no header", _HEADER)


_HEADER = f'the first line is {{"format": "{FORMAT}", "version": {VERSION}}}'


def _line(data: JsonObject) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _parsed(line: str | bytes) -> JsonObject | None:
    """The object of a line; None for an empty line."""
    if len(line) > MAX_LINE:
        raise InvalidInput("", f"has {len(line)} characters", f"at most {MAX_LINE}")
    try:
        text = (line.decode("utf-8") if isinstance(line, bytes) else line).strip()
        data = json.loads(text) if text else None
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"byte {error.start} is not UTF-8", "encode it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("", f"is not JSON: {error}", "one object in each line") from None
    if text and not isinstance(data, dict):
        raise InvalidInput("", f"{shown(data)} is not an object", "one object in each line")
    if is_deeper(data, MAX_LEVELS):
        raise InvalidInput("", f"is nested more than {MAX_LEVELS} deep", "what this release writes")
    return data


def _check_header(data: JsonObject) -> None:
    if data.get("format") != FORMAT:
        raise InvalidInput("format", f"{shown(data.get('format'))} is not a format of records", _HEADER)
    if data.get("version") != VERSION:
        raise InvalidInput("version", f"{shown(data.get('version'))} is not known", f"this release reads {VERSION}")


class _Reader:
    """Turns lines into records. A workload or a target that occurs in many lines is checked once."""

    def __init__(self) -> None:
        self._workloads: dict[str, tuple[JsonObject, frozenset[str]]] = {}
        self._targets: dict[str, Target] = {}

    def record(self, data: JsonObject) -> SharedRecord:
        unknown = sorted(set(data) ^ set(_MEMBERS))
        if unknown:
            has = "is not a member of a record" if unknown[0] in data else "is missing"
            raise InvalidInput(unknown[0], has, f"members: {', '.join(_MEMBERS)}")
        workload, symbols = self._workload(_text(data, "workload_key"), data["workload"])
        target = self._target(_text(data, "target_fingerprint"), data["target"])
        provenance = data["provenance"]
        if not isinstance(provenance, dict):
            raise InvalidInput("provenance", f"{shown(provenance)} is not an object", 'as in {"kind": "measured"}')
        record = TuningRecord(
            workload_key=data["workload_key"],
            target_fingerprint=data["target_fingerprint"],
            threads=_integer(data, "threads", 1, 1024),
            protocol=_text(data, "protocol"),
            result=_result_of(data["result"], symbols),
            job_id=None if data["job_id"] is None else _text(data, "job_id"),
            created_at=_moment(data, "created_at"),
            provenance=_text(provenance, "kind", "provenance."),
        )
        return SharedRecord(workload, target, record, provenance)

    def _workload(self, key: str, data: object) -> tuple[JsonObject, frozenset[str]]:
        """The canonical form that a key names, and its symbols."""
        if key not in self._workloads:
            try:
                workload = workload_from_json(data)
            except InvalidInput as error:
                raise error.within("workload") from None
            if workload.key != key:
                raise InvalidInput("workload_key", f"{shown(key)} is not the workload's", f"it is {workload.key}")
            self._workloads[key] = workload.canonical, frozenset(workload.symbols)
        return self._workloads[key]

    def _target(self, fingerprint: str, data: object) -> Target:
        if fingerprint not in self._targets:
            target = Target.from_json(data)
            if target.fingerprint != fingerprint:
                names = f"it is {target.fingerprint}"
                raise InvalidInput("target_fingerprint", f"{shown(fingerprint)} is not the target's", names)
            self._targets[fingerprint] = target
        return self._targets[fingerprint]


# -- what anyone may have written -------------------------------------------------------------------------------------
def _result_of(data: object, symbols: frozenset[str]) -> MeasureResult:
    """Read what ``MeasureResult.to_json`` wrote, checked."""
    try:
        if not isinstance(data, dict):
            raise InvalidInput("", f"{shown(data)} is not an object", "what a trial measured")
        _check_kernel(data.get("kernel"))
        _check_instance(data.get("instance"), symbols)
        _check_numbers(data)
        for name in ("error", "device", "phase", "error_kind"):
            if data.get(name) is not None:
                _text(data, name)
        try:
            result = MeasureResult.from_json(data)
        except (ValueError, TypeError) as error:
            raise InvalidInput("", str(error), "what this release writes") from None
        if result.ok == (result.error_kind is not None):
            raise InvalidInput("error_kind", f"{shown(result.error_kind)} with that latency_s", "one of the two")
        return result
    except InvalidInput as error:
        raise error.within("result") from None


def _check_kernel(kernel: object) -> None:
    if not isinstance(kernel, dict) or set(kernel) != {"rule", "rule_version", "values"}:
        raise InvalidInput("kernel", f"{shown(kernel)} is not a micro-kernel", "rule, rule_version and values")
    _text(kernel, "rule", "kernel.")
    _integer(kernel, "rule_version", 0, MAX_COUNT, "kernel.")
    values = kernel["values"]
    if not isinstance(values, dict) or len(values) > MAX_AXES:
        raise InvalidInput("kernel.values", f"{shown(values)} are not axes", f"at most {MAX_AXES} integers by name")
    for name in values:
        _text({"": name}, "", "kernel.values")
        _integer(values, name, -MAX_INT, MAX_INT, "kernel.values.")


def _check_instance(instance: object, symbols: frozenset[str]) -> None:
    if not isinstance(instance, dict) or set(instance) - {"weight"} != symbols:
        needs = f"a value for each of: {', '.join(sorted(symbols)) or '(none)'}"
        raise InvalidInput("instance", f"{shown(instance)} is not in the workload's symbols", needs)
    for name in symbols:
        _integer(instance, name, 0, MAX_INT, "instance.")
    _number(instance, "weight", "instance.")


def _check_numbers(data: Mapping[str, Any]) -> None:
    for name in ("latency_s", "anchor_s", "predicted_s", "build_s", "run_s"):
        _number(data, name)
    if data.get("latency_s") == 0 or data.get("anchor_s") == 0:
        raise InvalidInput("latency_s", "a time of 0", "times are above 0")
    for name in ("build_s", "run_s"):
        if data.get(name) is None:
            raise InvalidInput(name, "is missing", "seconds")
    for name in ("round", "attempt"):
        _integer(data, name, 0, MAX_COUNT)
    samples = data.get("samples_s", [])
    if not isinstance(samples, list) or len(samples) > MAX_SAMPLES:
        raise InvalidInput("samples_s", f"{shown(samples)} are not samples", f"at most {MAX_SAMPLES} numbers")
    for sample in samples:
        if sample is None:
            raise InvalidInput("samples_s", "has an empty place", "numbers")
        _number({"samples_s": sample}, "samples_s")


def _number(data: Mapping[str, Any], name: str, at: str = "") -> None:
    value = data.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Databases take no integers of any length.
    most = MAX_INT if isinstance(value, int) else sys.float_info.max
    if value is not None and not (is_number and 0 <= value <= most):
        raise InvalidInput(at + name, f"{shown(value)} is not a size", "a finite number of 0 or more")


def _integer(data: Mapping[str, Any], name: str, low: int, high: int, at: str = "") -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(at + name, f"{shown(value)} will not do", f"an integer from {low} to {high}")
    return value


def _text(data: Mapping[str, Any], name: str, at: str = "") -> str:
    value = data.get(name)
    # Not every database takes a NUL or half a surrogate pair as text.
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value or not _is_encodable(value):
        raise InvalidInput(at + name, f"{shown(value)} is not a text", f"at most {MAX_TEXT} characters, no NUL")
    return value


def _moment(data: Mapping[str, Any], name: str) -> str:
    """A moment with its time zone, as it stands there."""
    value = _text(data, name)
    try:
        has_zone = datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise InvalidInput(name, f"{shown(value)} is not a moment", "as in 2026-01-31T12:00:00.000000Z")
    return value


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
