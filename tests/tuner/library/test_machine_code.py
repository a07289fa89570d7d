"""Code runs wherever the features are that its target names, whichever vendor's CPU the target is."""

from __future__ import annotations

import re

import pytest

from tests.compiled import assembly
from tuner.library.machine_code import tvm_target
from tuner.program.build import workload_from_json
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.schedule import default_kernel

OF_ONE_VENDOR = re.compile(r"\b(extrq|insertq|vpcmov|vpperm|vprotd|vfmaddps|bextr\s+\$)")
"""Instructions of SSE4a, XOP, FMA4 and TBM."""


def target(mcpu: str) -> Target:
    return Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})


@pytest.mark.parametrize("mcpu", ["znver2", "znver4", "bdver4"])
def test_code_has_no_instructions_that_its_target_does_not_name(mcpu: str) -> None:
    workload = workload_from_json({
        "program": "out[m, n] = sum(k) cast(x[m, k], int32) * cast(w[n, k], int32)",
        "extents": {"m": 5, "n": 33, "k": 37}, "constant": ["w"],
        "dtype": {"x": "int8", "w": "int8", "out": "int32"},
    })  # fmt: skip
    task = SearchTask(workload, target=target(mcpu), threads=1)
    assert OF_ONE_VENDOR.search(assembly(task, default_kernel(task))) is None


@pytest.mark.parametrize(
    ("mcpu", "left_out"), [("znver4", {"-sse4a"}), ("bdver4", {"-sse4a", "-xop", "-fma4", "-tbm"})]
)
def test_features_of_one_vendor_are_left_out(mcpu: str, left_out: set[str]) -> None:
    assert left_out <= set(map(str, tvm_target(target(mcpu)).attrs["mattr"]))


def test_other_targets_are_left_alone() -> None:
    assert "mattr" not in tvm_target(target("sapphirerapids")).attrs
