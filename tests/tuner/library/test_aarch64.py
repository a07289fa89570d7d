"""Code for AArch64, cross-compiled: what LLVM makes of the inner loop, and what it computes on an emulated CPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests import measuring
from tests.compiled import assembly, innermost_loops, problems
from tests.contract.rule_samples import SAMPLES, sample_task
from tests.emulated import caller, emulated
from tests.shares import chosen, every
from tuner.errors import ShapewrightError
from tuner.library.codegen import compile_candidate
from tuner.library.machine_code import linker_for
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.schedule import default_kernel, rules_of
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(1, 65))
TARGETS = {
    mcpu: Target.from_json({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "num-cores": 2})
    for mcpu in ("cortex-a57", "neoverse-n1", "neoverse-v2")
}
DENSE = SearchTask("dense", {"m": T, "n": 256, "k": 256}, (T,), target=TARGETS["neoverse-n1"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return caller(tmp_path_factory.mktemp("emulated"))


# -- machine code -----------------------------------------------------------------------------------------------------
def kernels_of_dense() -> list[MicroKernel]:
    """The default, and random ones with enough accumulators that a spill would be near."""
    space = rules_of(DENSE)[0].space(DENSE)
    drawn = (space.sample(np.random.default_rng(seed)) for seed in range(100))
    large = [kernel for kernel in drawn if kernel["mr"] * kernel["nv"] >= 20]
    return [default_kernel(DENSE), *large[:3]]


@pytest.mark.parametrize("kernel", every(2, kernels_of_dense()), ids=str)
def test_the_inner_loop_of_a_dense_kernel_multiplies_and_adds_in_registers(kernel: MicroKernel) -> None:
    sums = kernel["mr"] * kernel["nv"]
    loops = [loop for loop in innermost_loops(assembly(DENSE, kernel)) if any("fmla" in line for line in loop)]
    whole = 0
    for loop in loops:
        fused = [re.split(r"[\s,]+", line)[1:] for line in loop if line.startswith("fmla")]
        assert all(operand.endswith((".4s", ".s[0]")) for operands in fused for operand in operands)
        # A register that waits in memory would stand for several accumulators.
        whole += len({total for total, *_ in fused}) == sums and len(fused) % sums == 0
        # Nothing is stored, neither to the stack nor elsewhere, and nothing is loaded from the stack.
        assert [line for line in loop if line.startswith("st") or "[sp" in line or "fmul" in line] == []
    assert whole, "in no loop is there a register for each accumulator"


def test_a_loop_that_spills_would_be_seen() -> None:
    inner = ["ldr\tq1, [sp, #16]", "str\tq1, [sp]", "b.ne\t.LBB0_2"]
    text = "\n\t".join([".LBB0_1:", "ldr\tq0, [x1]\n.LBB0_2:", *inner, "b.ne\t.LBB0_1"])
    assert list(innermost_loops(text)) == [inner]


def test_without_a_linker_for_it_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShapewrightError, match=r"no linker for AArch64.*apt-get install binutils-aarch64-linux-gnu"):
        compile_candidate(DENSE, default_kernel(DENSE))
    (tmp_path / "ld.lld").touch(mode=0o755)
    assert linker_for("aarch64") == str(tmp_path / "ld.lld")


# -- on an emulated CPU -----------------------------------------------------------------------------------------------
EMULATED = [
    ("neoverse-n1", "x86_contraction", "dense-epilogue"),
    ("neoverse-n1", "x86_contraction", "matmul"),
    ("neoverse-n1", "x86_contraction", "dense-bfloat16"),
    ("neoverse-n1", "x86_contraction", "dense-int8"),
    ("neoverse-v2", "x86_contraction", "dense-int8"),
    ("neoverse-n1", "row_reduction", "softmax"),
    ("neoverse-v2", "row_reduction", "layer_norm"),
    ("neoverse-n1", "x86_gathered", "conv2d"),
    ("neoverse-n1", "x86_winograd", "conv2d"),
    ("cortex-a57", "attention", "causal"),
    ("cortex-a57", "fallback", "dense-int8"),
]


SHORT = (EMULATED[0], EMULATED[5])


@pytest.mark.parametrize("case", chosen(SHORT, EMULATED), ids="-".join)
def test_kernels_compute_what_the_reference_does(case: tuple[str, str, str], program: Path, tmp_path: Path) -> None:
    mcpu, rule, sample = case
    task = sample_task(SAMPLES[rule][sample], TARGETS[mcpu], threads=1)
    (own, *_) = (each for each in rules_of(task) if each.name == rule)
    for kernel in (own.default_kernel(task), own.space(task).sample(np.random.default_rng(0))):
        call = emulated(compile_candidate(task, kernel).binary, program, tmp_path)
        assert problems(task, kernel, call, ragged_dims(task.workload)) == [], str(kernel)


def test_threads_share_the_work(program: Path, tmp_path: Path) -> None:
    task = sample_task(SAMPLES["x86_contraction"]["dense-epilogue"], TARGETS["neoverse-n1"], threads=2)
    kernel = default_kernel(task)
    call = emulated(compile_candidate(task, kernel).binary, program, tmp_path)
    assert problems(task, kernel, call, [{"m": 1}, {"m": 37}]) == []


def test_what_is_written_past_the_end_is_seen(program: Path, tmp_path: Path) -> None:
    binary = measuring.program(measuring.PAST_THE_END, "aarch64-linux-gnu-gcc")
    call = emulated(binary, program, tmp_path)
    (problem,) = problems(measuring.TASK, measuring.kernel(), call, [{"m": size} for size in (4, 5, 8)])
    assert "past the end of its output" in problem
    assert "m=5" in problem


def test_a_call_with_wrong_tensors_fails(program: Path, tmp_path: Path) -> None:
    task = SearchTask("matmul", {"m": T, "n": 10, "k": 4}, (T,), target=TARGETS["neoverse-n1"])
    call = emulated(compile_candidate(task, default_kernel(task)).binary, program, tmp_path)
    with pytest.raises(RuntimeError, match=r"ended with 1: .*Mismatched"):
        call([np.zeros(shape, np.float32) for shape in ((3, 4), (4, 10), (3, 9))])
