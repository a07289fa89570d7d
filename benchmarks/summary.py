"""Several runs of the kernel benchmarks, one for each seed, as one table: `python -m benchmarks.summary A.json B.json`.

Figures are medians over the runs, with the least and the largest; shapes are compared by the median of their ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Row, against_best
from tuner.program.language.workload import format_shape

Document = Mapping[str, Any]
WORST = 10
UNITS = {"tuning_s": "{:.0f}", "trials": "{:.0f}", "max_abs_error": "{:.2g}"}
PER_CENT = ("regret", "regret_worst", "peak_fraction_large_m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("documents", type=Path, nargs="+", help="what benchmarks.kernels wrote with --json")
    parser.add_argument("--worst", type=int, default=WORST, help="so many of the worst shapes")
    options = parser.parse_args()
    print(report([json.loads(path.read_text()) for path in options.documents], options.worst))


def report(documents: Sequence[Document], worst: int = WORST) -> str:
    """Two markdown tables: the summary's figures, and the worst shapes."""
    seeds = ", ".join(str(document["protocol"]["seed"]) for document in documents)
    suites = ", ".join(dict.fromkeys(document["protocol"]["suite"] for document in documents))
    lines = [f"{suites}: {len(documents)} runs, seeds {seeds}", ""]
    lines += ["| figure | median | least | largest |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {' | '.join(values)} |" for name, values in _figures(documents)]
    lines += ["", "| worst shapes | against the best rival | % of peak | held out |", "| --- | ---: | ---: | --- |"]
    return "\n".join([*lines, *_worst_shapes(documents, worst)])


def _figures(documents: Sequence[Document]) -> Iterable[tuple[str, list[str]]]:
    flat = [_flat(document["summary"]) for document in documents]
    for name in dict.fromkeys(name for figures in flat for name in figures):
        values = [figures[name] for figures in flat if name in figures]
        yield name, [_text(name, value) for value in (statistics.median(values), min(values), max(values))]


def _flat(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Figures by dotted name; what a run has no figure for is left out."""
    result: dict[str, float] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            result |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            result[prefix + name] = float(value)
    return result


def _text(name: str, value: float) -> str:
    if name in PER_CENT:
        return f"{100 * value:.1f} %"
    return UNITS.get(name, "{:g}" if name.startswith("kernels.") else "{:.3f}").format(value)


def _worst_shapes(documents: Sequence[Document], count: int) -> list[str]:
    rows: dict[tuple[str, str], list[Row]] = {}
    for document in documents:
        for row in document["rows"]:
            rows.setdefault((row["workload"], format_shape(row["shape"])), []).append(row)
    ratios = {
        key: statistics.median(result)
        for key, same in rows.items()
        if (result := [ratio for row in same if (ratio := against_best(row)) is not None])
    }
    return [
        f"| {workload} {shape} | {ratios[workload, shape]:.3f} | "
        f"{100 * statistics.median(row['peak_fraction'] for row in rows[workload, shape]):.0f} | "
        f"{'no' if rows[workload, shape][0]['tuned_on'] else 'yes'} |"
        for workload, shape in sorted(ratios, key=lambda key: ratios[key])[:count]
    ]


if __name__ == "__main__":
    main()
