"""Documents from outside, JSON or YAML, read as plain data: what a job file or a request body may hold.

A document is a tree of mappings with text keys, lists, text, finite numbers, booleans and null. Whatever else the two
formats can say (references, tags, repeated keys, numbers that are none) is refused with a reason, and the work that
reading takes stays proportional to the size of the text.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import yaml

from tuner.errors import InvalidInput
from tuner.program.job.yaml_reader import MAX_DEPTH, MAX_VALUES, parse_yaml, too_deep, too_many
from tuner.program.language.shape_vars import JsonObject

__all__ = ["MAX_DEPTH", "MAX_VALUES", "read_json", "read_yaml"]

MAX_SHOWN = 60
"""Characters of a wrong value that an error repeats."""

# NUL and lone surrogates: not every database takes them as text.
_UNSTORABLE = re.compile("[\\x00\\ud800-\\udfff]")


def read_json(text: bytes | str, field: str = "job") -> object:
    """Parse JSON. Raises InvalidInput with ``field``, or with the dotted path of a value that is not allowed."""
    return _read(text, _parse_json, "JSON", field)


def read_yaml(text: bytes | str, field: str = "job") -> object:
    """Parse YAML, of which JSON is a part. Raises InvalidInput as ``read_json`` does."""
    return _read(text, parse_yaml, "YAML", field)


def _read(text: bytes | str, parse: Callable[[str], object], language: str, field: str) -> object:
    try:
        data = parse(text.decode("utf-8") if isinstance(text, bytes) else text)
        _Checker().check(data)
    except InvalidInput as error:
        raise InvalidInput(error.field.removeprefix(".") or field, error.problem, error.remedy) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(field, f"byte {error.start} is not UTF-8", "encode it as UTF-8") from None
    except RecursionError:
        raise InvalidInput(field, too_deep().problem, too_deep().remedy) from None
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInput(field, f"cannot be read as {language}: {_reason(error)}", "correct it there") from None
    return data


def _parse_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidInput("", f"the key {_short(twice)} stands twice in one mapping", "give each key once")
    return result


def _no_number(name: str) -> float:
    raise InvalidInput("", f"{name} is not a number", "give a finite number")


class _Checker:
    """Counts the values of a document while it looks at each."""

    def __init__(self) -> None:
        self._values = 0

    def check(self, value: object, depth: int = 0) -> None:
        """Raise InvalidInput, its field the path from ``value`` to what is not allowed, as in ``.budget.trials``."""
        self._count()
        if depth > MAX_DEPTH:
            raise too_deep()
        if isinstance(value, dict):
            for key, item in value.items():
                self._count()
                _check_key(key)
                self._check_part(item, f".{_short(key, quote=False)}", depth)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._check_part(item, index, depth)
        else:
            _check_scalar(value)

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise too_many()

    def _check_part(self, value: object, step: str | int, depth: int) -> None:
        try:
            self.check(value, depth + 1)
        except InvalidInput as error:
            path = step if isinstance(step, str) else f"[{step}]"
            raise InvalidInput(path + error.field, error.problem, error.remedy) from None


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise InvalidInput("", f"{_short(key)} is not text, but stands as a key", "quote it")
    _check_text(key)


def _check_scalar(value: object) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput("", f"{value!r} is not a number", "give a finite number")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidInput("", "the number does not fit 64 bits", "give a smaller one")
    elif value is not None:
        raise InvalidInput("", f"{_short(value)} is a {type(value).__name__}", "quote it to make it text")


def _check_text(text: str) -> None:
    if _UNSTORABLE.search(text):
        raise InvalidInput("", "the text holds a character that cannot be stored", "leave out NUL and surrogates")


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return str(error).splitlines()[0][:200]


def _short(value: object, quote: bool = True) -> str:
    text = value if isinstance(value, str) and not quote else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
