"""The code of dense and matmul kernels is that of release 0.1, by structural hashes of the generated TensorIR.

``tests/data/release-0.1-tensorir.json`` holds, for eight workloads, the default kernel and five random ones: the values
of the space's axes in the order of ``axes``, and the hash. Kernels measured by that release mean the same only while
this holds. A change of the code that is meant takes another ``Matmul.version``, unless what was measured and
verified stays true (lanes of masked loads that must be zero, and were by chance, are set to zero since) or holds as a
bound (threads share odd batches evenly since, and take less time for them). ``pytest --update-golden`` of this file
then writes the hashes of the same kernels anew. Hashes are those of the TVM version that pyproject.toml pins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.space import MicroKernel

FILE = Path(__file__).parents[4] / "data" / "release-0.1-tensorir.json"
RELEASE: dict[str, Any] = json.loads(FILE.read_text())


def hashes_of(case: dict[str, Any]) -> list[str]:
    """The hash of each of a case's kernels, as this version generates it."""
    rule = Matmul()
    variables = [ShapeVar(name, range(1, 129)) for name in case["shape_vars"]]
    target = {"kind": "llvm", "mcpu": case["mcpu"], "num-cores": 2}
    task = SearchTask(
        case["op"], case["args"], variables, target=target, epilogue=case["epilogue"], threads=case["threads"]
    )
    hashes = []
    for values, _ in case["kernels"]:
        # Some are no part of the space any more: they spill.
        kernel = MicroKernel(rule.name, rule.version, tuple(zip(RELEASE["axes"], values, strict=True)))
        function = rule.emit(task, kernel, "kernel_0")
        hashes.append(f"{tvm_ffi.structural_hash(function, map_free_vars=True):016x}")
    return hashes


def _name(case: dict[str, Any]) -> str:
    return "-".join([case["op"], *case["epilogue"], case["mcpu"], f"{case['threads']}t"])


@pytest.mark.parametrize("case", RELEASE["cases"], ids=_name)
def test_the_tensorir_of_sampled_kernels_is_that_of_the_release(
    case: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    hashes = hashes_of(case)
    if request.config.getoption("--update-golden"):
        case["kernels"] = [[values, new] for (values, _), new in zip(case["kernels"], hashes, strict=True)]
        FILE.write_text(_text(RELEASE))
    assert hashes == [recorded for _, recorded in case["kernels"]]


def test_the_file_covers_every_contraction_of_the_catalogue() -> None:
    assert {case["op"] for case in RELEASE["cases"]} == {"dense", "matmul", "batch_matmul_nn", "batch_matmul_nt"}
    assert sum(len(case["kernels"]) for case in RELEASE["cases"]) == 48
    assert FILE.read_text() == _text(RELEASE)


def _text(data: dict[str, Any]) -> str:
    """One kernel a line."""
    cases = []
    for case in data["cases"]:
        head = json.dumps({name: value for name, value in case.items() if name != "kernels"})
        kernels = ",\n   ".join(map(json.dumps, case["kernels"]))
        cases.append(f' {head[:-1]}, "kernels": [\n   {kernels}]}}')
    return f'{{"axes": {json.dumps(data["axes"])},\n"cases": [\n' + ",\n".join(cases) + "\n]}\n"
