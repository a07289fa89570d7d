"""Every figure of docs/performance.md comes from a file of docs/measurements, and none stands in its prose."""

from __future__ import annotations

import re

import pytest

from benchmarks.harness.results import read
from docs.tools.performance import (
    BLOCK,
    MEASUREMENTS,
    PAGE,
    README,
    conditions,
    kind_of,
    main,
    page_with_tables,
    readme_with_table,
    times,
    with_interval,
)

TEXT = PAGE.read_text()
FILES = sorted(found[2] for found in BLOCK.findall(TEXT) if found[2])
ON_A_GPU = {
    "h100-products.json.gz", "h200-emitted.json.gz", "h100-libraries.json.gz", "h100-trials.json.gz",
    "h100-theory.json.gz", "h100-bundles.json.gz", "h100-searched.json.gz", "h100-models.json.gz",
}  # fmt: skip
"""What decision pages are about."""
FIGURE = re.compile(r"\d[\d.,]*\s?(?:x|us|ms|ns|GFLOP/s|GB/s|requests/s|records/s|trials/s)\b")


def test_the_tables_of_the_page_are_those_of_the_files() -> None:
    assert page_with_tables(TEXT) == TEXT, "python -m docs.tools.performance writes them anew"
    assert main(["--check"]) == 0


def test_the_readme_has_the_summary_of_the_page_and_no_other_figures() -> None:
    readme = README.read_text()
    (summary,) = BLOCK.finditer(readme)
    assert "docs/measurements/" in summary[0]
    assert readme_with_table(readme, TEXT) == readme, "python -m docs.tools.performance writes it anew"
    assert set(FIGURE.findall(BLOCK.sub("", readme))) <= {"1x"}
    other = TEXT.replace("| 1.14x ", "| 9.99x ")
    assert readme_with_table(readme, other) != readme


def test_prose_has_no_figures_of_its_own() -> None:
    prose = BLOCK.sub("", TEXT)
    allowed = {"1x", "20 us"}
    assert set(FIGURE.findall(prose)) <= allowed


@pytest.mark.parametrize("file", FILES)
def test_a_file_says_where_it_comes_from_and_is_small(file: str) -> None:
    protocol = read(MEASUREMENTS / file)["protocol"]
    assert {"cpu", "cores", "commit", "command", "date", "load_average", "versions"} <= set(protocol)
    assert protocol["command"].startswith("python -m benchmarks.")
    assert (MEASUREMENTS / file).stat().st_size <= 100_000


def test_every_measurement_of_a_benchmark_is_on_the_page() -> None:
    there = {path.name for path in MEASUREMENTS.iterdir() if ".json" in path.suffixes} - ON_A_GPU
    assert there == set(FILES)


def test_a_busy_machine_is_said_to_be_busy() -> None:
    protocol = {"cpu": "C", "cores": 2, "date": "2026-01-01", "commit": "abc", "command": "python -m benchmarks.x"}
    quiet, busy = ({"protocol": {**protocol, "load_average": [load, 0, 0]}} for load in (1.0, 3.0))
    assert kind_of(quiet) == "x"
    assert conditions(quiet)[0] == "C, 2 cores; quiet, load average 1.0. 2026-01-01, commit abc."
    assert "; busy, load average 3.0. " in conditions(busy)[0]
    busy["protocol"]["load_average_at_the_end"] = [0.5, 0, 0]
    assert "; busy, load average 3.0 and 0.5. " in conditions(busy)[0]


def test_a_wide_interval_is_called_noisy() -> None:
    assert with_interval(1.234, (1.2, 1.25)) == "1.23x (1.20 to 1.25)"
    assert with_interval(1.2, (1.0, 1.4)) == "1.20x (1.00 to 1.40, noisy)"
    assert (times(None), with_interval(1.2, None)) == ("", "1.20x")
