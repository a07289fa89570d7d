"""Code runs wherever the features are that its target names, whatever else the target's CPU has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.compiled import assembly, small_kernel
from tests.contract.rule_samples import SAMPLES, sample_task
from tuner.library.codegen import compile_candidate
from tuner.library.machine_code import tvm_target
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.target import Target, native
from tuner.schedule import default_kernel

UNNAMED = re.compile(
    r"\b(extrq|insertq|vpcmov|vpperm|vprotd|vfmaddps|bextr\s+\$)|\{nf\}|\{vex\}|%r(1[6-9]|2\d|3[01])\b"
)
"""Instructions of SSE4a, XOP, FMA4 and TBM, of AVX-VNNI, and of APX."""


def target(mcpu: str) -> Target:
    return Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})


@pytest.mark.parametrize("mcpu", ["znver2", "znver4", "bdver4", "alderlake", "novalake", "diamondrapids"])
def test_code_has_no_instructions_that_its_target_does_not_name(mcpu: str) -> None:
    workload = workload_from_json({
        "program": "out[m, n] = sum(k) cast(x[m, k], int32) * cast(w[n, k], int32)",
        "extents": {"m": 5, "n": 33, "k": 37}, "constant": ["w"],
        "dtype": {"x": "int8", "w": "int8", "out": "int32"},
    })  # fmt: skip
    task = SearchTask(workload, target=target(mcpu), threads=1)
    assert UNNAMED.search(assembly(task, default_kernel(task))) is None


@pytest.mark.parametrize(
    ("mcpu", "left_out"),
    [
        ("znver4", {"-sse4a"}),
        ("bdver4", {"-sse4a", "-xop", "-fma4", "-tbm"}),
        ("alderlake", {"-avxvnni"}),
        ("novalake", {"-egpr", "-nf", "-avxvnni", "-avx10.1"}),
        ("ampere1b", {"-cssc"}),
    ],
)
def test_features_that_no_target_names_are_left_out(mcpu: str, left_out: set[str]) -> None:
    assert left_out <= set(map(str, tvm_target(target(mcpu)).attrs["mattr"]))


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "icelake-server", "neoverse-n1"])
def test_other_targets_are_left_alone(mcpu: str) -> None:
    assert "mattr" not in tvm_target(target(mcpu)).attrs


def test_a_library_needs_c_and_nothing_of_c_plus_plus(tmp_path: Path) -> None:
    """And calls of it the functions that were there when it was linked."""
    task = sample_task(SAMPLES["row_reduction"]["softmax-float64"], native(), 1)
    (tmp_path / "library.so").write_bytes(compile_candidate(task, small_kernel(task)).binary)
    read = ["objdump", "--private-headers", "--dynamic-syms", "library.so"]
    said = subprocess.run(read, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert {"libm.so.6"} <= set(re.findall(r"NEEDED +(\S+)", said)) <= {"libm.so.6", "libc.so.6"}
    assert re.search(r"\*UND\*.*GLIBC_[\d.]+\)? +exp$", said, re.MULTILINE)
