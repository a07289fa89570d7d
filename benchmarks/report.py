"""Tables from the documents of benchmarks, and those of docs/performance.md.

    python -m benchmarks.report [--check]           # write the page's tables anew; or say which differ
    python -m benchmarks.report RUN.json ...        # print those of any documents

A block of the page between ``<!-- measured FILE -->`` and ``<!-- end -->`` is made of that file of docs/measurements;
``<!-- summary -->`` begins the table of all files that the page shows.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.rows import against_best
from benchmarks.compare.summary import SHORTEST_S, against, bandwidth, interval_of, is_noisy, mean, ratios
from benchmarks.harness.results import ROOT, Row, grouped, read
from benchmarks.theory import SEARCHED
from tuner.program.language.workload import format_shape

Document = Mapping[str, Any]
PAGE, MEASUREMENTS = ROOT / "docs" / "performance.md", ROOT / "docs" / "measurements"
BLOCK = re.compile(r"(<!-- (summary|measured (\S+)) -->\n).*?(<!-- end -->)", re.DOTALL)
BUSY = 1.0
"""Runnable processes to a core, beyond which a machine is called busy."""


def page_with_tables(text: str, folder: Path = MEASUREMENTS) -> str:
    """The page, its blocks made anew."""
    documents = {found[2]: read(folder / found[2]) for found in BLOCK.findall(text) if found[2]}

    def block(match: re.Match[str]) -> str:
        lines = summary_table(documents) if match[3] is None else tables(documents[match[3]], match[3])
        return "\n".join([match[1], *lines, "", match[4]])

    return BLOCK.sub(block, text)


def summary_table(documents: Mapping[str, Document]) -> list[str]:
    """A line for each document: what, the figure, the worst shape, the machine, where from."""
    rows = [
        [*KINDS[kind_of(document)][0](document), load(document), f"[{file.partition('.')[0]}](measurements/{file})"]
        for file, document in documents.items()
    ]
    return list(_table(["what", "figure", "least", "machine", "measurement"], *rows))


def tables(document: Document, file: str = "") -> list[str]:
    """How it was measured, then what."""
    return [*conditions(document, file), "", *KINDS[kind_of(document)][1](document)]


def kind_of(document: Document) -> str:
    """The module that wrote the document."""
    return str(document["protocol"]["command"].split()[2].removeprefix("benchmarks."))


def conditions(document: Document, file: str = "") -> list[str]:
    protocol = document["protocol"]
    source = f" [All of it](measurements/{file})." if file else ""
    machine = f"{protocol['cpu']}, {protocol['cores']} cores; {load(document)}"
    return [f"{machine}. {protocol['date'][:10]}, commit {protocol['commit']}.", f"`{protocol['command']}`.{source}"]


def load(document: Document) -> str:
    """How busy the machine was, before and after where both were recorded."""
    protocol = document["protocol"]
    loads = [protocol[name][0] for name in ("load_average", "load_average_at_the_end") if name in protocol]
    state = "busy" if max(loads) > BUSY * protocol["cores"] else "quiet"
    return f"{state}, load average {' and '.join(f'{each:.1f}' for each in loads)}"


# -- tables by kind ---------------------------------------------------------------------------------------------------
def _table(*rows: Sequence[str]) -> Iterator[str]:
    head, *others = rows
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' if index == 0 else '---:' for index in range(len(head)))} |"
    yield from (f"| {' | '.join(row)} |" for row in others)


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def with_interval(value: float | None, bounds: Sequence[float] | None) -> str:
    """A ratio with its interval, and whether that is wide."""
    if value is None or bounds is None:
        return times(value)
    noisy = ", noisy" if is_noisy((bounds[0], bounds[1])) else ""
    return f"{value:.2f}x ({bounds[0]:.2f} to {bounds[1]:.2f}{noisy})"


def _kernels(document: Document) -> Iterator[str]:
    """Ratios at every shape by workload, then the means."""
    workloads = grouped(document["rows"], "workload")
    shapes = list(dict.fromkeys(format_shape(row["shape"]) for row in document["rows"]))
    at = {name: {format_shape(row["shape"]): row for row in rows} for name, rows in workloads.items()}
    marked = [f"{shape}*" if _is_tuned(document["rows"], shape) else shape for shape in shapes]
    body = [
        [mark, *(times(against_best(rows[shape])) if shape in rows else "" for rows in at.values())]
        for shape, mark in zip(shapes, marked, strict=True)
    ]
    counted = {name: [row for row in rows if row["ours_s"] >= SHORTEST_S] for name, rows in workloads.items()}
    means = [with_interval(mean(against_best, rows), interval_of(rows)) for rows in counted.values()]
    yield from _table(["shape", *workloads], *body, ["**mean**", *means])
    summary = document["summary"]
    yield ""
    yield (
        f"All: {_headline_of_kernels(document)[1]}; held-out shapes {times(summary['geomean_vs_best_held_out'])}, the "
        f"least {times(summary['worst_vs_best'])}. Tuning took {summary['tuning_s']:.0f} s, {summary['trials']} trials."
    )


def _is_tuned(rows: Sequence[Row], shape: str) -> bool:
    return any(row["tuned_on"] for row in rows if format_shape(row["shape"]) == shape)


def _headline_of_kernels(document: Document) -> tuple[str, str, str]:
    summary, protocol = document["summary"], document["protocol"]
    value = with_interval(summary["geomean_vs_best"], summary["interval_vs_best"])
    return f"`{protocol['suite']}` against the fastest vendor routine", value, times(summary["worst_vs_best"])


def _operators(document: Document) -> Iterator[str]:
    body, trials = [], {item["workload"]: item["trials"] for item in document["protocol"]["tuning"]}
    for name, rows in grouped(document["rows"], "workload").items():
        best = with_interval(mean(against_best, rows), interval_of(rows))
        separate, share = mean(against("separate"), rows), mean(bandwidth, rows)
        least = times(min(ratios(rows), default=None))
        told = "" if share is None else f"{share:.2f}"
        body.append([name, str(trials[name]), best, least, times(separate), told])
    head = ["workload", "trials", "over PyTorch's fastest way", "least", "over two libraries", "of the stream's rate"]
    yield from _table(head, *body)


def _headline_of_operators(document: Document) -> tuple[str, str, str]:
    rows = document["rows"]
    count = len(grouped(rows, "operator"))
    value = with_interval(mean(against_best, rows), interval_of(rows))
    return f"{count} operators against PyTorch's fastest way", value, times(min(ratios(rows)))


def _theory(document: Document) -> Iterator[str]:
    body = []
    for name, figures in document["summary"].items():
        against = with_interval(figures.get("geomean_vs_best"), figures.get("interval_vs_best"))
        trials = sum(point[name]["trials"] for point in document["points"].values() if name in point)
        regret = "" if name == SEARCHED else f"{100 * figures['regret']:.1f} % ({100 * figures['worst']:.0f} %)"
        body.append([name, str(trials), against, times(figures.get("worst_vs_best")), regret])
    head = ["library", "trials", "over the fastest vendor routine", "least", "longer than the search's (worst shape)"]
    yield from _table(head, *body)
    if not sum(point[SEARCHED]["trials"] for point in document["points"].values()):
        yield ""
        yield "The search came to no trial in its time: its library is that of theory. What they differ by is noise."


def _headline_of_theory(document: Document) -> tuple[str, str, str]:
    name = "calibrated" if "calibrated" in document["summary"] else "typical"
    figures = document["summary"][name]
    value = with_interval(figures["geomean_vs_best"], figures["interval_vs_best"])
    what = f"`trials: 0` on `{document['protocol']['suite']}` against the fastest vendor routine"
    return what, value, times(figures["worst_vs_best"])


def _overhead(document: Document) -> Iterator[str]:
    summary = document["summary"]
    rows = [[f"a call from Python: {name}", f"{value:.0f} ns"] for name, value in summary["call_ns"].items()]
    choice = [f"choosing among {summary['kernels']} kernels", f"{summary['dispatch_ns']:.1f} ns"]
    yield from _table(["figure", "time"], choice, *rows)


def _headline_of_overhead(document: Document) -> tuple[str, str, str]:
    calls = document["summary"]["call_ns"]
    return "a call from Python with NumPy arrays", f"{calls['numpy'] / 1000:.2f} us", ""


def _service(document: Document) -> Iterator[str]:
    timed = [row for row in document["rows"] if "p99_s" in row]
    body = [
        [row["figure"], *(f"{1000 * row[f'p{p}_s']:.1f} ms" for p in (50, 90, 99)),
         "" if row["per_s"] is None else f"{row['per_s']:.0f}"]
        for row in timed
    ]  # fmt: skip
    yield from _table(["route", "p50", "p90", "p99", "requests/s"], *body)
    summary, loaded = document["summary"], document["protocol"]["loaded"]
    yield ""
    yield (
        f"{loaded['records'] + loaded['large']:,} records on {document['protocol']['database']['kind']}. One worker "
        f"stores {summary['inserts_per_s']:,.0f} records/s; 1,000 lookups in one call take "
        f"{summary['lookup_1000_s']:.2f} s, again {summary['lookup_1000_again_s']:.2f} s; "
        f"{document['protocol']['idle_streams']:,} idle event streams take {summary['idle_streams_cores']:.3f} cores."
    )


def _headline_of_service(document: Document) -> tuple[str, str, str]:
    kind = document["protocol"]["database"]["kind"]
    return f"`best` in a closed loop, {kind}", f"{document['summary']['best_per_s']:.0f} requests/s", ""


KINDS: Mapping[str, tuple[Callable[[Document], tuple[str, str, str]], Callable[[Document], Iterator[str]]]] = {
    "kernels": (_headline_of_kernels, _kernels), "operators": (_headline_of_operators, _operators),
    "theory": (_headline_of_theory, _theory), "overhead": (_headline_of_overhead, _overhead),
    "service": (_headline_of_service, _service),
}  # fmt: skip
"""What, the figure and the worst shape in a line, and the table; by the module that wrote the document."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    for path in options.documents:
        print("\n".join(tables(read(path))), end="\n\n")
    if options.documents:
        return 0
    before = PAGE.read_text()
    after = page_with_tables(before)
    if options.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
