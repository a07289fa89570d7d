"""How deeply a document is nested, told without recursion: it may be nested more deeply than calls may be."""

from __future__ import annotations

from collections.abc import Iterable


def is_deeper(value: object, levels: int) -> bool:
    """Whether an object or an array has more than so many levels of them, itself included."""
    level = [value]
    for _ in range(levels):
        level = [item for each in level for item in _items(each) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _items(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
