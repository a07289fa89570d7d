"""What every rule emits, and what theory says of it, is what tests/golden/rules holds: the net under changes of the
rules that must not change a kernel.

For each sample of the contract suite and each of three targets: the default kernel and up to 19 that were drawn at
random, by the values of the space's axes, each with the structural hash of its TensorIR; and a digest of the features
and of the estimates of all of them. A file for each rule:

    pytest tests/tuner/schedule/test_golden.py -m "soak or not soak" --update-golden

writes them anew: the kernels that they name where there are any, those of new samples otherwise. Hashes are those of
the TVM version that pyproject.toml pins.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from numpy.typing import NDArray

from tests.compiled import shortest
from tests.conftest import TESTS
from tests.contract.rule_samples import SAMPLES, sample_task
from tests.contract.test_rule import TARGETS
from tuner.program.job.task import SearchTask
from tuner.schedule import RULES, Rule, TirRule, emit, extents_of
from tuner.schedule.space import MicroKernel

Case = dict[str, Any]
Chosen = Callable[[Sequence[MicroKernel]], Sequence[MicroKernel]]

KERNELS, SHAPES = 20, 64
WRITTEN = [rule for rule in RULES if isinstance(rule, TirRule)]
QUICK: Sequence[Chosen] = (
    lambda kernels: kernels[:1],
    lambda kernels: [],
    lambda kernels: [shortest(kernels[1:] or kernels)],
    lambda kernels: [],
)
"""What `make test` emits of the kernels of a case, by turns: the default one, the shortest of the others, or none. That
is a kernel of each sample for one target or two; `make soak` emits all."""
THREADS = (1, 4, 2)
"""By target. How a kernel is divided among threads depends on how many there are."""
BITS = 16
"""Of a mantissa: the last ones of a logarithm are another machine's own."""
FOLDER = TESTS / "golden" / "rules"


@pytest.mark.parametrize("rule", WRITTEN, ids=lambda rule: rule.name)
def test_theory_and_the_first_kernels_are_the_golden_ones(rule: Rule, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("the test of every kernel writes the files")
    _compare(_golden(rule), dict(_cases(rule, _golden(rule), QUICK)))


@pytest.mark.soak
@pytest.mark.parametrize("rule", WRITTEN, ids=lambda rule: rule.name)
def test_every_kernel_is_the_golden_one(rule: Rule, request: pytest.FixtureRequest) -> None:
    found = dict(_cases(rule, _golden(rule), [list]))
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        _file(rule).write_text(json.dumps(found, indent=0) + "\n")
    _compare(_golden(rule), found)


def _compare(expected: Mapping[str, Case], found: Mapping[str, Case]) -> None:
    assert set(found) == set(expected)
    wrong = []
    for name, case in found.items():
        golden = expected[name]
        wrong += [f"{name}: {part}" for part in ("axes", "features", "estimates") if case[part] != golden[part]]
        hashes = case["kernels"].items()
        wrong += [f"{name}: {values}" for values, of_code in hashes if of_code != golden["kernels"][values]]
    assert not wrong, f"{len(wrong)} differ; if that is meant, see this file's first lines: " + "; ".join(wrong[:20])


def _cases(rule: Rule, known: Mapping[str, Case], emitted: Sequence[Chosen]) -> Iterator[tuple[str, Case]]:
    """By name each case as this version has it, with the code of these of its kernels: by turns."""
    turns = itertools.cycle(emitted)
    for title, sample in SAMPLES[rule.name].items():
        for target, threads in zip(TARGETS, THREADS, strict=True):
            name = f"{title}-{target.mcpu}-{threads}"
            yield name, _case(rule, sample_task(sample, target, threads), known.get(name), next(turns))


def _case(rule: Rule, task: SearchTask, known: Case | None, emitted: Chosen) -> Case:
    # An axis that came later is in no kernel's name, as it is in no stored one.
    every = rule.space(task).axes
    axes = [axis.name for axis in every if known is None or axis.name in known["axes"] or not axis.is_optional]
    kernels = _drawn(rule, task) if known is None else _named(rule, task, known)
    extents = extents_of(task.workload, task.shapes(SHAPES))
    return {
        "axes": axes,
        "features": _digest(rule.features(task, kernels, extents)),
        "estimates": _digest(rule.estimate_s(task, kernels, extents)),
        "kernels": {_values(rule, task, kernel, axes): _of_code(task, kernel) for kernel in emitted(kernels)},
    }


def _drawn(rule: Rule, task: SearchTask) -> list[MicroKernel]:
    """The default kernel and others; fewer than KERNELS of a small space."""
    space, rng = rule.space(task), np.random.default_rng(0)
    drawn = [rule.default_kernel(task), *(space.sample(rng) for _ in range(10 * KERNELS))]
    return list(dict.fromkeys(drawn))[:KERNELS]


def _named(rule: Rule, task: SearchTask, known: Case) -> list[MicroKernel]:
    """The kernels that a golden case names, which are legal still."""
    rows: Sequence[str] = list(known["kernels"])
    values = [dict(zip(known["axes"], map(int, row.split()), strict=True)) for row in rows]
    return [rule.space(task).kernel(each) for each in values]


def _values(rule: Rule, task: SearchTask, kernel: MicroKernel, axes: Sequence[str]) -> str:
    values = rule.space(task).values_of(kernel)
    return " ".join(str(values[axis]) for axis in axes)


def _of_code(task: SearchTask, kernel: MicroKernel) -> str:
    return f"{tvm_ffi.structural_hash(emit(task, kernel, 'kernel_0'), map_free_vars=True):016x}"


def _digest(values: NDArray[Any]) -> str:
    mantissas, exponents = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.round(mantissas * 2**BITS), exponents)
    return hashlib.sha256(repr(values.shape).encode() + rounded.tobytes()).hexdigest()[:16]


def _file(rule: Rule) -> Path:
    return FOLDER / f"{rule.name}.json"


def _golden(rule: Rule) -> dict[str, Case]:
    """By name the golden cases of a rule; none of a new one."""
    return json.loads(_file(rule).read_text()) if _file(rule).exists() else {}
