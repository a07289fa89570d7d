"""A device takes only tasks whose code it can run."""

from __future__ import annotations

import pytest

from tuner.measure import WrongDevice
from tuner.measure.runners.session import _check_caches, _check_target
from tuner.program.job.cache import CACHES
from tuner.program.job.task import SearchTask
from tuner.program.target import Target

X86, WIDE, OLD, ARM, DOTS = (
    Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    for mcpu in ("x86-64-v3", "x86-64-v4", "x86-64", "cortex-a57", "neoverse-n1")
)


def task_for(target: Target | None, cache: str = "warm") -> SearchTask:
    return SearchTask("matmul", {"m": 4, "n": 8, "k": 8}, target=target, cache=cache)


@pytest.mark.parametrize(("target", "device"), [(X86, X86), (X86, WIDE), (OLD, X86), (ARM, DOTS), (None, ARM)])
def test_a_device_takes_what_has_no_more_features_than_it(target: Target | None, device: Target) -> None:
    _check_target(task_for(target), device, "one")


@pytest.mark.parametrize(
    ("target", "device", "problem"),
    [
        (WIDE, X86, r"device one \(x86-64-v3\) lacks avx512bw, .*, avx512vl, which the target x86-64-v4 has"),
        (DOTS, ARM, r"device one \(cortex-a57\) lacks asimddp, asimdhp, which the target neoverse-n1 has"),
        # Without any feature to lack.
        (OLD, ARM, r"device one \(cortex-a57\) is of AArch64, the target x86-64 of x86-64"),
        (ARM, X86, r"device one \(x86-64-v3\) is of x86-64, the target cortex-a57 of AArch64"),
    ],
)  # fmt: skip
def test_a_device_refuses_what_it_cannot_run(target: Target, device: Target, problem: str) -> None:
    with pytest.raises(WrongDevice, match=f"^{problem}: tune for its own target, or name another device$"):
        _check_target(task_for(target), device, "one")


def test_a_device_that_knows_no_other_caches_times_warm_calls_alone() -> None:
    for cache in CACHES:
        _check_caches(task_for(X86, cache), CACHES, "one")
    _check_caches(task_for(X86), ["warm"], "one")
    with pytest.raises(WrongDevice, match="device one is of a release that times warm calls alone, the task asks for"):
        _check_caches(task_for(X86, "cold"), ["warm"], "one")
