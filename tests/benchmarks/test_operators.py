"""The benchmark of operators: its cases, its options, and its document on a short search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.suite import FILE, KNOWN, OPERATORS, PUBLISHED, benchmarks_of, names_of
from benchmarks.operators import contenders_of, some_of
from tests.docs.promised import listed, section
from tuner.errors import InvalidInput
from tuner.program.target import native

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", names_of(["default"]))
def test_rows_are_short_and_long(name: str) -> None:
    benchmarks = benchmarks_of(name, native(), 1)
    sizes = [[str(dim) for dim in benchmark.task.workload.inputs[0].dims] for benchmark in benchmarks]
    assert sizes == [["m", "768"], ["m", "4096"]]
    for benchmark in benchmarks:
        assert len(benchmark.task.instances) == 8


@pytest.mark.parametrize("name", names_of(["all"]))
def test_every_operator_has_six_shapes_half_of_them_held_out(name: str) -> None:
    benchmarks = benchmarks_of(name, native(), 1)
    seen = [benchmark.tuned_on(shape) for benchmark in benchmarks for shape in benchmark.test]
    assert len(seen) >= 6
    assert 0 < sum(seen) <= len(seen) / 2
    assert {benchmark.operator for benchmark in benchmarks} == {name}


def test_all_is_every_promised_operator_every_program_and_the_fused_ones() -> None:
    fused = names_of(["fused"])
    assert names_of(["softmax", "fused", "softmax"]) == ["softmax", *fused]
    assert len(fused) == 4
    assert set(names_of(["all"])) == set(OPERATORS) > {*listed(section("A job")), *fused, "resnet50"}


def test_published_tables_are_families_of_their_own() -> None:
    families = PUBLISHED["families"]
    assert set(families) == {"tilelink", "neoflow", "flextensor", "fast_dlight"}
    assert names_of(["neoflow", "tilelink"]) == [*families["neoflow"], *families["tilelink"]]
    assert len(names_of(["flextensor"])) == 12
    assert names_of(["published"]) == names_of(list(families))
    assert set(names_of(["published"])) == {*PUBLISHED["operators"], *families["flextensor"]} <= set(KNOWN)
    assert not set(PUBLISHED["operators"]) & set(OPERATORS)
    assert not set(PUBLISHED["values"]) & set(FILE["values"])


@pytest.mark.parametrize("name", PUBLISHED["operators"])
def test_published_operators_fit_24_gigabytes_and_half_of_their_shapes_are_held_out(name: str) -> None:
    for benchmark in benchmarks_of(name, native(), 1):
        seen = [benchmark.tuned_on(shape) for shape in benchmark.test]
        assert 0 < sum(seen) <= len(seen) / 2
        workload, (*_, largest) = benchmark.task.workload, benchmark.task.instances
        # As often as there are contenders, each with a packed copy.
        assert sum(tensor.bytes(workload.dims(largest.shape)) for tensor in workload.operands) < 0.75 * 2**30


def test_an_mlp_has_the_product_to_its_intermediate_size_and_the_one_back() -> None:
    layers = KNOWN["tilelink_mlp"]["layers"] | KNOWN["tilelink_moe"]["layers"]
    for name in [name for name in layers if name.endswith("_up")]:
        up, down = layers[name], layers[name.replace("_up", "_down")]
        assert up == {**down, "n": down["k"], "k": down["n"]}


def test_a_layer_of_resnet_is_named_by_itself() -> None:
    (layer,) = benchmarks_of("conv5_3x3", native(), 1)
    assert (layer.name, layer.operator) == ("conv5_3x3", "resnet50")
    assert len(benchmarks_of("resnet50", native(), 1)) == 23


def test_shapes_beyond_an_operators_range_are_left_out() -> None:
    timed = [benchmark.test for benchmark in benchmarks_of("thin_dense", native(), 1, (3, 64))]
    assert timed == [({"T": 3},)] * 3
    (own, *_) = benchmarks_of("thin_dense", native(), 1, (64,))
    assert own.test == ({"T": 1}, {"T": 2}, {"T": 3}, {"T": 4})


def test_attention_is_short_and_long_for_few_and_many_heads_causal_and_not() -> None:
    names = [benchmark.name for benchmark in benchmarks_of("attention", native(), 1)]
    few, many = "attention [1, 12, 4*T, 4*T, 64", "attention [16, 12, T, T, 64"
    assert names == [f"{few}]", f"{few}, causal]", f"{many}]", f"{many}, causal]"]


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match="'gelu' is no operator, program or family"):
        benchmarks_of("gelu", native(), 1)


def test_rivals_are_chosen_by_name() -> None:
    assert contenders_of(["torch", "dlight"]) == ["torch", "mkl", "onednn", "dlight"]
    with pytest.raises(InvalidInput, match=r"against: 'tvm' is no rival \(any of: torch, compile, dlight"):
        contenders_of(["tvm"])


def test_metaschedule_gets_two_shapes_from_within() -> None:
    shapes = [{"T": size} for size in range(8)]
    assert some_of(shapes) == [{"T": 2}, {"T": 6}]
    assert some_of(shapes[:1]) == [{"T": 0}]


@pytest.mark.soak
def test_the_document_has_rows_summary_and_protocol(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.operators", "--op", "bilinear", "--trials", "0"]
    command += ["--shapes", "3,5", "--against", "torch,dlight", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert [(row["shape"]["T"], row["tuned_on"]) for row in document["rows"]] == [(3, False), (5, True)]
    for each in document["rows"]:
        assert set(each) >= {"workload", "shape", "tuned_on", "ours_s", "rivals_s", "flops", "bytes", "stream_s", "vs"}
        assert set(each["rivals_s"]) == {"torch"}
        assert set(each["vs"]) == {"torch", "best_pytorch"}
        assert each["max_abs_error"] < 1e-3
    assert document["summary"]["geomean_vs"]["torch"] > 0
    assert set(document["not_applicable"]) == {"mkl", "onednn", "dlight"}
    assert "neither GEMV nor Reduction" in document["not_applicable"]["dlight"]["bilinear"]
    assert document["by_seed"] == {"0": document["summary"]}
    assert json.loads(done.stdout) == document["summary"]


def test_an_unknown_operator_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.operators", "--op", "gelu", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("op: 'gelu' is no operator")


def test_no_workload_of_an_operator_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.operators", "--sizes", "0", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "argument --sizes: '0' is no number of 1 or more" in done.stderr
