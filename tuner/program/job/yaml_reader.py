"""YAML as plain data, in one pass over the parser's events: of YAML 1.2 what JSON can say, too.

Plain scalars are null, true, false, decimal numbers, and text otherwise: what YAML 1.1 reads as dates, as octal or
sexagesimal numbers (``1:30:00``) or as truth (``yes``) is text. Aliases, tags, directives and a second document are
refused, so a document never means more than what stands in it, and reading it takes time in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tuner.errors import MAX_SHOWN, InvalidInput, shown
from tuner.program.language.shape_vars import JsonObject

MAX_DEPTH = 32
"""How deeply mappings and lists may be nested."""
MAX_VALUES = 50_000
"""How many values, keys included, a document may hold: each costs some microseconds to read."""
MAX_NUMBER = 40
"""Characters of a number."""
MAX_PATH = 200
"""Characters of the path to a wrong value; of a longer one the error names the whole document."""

# The C parser reads the largest allowed body in a fraction of a second, the one in Python takes many.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# The parser compares every %TAG with every other.
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_NO_KEY = object()


def parse_yaml(text: str) -> object:
    """The document as plain data; numbers may be NaN or infinite still. Raises InvalidInput, yaml.YAMLError."""
    if _DIRECTIVE.search(text):
        raise InvalidInput("", "a line begins with %, as directives do", "leave directives out; quote the text")
    reader = _Reader()
    for event in yaml.parse(text, Loader=_PARSER):
        reader.take(event)
    return reader.root


def too_deep() -> InvalidInput:
    return InvalidInput("", f"is nested more than {MAX_DEPTH} deep", "a job file needs no more than 6")


def too_many() -> InvalidInput:
    return InvalidInput("", f"it holds more than {MAX_VALUES} values", "give a range in place of a long list")


class _Reader:
    """The document so far: ``root``, and the collections that are open, each with the key that waits for a value."""

    def __init__(self) -> None:
        self.root: object = None
        self._open: list[tuple[list[Any] | JsonObject, list[object]]] = []
        self._values = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Raises InvalidInput, its field the path to what is refused."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._refuse_tag(event.tag)
            collection: list[Any] | JsonObject = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            self._add(collection)
            self._open.append((collection, [_NO_KEY]))
            if len(self._open) > MAX_DEPTH:
                raise too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise self._refused(f"it refers to another part (*{str(event.anchor)[:MAX_SHOWN]})", "write it out in full")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise InvalidInput("", "it holds more than one document", "one job in a file")

    def _add(self, value: object) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise too_many()
        if not self._open:
            self.root = value
            return
        collection, waiting = self._open[-1]
        if isinstance(collection, list):
            collection.append(value)
        elif waiting[0] is _NO_KEY:
            waiting[0] = self._key(value, collection)
        else:
            collection[str(waiting[0])] = value
            waiting[0] = _NO_KEY

    def _key(self, value: object, mapping: JsonObject) -> str:
        if not isinstance(value, str):
            raise self._refused(f"{shown(value)} is not text, but stands as a key", "quote it")
        if value in mapping:
            raise self._refused(f"the key {shown(value)} stands twice in one mapping", "give each key once")
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        self._refuse_tag(event.tag)
        text: str = event.value
        if not event.implicit[0]:  # quoted, or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _FLOAT.fullmatch(text):
            if len(text) > MAX_NUMBER:
                raise self._refused(f"a number of {len(text)} characters", f"at most {MAX_NUMBER}")
            # Python writes infinities without the dot.
            return int(text) if _INTEGER.fullmatch(text) else float(text.lower().replace(".inf", "inf"))
        return text

    def _refuse_tag(self, tag: str | None) -> None:
        if tag is not None:
            raise self._refused(f"it has the tag {shown(tag)}", "leave the tag out; quote what is text")

    def _refused(self, problem: str, remedy: str) -> InvalidInput:
        path = "".join(self._steps()).removeprefix(".")
        return InvalidInput(path if len(path) <= MAX_PATH else "", problem, remedy)

    def _steps(self) -> Iterator[str]:
        """The path to what is being added: an open collection is part of the one around it already."""
        for place, (collection, (key,)) in enumerate(self._open, 1):
            innermost = place == len(self._open)
            if isinstance(collection, list):
                yield f"[{len(collection) - (not innermost)}]"
            elif not innermost:
                yield f".{next(reversed(collection))}"
            elif key is not _NO_KEY:
                yield f".{key}"
