"""Tables from the documents of benchmarks, and those of docs/performance.md.

    python -m docs.tools.performance [--check]           # write the page's tables anew; or say which differ
    python -m docs.tools.performance RUN.json ...        # print those of any documents

A block of the page between ``<!-- measured FILE -->`` and ``<!-- end -->`` is made of that file of docs/measurements;
``<!-- summary -->`` begins the table of all files that the page shows; README.md has the same one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.rows import BEST, against_best
from benchmarks.compare.summary import SHORTEST_S, against, bandwidth, held_out, interval_of, mean, ratios
from benchmarks.harness.results import ROOT, Row, grouped, read
from benchmarks.policies import ORACLE
from benchmarks.theory import SEARCHED
from tuner.program.language.workload import format_shape

Document = Mapping[str, Any]
PAGE, README, MEASUREMENTS = ROOT / "docs" / "performance.md", ROOT / "README.md", ROOT / "docs" / "measurements"
BLOCK = re.compile(r"(<!-- (summary|measured (\S+)) -->\n).*?(<!-- end -->)", re.DOTALL)
BUSY = 1.0
"""Runnable processes to a core, beyond which a machine is called busy."""
NOISY = 0.1
"""An interval that is wider than this share of its middle is said to be noisy."""
RIVALS = {BEST: "the fastest vendor routine", "separate": "libraries of their pieces"}
"""What kernels are compared with, in words."""


def page_with_tables(text: str, folder: Path = MEASUREMENTS) -> str:
    """The page, its blocks made anew."""
    documents = {found[2]: read(folder / found[2]) for found in BLOCK.findall(text) if found[2]}

    def block(match: re.Match[str]) -> str:
        lines = summary_table(documents) if match[3] is None else tables(documents[match[3]], match[3])
        return "\n".join([match[1], *lines, "", match[4]])

    return BLOCK.sub(block, text)


def readme_with_table(readme: str, page: str) -> str:
    """The README with the summary of the page, its links from where the README is."""
    (summary,) = (found[0] for found in BLOCK.finditer(page) if found[3] is None)
    return BLOCK.sub(lambda _: summary.replace("](measurements/", "](docs/measurements/"), readme)


def summary_table(documents: Mapping[str, Document]) -> list[str]:
    """A line for each document: what, the figure, the worst shape, the machine, where from."""
    rows = [
        [
            *KINDS[kind_of(each)](each)[0],
            f"{cpu(each)}; {load(each)}",
            f"[{file.partition('.')[0]}](measurements/{file})",
        ]
        for file, each in documents.items()
    ]
    return _table(["what", "figure", "least", "machine", "measurement"], *rows)


def tables(document: Document, file: str = "") -> list[str]:
    """How it was measured, then what."""
    return [*conditions(document, file), "", *KINDS[kind_of(document)](document)[1]]


def kind_of(document: Document) -> str:
    """The module that wrote the document."""
    return str(document["protocol"]["command"].split()[2].removeprefix("benchmarks."))


def conditions(document: Document, file: str = "") -> list[str]:
    protocol = document["protocol"]
    source = f" [All of it](measurements/{file})." if file else ""
    machine = f"{cpu(document)}, {protocol['cores']} cores; {load(document)}"
    return [f"{machine}. {protocol['date'][:10]}, commit {protocol['commit']}.", f"`{protocol['command']}`.{source}"]


def cpu(document: Document) -> str:
    """What the CPU calls itself and, where the target is recorded, LLVM: virtual machines hide the model."""
    target = document["protocol"].get("target")
    name = target["mcpu"] if isinstance(target, Mapping) else (target or "").removeprefix("llvm-").partition("-")[0]
    return f"{document['protocol']['cpu']}{f' ({name})' if name else ''}"


def load(document: Document) -> str:
    """How busy the machine was, before and after where both were recorded."""
    protocol = document["protocol"]
    loads = [protocol[name][0] for name in ("load_average", "load_average_at_the_end") if name in protocol]
    state = "busy" if max(loads) > BUSY * protocol["cores"] else "quiet"
    return f"{state}, load average {' and '.join(f'{each:.1f}' for each in loads)}"


def _table(head: Sequence[str], *rows: Sequence[str]) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def with_interval(value: float | None, bounds: Sequence[float] | None) -> str:
    """A ratio with its interval, and whether that is wide."""
    if value is None or bounds is None:
        return times(value)
    low, high = bounds
    noisy = ", noisy" if high - low > NOISY * (low + high) / 2 else ""
    return f"{value:.2f}x ({low:.2f} to {high:.2f}{noisy})"


# -- by kind: what, the figure and the worst shape in a line; and the table -------------------------------------------
Told = tuple[tuple[str, str, str], list[str]]


def _kernels(document: Document) -> Told:
    """Ratios at every shape by workload, then the means; against the fastest vendor, or the only rival there was."""
    summary, workloads = document["summary"], grouped(document["rows"], "workload")
    rival = BEST if summary["geomean_vs_best"] is not None else next(iter(summary["geomean_vs"]))
    ratio = against(rival)
    at = {name: {format_shape(row["shape"]): row for row in rows} for name, rows in workloads.items()}
    shapes = {format_shape(row["shape"]): "*" if row["tuned_on"] else "" for row in document["rows"]}
    counted = {name: [row for row in rows if row["ours_s"] >= SHORTEST_S] for name, rows in workloads.items()}
    columns = [
        [name, *(times(ratio(rows[shape])) if shape in rows else "" for shape in shapes),
         with_interval(mean(ratio, counted[name]), interval_of(counted[name], rival))]
        for name, rows in at.items()
    ]  # fmt: skip
    lines = [["shape", *(shape + mark for shape, mark in shapes.items()), "**mean**"], *columns]
    # The longer side goes down the page.
    table = lines if len(workloads) > len(shapes) else [list(line) for line in zip(*lines, strict=True)]
    rows = [row for each in counted.values() for row in each]
    value = with_interval(mean(ratio, rows), interval_of(rows, rival))
    worst, unseen = times(min(ratios(rows, ratio))), times(mean(ratio, held_out(rows)))
    text = (
        f"All: {value}; held-out shapes {unseen}, the least {worst}. Tuning took "
        f"{summary['tuning_s']:.0f} s, {summary['trials']} trials."
    )
    headline = f"`{document['protocol']['suite']}` against {RIVALS.get(rival, rival)}", value, worst
    return headline, [*_table(*table), "", text]


def _operators(document: Document) -> Told:
    rows, trials = document["rows"], {item["workload"]: item["trials"] for item in document["protocol"]["tuning"]}

    def row(name: str, own: Sequence[Row]) -> list[str]:
        share = mean(bandwidth, own)
        told = [times(min(ratios(own), default=None)), times(mean(against("separate"), own))]
        return [name, str(trials[name]), best(own), *told, "" if share is None else f"{share:.2f}"]

    def best(own: Sequence[Row]) -> str:
        return with_interval(mean(against_best, own), interval_of(own))

    head = ["workload", "trials", "over PyTorch's fastest way", "least", "over two libraries", "of the stream's rate"]
    what = f"{len(grouped(rows, 'operator'))} operators against PyTorch's fastest way"
    table = _table(head, *(row(name, own) for name, own in grouped(rows, "workload").items()))
    return (what, best(rows), times(min(ratios(rows)))), table


def _theory(document: Document) -> Told:
    summary, points, told = document["summary"], document["points"].values(), {}
    for name, figures in summary.items():
        against = with_interval(figures.get("geomean_vs_best"), figures.get("interval_vs_best"))
        trials = sum(point[name]["trials"] for point in points if name in point)
        regret = "" if name == SEARCHED else f"{100 * figures['regret']:.1f} % ({100 * figures['worst']:.0f} %)"
        told[name] = [name, str(trials), against, times(figures.get("worst_vs_best")), regret]
    head = ["library", "trials", "over the fastest vendor routine", "least", "longer than the search's (worst shape)"]
    lines = _table(head, *told.values())
    if not sum(point[SEARCHED]["trials"] for point in points):
        lines += [
            "",
            "The search came to no trial in its time: its library is that of theory. What they differ by is noise.",
        ]
    _, _, value, least, _ = told[next(each for each in ("calibrated", "read", "typical") if each in summary)]
    what = f"`trials: 0` on `{document['protocol']['suite']}` against the fastest vendor routine"
    return (what, value, least), lines


def _policies(document: Document) -> Told:
    """What there is to gain over theory, and what the reference left of it, by workload; in the last of the budgets."""
    summary, by_workload = document["summary"], grouped(document["policies"], "workload")
    reference, label = summary["reference"], list(summary["to_gain"])[-1]
    to_gain, left = summary["to_gain"][label], summary["left_to_gain"][label]

    def trials(name: str, policy: str) -> str:
        own = [row["trials"] for row in by_workload[name] if row["policy"] == policy and row["budget"] == label]
        return f"{statistics.median(own):.0f}"

    head = ["workload", "theory behind a long search", f"{label} behind it", "trials", "of the long search"]
    rows = [
        [name, percent(to_gain[name]), percent(left[name]), trials(name, reference), trials(name, ORACLE)]
        for name in to_gain
    ]
    noise = f"Two timings of one library differ by {percent(summary['noise'][label])} in the mean."
    most = f"theory within {percent(max(to_gain.values()))}"
    what = f"what a search of {label} leaves of what a long one finds"
    return (what, percent(statistics.fmean(left.values())), most), [*_table(head, *rows), "", noise]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _models(document: Document) -> Told:
    rows, protocol, summary = document["rows"], document["protocol"], document["summary"]
    rivals = sorted({name for row in rows for name in row["rivals_s"]})
    batches = {row["shape"]["batch"] for row in rows}

    has_peak = all(row.get("peak_s") for row in rows)

    def row(each: Row) -> list[str]:
        shape = format_shape(each["shape"]) if len(batches) > 1 else str(each["shape"]["length"])
        # What there is to win where multiply-adds take all of the time.
        most = min(each["rivals_s"].values()) / each["peak_s"] if has_peak else None
        peak = [percent(each["peak_fraction"]), times(most)] if has_peak else []
        return [shape, f"{1e3 * each['ours_s']:.2f} ms", *(times(each["vs"].get(name)) for name in rivals), *peak]

    means = [*(times(summary["geomean_vs"].get(name)) for name in rivals), *(["", ""] if has_peak else [])]
    head = ["size", "ours", *(f"over {name}" for name in rivals), *(["of the peak", "at the peak"] if has_peak else [])]
    value, worst = times(summary["geomean_vs_best"]), times(summary["worst_vs_best"])
    how = "exported, " if protocol.get("exported") else ""
    what = f"{protocol['model']}, {how}threads: {protocol['threads']}, against the fastest of {', '.join(rivals)}"
    text = f"Against the fastest at each size: {value}, the least {worst}; {summary['trials']} trials."
    if shares := [row["bandwidth_fraction"] for row in rows if row.get("bandwidth_fraction")]:
        text += f" Of the rate at which as many threads read memory: {percent(min(shares))} to {percent(max(shares))}."
    return (what, value, worst), [*_table(head, *map(row, reversed(rows)), ["**mean**", "", *means]), "", text]


def _overhead(document: Document) -> Told:
    summary = document["summary"]
    rows = [[f"a call from Python: {name}", f"{value:.0f} ns"] for name, value in summary["call_ns"].items()]
    choice = [f"choosing among {summary['kernels']} kernels", f"{summary['dispatch_ns']:.1f} ns"]
    headline = "a call from Python with NumPy arrays", f"{summary['call_ns']['numpy'] / 1000:.2f} us", ""
    return headline, _table(["figure", "time"], choice, *rows)


def _service(document: Document) -> Told:
    summary, loaded = document["summary"], document["protocol"]["loaded"]
    kind = document["protocol"]["database"]["kind"]
    body = [
        [row["figure"], *(f"{1000 * row[f'p{p}_s']:.1f} ms" for p in (50, 90, 99)),
         "" if row["per_s"] is None else f"{row['per_s']:.0f}"]
        for row in document["rows"] if "p99_s" in row
    ]  # fmt: skip
    text = (
        f"{loaded['records'] + loaded['large']:,} records on {kind}. One worker stores {summary['inserts_per_s']:,.0f} "
        f"records/s; 1,000 lookups in one call take {summary['lookup_1000_s']:.2f} s, again "
        f"{summary['lookup_1000_again_s']:.2f} s; {document['protocol']['idle_streams']:,} idle event streams take "
        f"{summary['idle_streams_cores']:.3f} cores."
    )
    headline = f"`best` in a closed loop, {kind}", f"{summary['best_per_s']:.0f} requests/s", ""
    return headline, [*_table(["route", "p50", "p90", "p99", "requests/s"], *body), "", text]


KINDS: Mapping[str, Callable[[Document], Told]] = {
    "kernels": _kernels, "operators": _operators, "theory": _theory, "overhead": _overhead, "service": _service,
    "models": _models, "policies": _policies,
}  # fmt: skip
"""By the module that wrote the document."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    for path in options.documents:
        print("\n".join(tables(read(path))), end="\n\n")
    if options.documents:
        return 0
    before = PAGE.read_text(), README.read_text()
    page = page_with_tables(before[0])
    after = page, readme_with_table(before[1], page)
    if not options.check:
        PAGE.write_text(after[0])
        README.write_text(after[1])
    return int(options.check and before != after)


if __name__ == "__main__":
    sys.exit(main())
