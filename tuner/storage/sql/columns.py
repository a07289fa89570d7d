"""Column types and SQL functions that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import JSON, BigInteger, ColumnElement, DateTime, Integer, Text, bindparam
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Double, TypeDecorator, TypeEngine

from tuner.storage.errors import Unreadable, unreadable
from tuner.storage.levels import is_deeper

SQLITE_NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now'"

BigInt = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit integer. SQLite numbers rows by itself only if the column is called INTEGER."""


class Instant(TypeDecorator[str]):
    """A moment in UTC as ISO 8601 text: ``timestamptz`` in PostgreSQL, text of fixed width in SQLite."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return None if value is None else str(value)


def safe_text(value: str) -> str:
    """Text without the characters that a database refuses."""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


class SafeText(TypeDecorator[str]):
    """Text from outside. Characters that a database refuses (NUL, lone surrogates) are replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return safe_text(value)


class Json(TypeDecorator[Any]):
    """JSON whose outermost value is an object (``dict``) or an array (``list``).

    What cannot be read, or is of another shape, becomes Unreadable, and never an error: a row is decoded while all rows
    of a statement are fetched, so an error there would take the others with it. ``optional``: it may be null.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, shape: type[dict[str, Any]] | type[list[Any]], optional: bool = False, **options: bool) -> None:
        super().__init__(**options)
        self.shape, self.optional = shape, optional

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if isinstance(value, self.shape):
            return value
        if value is None and self.optional:
            return None
        wrong = f"it holds {_kind(value)}, not {_kind(self.shape())}"
        return unreadable(value.reason if isinstance(value, Unreadable) else wrong, self.shape)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")


class now(FunctionElement[str]):  # noqa: N801  (reads as the SQL function that it is)
    """The database's clock, read when the statement runs (not when its transaction began)."""

    type = Instant()
    inherit_cache = True


class later(FunctionElement[str]):  # noqa: N801
    """``later(seconds)``: the database's clock, that many seconds from now."""

    type = Instant()
    inherit_cache = True

    def __init__(self, seconds: float) -> None:
        super().__init__(bindparam("seconds", float(seconds), Double(), unique=True))


class age_s(FunctionElement[float]):  # noqa: N801
    """``age_s(moment)``: the seconds from a moment in a column to the database's clock."""

    type = Double()
    inherit_cache = True


class epoch_s(FunctionElement[float]):  # noqa: N801
    """``epoch_s(moment)``: the seconds from 1970 to a moment."""

    type = Double()
    inherit_cache = True


class whole(FunctionElement[int]):  # noqa: N801
    """``whole(number)``: a number of 0 or more without its fraction."""

    type = BigInteger()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_postgresql(element: ColumnElement[str], compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(now, "sqlite")
def _now_sqlite(element: ColumnElement[str], compiler: SQLCompiler, **kw: Any) -> str:
    return f"{SQLITE_NOW})"


@compiles(later, "postgresql")
def _later_postgresql(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{SQLITE_NOW}, printf('%+.3f seconds', {compiler.process(element.clauses, **kw)}))"


@compiles(age_s, "postgresql")
def _age_postgresql(element: age_s, compiler: SQLCompiler, **kw: Any) -> str:
    return f"extract(epoch FROM clock_timestamp() - {compiler.process(element.clauses, **kw)})::float8"


@compiles(age_s, "sqlite")
def _age_sqlite(element: age_s, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday('now') - julianday({compiler.process(element.clauses, **kw)})) * 86400.0)"


@compiles(epoch_s, "postgresql")
def _epoch_postgresql(element: ColumnElement[float], compiler: SQLCompiler, **kw: Any) -> str:
    return f"extract(epoch FROM {compiler.process(element.clauses, **kw)})::float8"


@compiles(epoch_s, "sqlite")
def _epoch_sqlite(element: ColumnElement[float], compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday({compiler.process(element.clauses, **kw)}) - 2440587.5) * 86400.0)"


@compiles(whole, "postgresql")
def _whole_postgresql(element: ColumnElement[int], compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor({compiler.process(element.clauses, **kw)})::bigint"


@compiles(whole, "sqlite")
def _whole_sqlite(element: ColumnElement[int], compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS INTEGER)"


_encode = json.JSONEncoder(allow_nan=False).encode
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def to_json(value: object) -> str:
    """JSON text as the standard has it: NaN and the infinities, which it lacks, become null."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # Integers of more than 64 bits and lone surrogates.
        return _encode(_finite(value))


def from_json(text: str | bytes) -> Any:
    """Reads JSON text; a lone surrogate, which no answer could carry, becomes U+FFFD. Raises ValueError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # What is not JSON is refused here, too.
        try:
            written = json.dumps(json.loads(text), ensure_ascii=False)
        except RecursionError:
            raise ValueError("it has too many levels") from None
        return orjson.loads(_LONE_SURROGATE.sub("\ufffd", written))


DEPTH = 100
"""Levels of arrays and objects in a column. What was stored has a dozen; writers of JSON give up at 250 and more."""


def decoded(text: str | bytes) -> Any:
    """``from_json`` for columns: Unreadable in place of an error."""
    try:
        value = from_json(text)
        if _braces(text) > DEPTH and is_deeper(value, DEPTH):
            return unreadable(f"it has more than {DEPTH} levels", dict)
        return value
    except (ValueError, RecursionError) as error:
        return unreadable(f"it is not JSON: {error}", dict)


def _braces(text: str | bytes) -> int:
    return sum(map(text.count, "[{" if isinstance(text, str) else (b"[", b"{")))  # type: ignore[arg-type]


def canonical(value: object) -> str:
    """JSON text that is equal for equal values, whatever the order of their keys."""
    return json.dumps(_finite(value), sort_keys=True)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
