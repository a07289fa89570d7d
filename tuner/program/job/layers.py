"""What a model calls the layers of a workload: ``layers`` beside ``count`` in a job file. No search looks at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import InvalidInput, shown

MAX_LAYERS = 64
"""Names of one workload. A workload may occur more often: its count says how often."""
MAX_LAYER_NAME = 200
"""Characters."""


def check_layers(item: object, field: str) -> None:
    """Raises InvalidInput for ``layers`` of a workload at ``field`` that are not a list of names."""
    names = item.get("layers", []) if isinstance(item, Mapping) else []
    if not isinstance(names, list) or len(names) > MAX_LAYERS:
        problem = f"{len(names)} names" if isinstance(names, list) else f"{shown(names)} is not a list of names"
        raise InvalidInput(f"{field}.layers", problem, f"a list of at most {MAX_LAYERS} names")
    for position, name in enumerate(names):
        if not isinstance(name, str) or not 0 < len(name) <= MAX_LAYER_NAME or not name.isprintable():
            remedy = f"1 to {MAX_LAYER_NAME} printable characters"
            raise InvalidInput(f"{field}.layers[{position}]", f"{shown(name)} is not a name", remedy)


def layer_name(text: str) -> str:
    """A name that a layer may have."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_LAYER_NAME] or "layer"


def layers_of(source: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The names for each search task, in order, of a job file that was checked; empty where none were given."""
    return [tuple(item.get("layers", ())) if isinstance(item, Mapping) else () for item in items_of(source)]


def items_of(source: Mapping[str, Any]) -> list[Any]:
    """The workload of each search task, in order, as a job file that was checked gives it."""
    workloads, targets = source.get("workloads") or [source.get("workload")], source.get("targets") or ["native"]
    return [item for item in workloads for _ in targets]
