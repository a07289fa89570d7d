"""What a run of a bundle brought back: one document, and a table of kernels against rivals."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPLAY_US = 6.4
"""Of a replay itself: a fit to graphs of empty kernels on an H100 (docs/decisions/0069)."""


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """The entries of a file of results, packed or not; none where it is missing."""
    plain, packed = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
    if packed.exists():
        return [json.loads(line) for line in gzip.decompress(packed.read_bytes()).decode().splitlines()]
    return [json.loads(line) for line in plain.read_text().splitlines()] if plain.exists() else []


def document(folder: Path) -> dict[str, Any]:
    """All results of a run."""
    clocks = folder / "clocks.csv"
    return {
        "facts": lines(folder, "facts"),
        "checks": [[each["title"], each["worst"], each["problems"]] for each in lines(folder, "checks")],
        "blocks": lines(folder, "blocks"),
        "notes": lines(folder, "notes"),
        "clocks": clocks.read_text().splitlines()[::5] if clocks.exists() else [],
    }


def times(block: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of a launch by name, without what a replay takes itself."""
    return {name: max(us - REPLAY_US / block["launches"], 0.1) for name, us in block["us"].items()}


def summary(folder: Path, rivals: Iterable[str]) -> Iterator[str]:
    """By part of the bundle: how many blocks, and the best kernel against the first rival and against the fastest."""
    known, ratios = set(rivals), defaultdict[str, list[tuple[float, float]]](list)
    for block in lines(folder, "blocks"):
        us = times(block)
        own = min((value for name, value in us.items() if name not in known), default=math.inf)
        others = [value for name, value in us.items() if name in known and name != "copy"]
        if others and own < math.inf:
            ratios[block["part"]].append((others[0] / own, min(others) / own))
    yield f"{'part':12} {'blocks':>6} {'first rival':>12} {'worst':>6} {'fastest':>8}"
    for part, pairs in ratios.items():
        first, fastest = ([pair[place] for pair in pairs] for place in (0, 1))
        yield f"{part:12} {len(pairs):6} {_mean(first):12.3f} {min(first):6.2f} {_mean(fastest):8.3f}"
    checks = lines(folder, "checks")
    wrong = [each["title"] for each in checks if each["problems"]]
    yield f"{len(checks)} checks, {len(wrong)} wrong" + "".join(f"\n  {title}" for title in wrong[:20])


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
