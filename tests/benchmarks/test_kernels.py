"""The harness on a suite of its own: its document has the form that the contract gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.remote import THREAD_VARIABLES
from benchmarks.harness.suite import read_suite, suite_here, suite_parser
from tuner.errors import InvalidInput
from tuner.program.target import native

SUITES = Path(__file__).parents[2] / "benchmarks" / "suites"
TINY = """
name: tiny
shape_vars: {T: {min: 1, max: 16}}
tune: [{T: 4}, {T: 16, weight: 2.0}]
test: [{T: 3}, {T: 16}]
workloads:
  - {name: small, op: dense, args: {m: 4*T, n: 64, k: 48}, dtype: float32}
"""


@pytest.mark.parametrize("name", ["dietcode-dense", "dietcode-batch-matmul", "tokens-dense", "square", "chains"])
def test_suites_of_the_catalogues_operators_are_read(name: str) -> None:
    read, benchmarks = read_suite(SUITES / f"{name}.yaml", native(), 1)
    assert read == name
    for benchmark in benchmarks:
        seen = [benchmark.tuned_on(shape) for shape in benchmark.test]
        assert any(seen), "some test shapes are tuned on"
        assert not all(seen), "and some are not"


def test_a_wrong_workload_of_a_suite_is_named(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(TINY.replace("op: dense", "op: dens"))
    with pytest.raises(InvalidInput, match=r"workloads\[0\]\.op: 'dens' is not in the catalogue"):
        read_suite(suite, native(), 1)


def test_a_suite_names_any_operator_or_program(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        TINY.replace("4*T, n: 64, k: 48", "4*T, n: 64").replace("op: dense", "op: softmax")
        + '  - {name: scaled, program: "y[i, j] = x[i, j] * s[i]", extents: {i: T, j: 8}}\n'
    )
    softmax, scaled = read_suite(suite, native(), 1)[1]
    assert [benchmark.name for benchmark in (softmax, scaled)] == ["small", "scaled"]
    assert [tensor.name for tensor in scaled.task.workload.operands] == ["x", "s", "y"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TINY.replace("op: dense", "op: dens"), (), "workloads[0].op: 'dens' is not in the catalogue"),
        (TINY, ("--workload", "large"), "workload: tiny has none called 'large' (one of: small)"),
        (None, (), "No such file"),
    ],
    ids=["operator", "workload", "file"],
)
def test_a_suite_that_cannot_be_run_ends_the_command_with_the_reason(
    text: str | None, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in THREAD_VARIABLES:  # they are set for good; this one puts them back
        monkeypatch.setenv(name, "1")
    suite = tmp_path / "suite.yaml"
    if text is not None:
        suite.write_text(text)
    parsed = suite_parser(None).parse_args([str(suite), *options, "--json", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit) as ended:
        suite_here(parsed)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.soak
def test_the_document_has_rows_summary_and_protocol(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.yaml", tmp_path / "out.json"
    suite.write_text(TINY)
    command = [sys.executable, "-m", "benchmarks.kernels", str(suite), "--trials", "4", "--seconds", "30"]
    done = subprocess.run(
        [*command, "--against", "bucket,single,dietcode,bmm", "--json", str(out)],
        cwd=SUITES.parents[1], capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [row["shape"] for row in document["rows"]] == [{"T": 3}, {"T": 16}]
    for row in document["rows"]:
        assert set(row) >= {"workload", "shape", "tuned_on", "ours_s", "rivals_s"}
        assert set(row) >= {"flops", "peak_fraction", "max_abs_error"}
        assert set(row["rivals_s"]) == {"bucket", "single", "dietcode"}
        assert row["max_abs_error"] < 1e-4
    assert document["summary"]["trials"] <= 4
    assert document["summary"]["geomean_vs_best"] is None, "our own ablations are no vendors"
    (spent,) = document["protocol"]["rival_tuning"]
    assert (spent["rival"], spent["trials"]) == ("dietcode", document["summary"]["trials"])
    assert document["protocol"]["threads"] == 1
    assert list(document["protocol"]["skipped"]) == ["small/bmm"], "what does not apply is named"
