"""k in parts that threads compute: right for every kind of operand and every shape, offered where it can matter, and
expected to help where it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems, computes_with_denormals, loaded, problems, shortest
from tests.contract.rule_samples import SAMPLES, sample_task
from tests.contract.test_rule import RULE
from tests.searching import EVOLUTION, measured_round
from tests.shares import chosen
from tests.tuner.schedule.product import test_amx
from tests.tuner.schedule.product.test_amx import unit  # noqa: F401
from tuner.library.codegen import compile_candidate
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import Rule, extents_of, is_bounded, rule_of, rules_of, space_of
from tuner.schedule.cut.rule import Cut
from tuner.schedule.product import parts
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.finalize import make_dispatcher
from tuner.search.observations import Measured
from tuner.search.policy import TheorySettings
from tuner.search.policy.evolutionary import EvolutionarySearch
from tuner.search.policy.theory import theory_set

SKYLAKE = Target.from_json({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8})
SPLIT = [(name, title) for name in ("x86_contraction", "x86_gathered", "x86_quantized") for title in SAMPLES[name]]
IN_TILES = ["split", "split, rounded", "split, of so many rows", "batched", "convolution", "int8 by int8"]
QUICK = [("x86_contraction", "dense-int8"), ("x86_gathered", "conv2d")]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of any length are offered, as small shapes have them."""
    monkeypatch.setattr(parts, "MIN_PART", 1)
    monkeypatch.setattr(parts, "FEW_TILES", 10**6)


def split_kernel(rule: Rule, task: SearchTask, seed: int = 0, of: int = 2, **values: int) -> MicroKernel:
    """The shortest of some kernels whose threads have parts of k."""
    space, random, found = rule.space(task), np.random.default_rng(seed), list[MicroKernel]()
    for _ in range(20_000):
        drawn = space.sample(random)
        kernel = space.legal({**space.values_of(drawn), "tb": 1, "tn": 1, **values, "split_k": of})
        if kernel is not None and all(kernel.get(axis) == value for axis, value in values.items()):
            found.append(kernel)
        if len(found) == 8:
            break
    return shortest(found)


def longer(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose k has a second part, in words of several elements, too."""
    where = "args" if "args" in sample else "extents"
    sizes = dict(sample[where])
    return {**sample, where: sizes | ({"k": sizes["k"] + 100} if isinstance(sizes.get("k"), int) else {})}


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("case", chosen(QUICK, SPLIT), ids="-".join)
def test_sums_of_parts_are_right_at_every_shape(case: tuple[str, str]) -> None:
    name, title = case
    task, rule = sample_task(longer(SAMPLES[name][title]), native(), 2), RULE[name]
    if "split_k" not in {axis.name for axis in rule.space(task).axes}:
        pytest.skip("a transposed convolution is cut into phases, which have no parts")
    hold_everywhere(task, split_kernel(rule, task))


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("title", chosen(["int4-two-scales"], ["int4", "int4-groups", "int4-two-scales"]))
def test_parts_are_cut_where_groups_of_weights_end(title: str) -> None:
    task, rule = sample_task(longer(SAMPLES["x86_quantized"][title]), native(), 2), RULE["x86_quantized"]
    hold_everywhere(task, split_kernel(rule, task, late=1, pack=0, kc=0))


def hold_everywhere(task: SearchTask, kernel: MicroKernel) -> None:
    call = loaded(compile_candidate(task, kernel).binary)

    @settings(max_examples=12, database=None, derandomize=True, deadline=None)
    @given(st.fixed_dictionaries({symbol: st.integers(0, 40) for symbol in sorted(task.workload.symbols)}))
    def hold(dims: dict[str, int]) -> None:
        assert problems(task, kernel, call, [dims]) == []

    hold()


@pytest.mark.usefixtures("offered", "unit")
@pytest.mark.parametrize("unit", ["emulated", "real"], indirect=True)
@pytest.mark.parametrize("name", chosen(["split, rounded"], IN_TILES))
def test_sums_of_parts_in_tiles_of_a_matrix_unit_are_right(name: str) -> None:
    task = test_amx.task_of(name, threads=2)
    depth = next(atom.depth for atom in test_amx.space_atoms(task) if atom.unit is not None)
    kernel = split_kernel(rules_of(task)[0], task, group=depth)
    assert built_problems(task, kernel, [dict.fromkeys(task.workload.symbols, size) for size in (1, 33)]) == []


def task_of(threads: int = 2, target: Target = SKYLAKE, rows: int = 4, **args: Any) -> SearchTask:
    return SearchTask(
        "dense", {"m": "T", **args}, (ShapeVar("T", range(1, rows + 1)),), target=target, threads=threads
    )  # fmt: skip


def choices(task: SearchTask) -> tuple[int, ...]:
    return next((axis.choices for axis in rules_of(task)[0].space(task).axes if axis.name == "split_k"), ())


def test_it_is_offered_where_results_may_be_few_and_k_long() -> None:
    amx, few = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 8}), {"n": 256, "k": 8192}
    for dtype in ("bfloat16", {"x": "bfloat16", "w": "bfloat16"}, {"x": "int8", "w": "uint8", "out": "int32"}):
        for rows in ("T", 1, 16, 64, 128):
            data = {"op": "dense", "args": {"m": rows, **few}, "dtype": dtype}
            variables = (ShapeVar("T", range(1, 65)),) if rows == "T" else ()
            task = SearchTask(workload_from_json(data), shape_vars=variables, target=amx, threads=8)
            assert choices(task) == (1, 2, 4, 8)
    assert choices(task_of(n=256, k=8192)) == (1, 2)
    assert choices(task_of(threads=8, n=256, k=8192)) == (1, 2, 4, 8)
    assert choices(task_of(threads=1, n=256, k=8192)) == ()
    assert choices(task_of(n=4096, k=8192)) == ()
    assert choices(task_of(n=256, k=768)) == ()
    # Sums of parts would take more than what is allowed.
    assert choices(task_of(rows=500_000, n=64, k=8192)) == ()


def test_sums_of_parts_are_counted() -> None:
    task = task_of(threads=8, n=250, k=8192)
    assert rules_of(task)[0].workspace_bytes(task) == 8 * 4 * 256 * 4
    assert rules_of(task.for_threads(1))[0].workspace_bytes(task.for_threads(1)) == 0


def test_a_kernel_without_the_axis_is_that_of_one_part() -> None:
    task = task_of(n=256, k=8192)
    space = rules_of(task)[0].space(task)
    kernel = rules_of(task)[0].default_kernel(task)
    assert "split_k" not in dict(kernel.values)
    assert space.values_of(kernel)["split_k"] == 1
    assert space.kernel({**dict(kernel.values), "split_k": 1}) == kernel


def test_what_a_workspace_holds_is_not_computed_with() -> None:
    task = task_of(target=native(), n=40, k=1100)
    kernel = split_kernel(rules_of(task)[0], task)
    assert not computes_with_denormals(task, kernel, dict.fromkeys(task.workload.symbols, 3))


def test_sums_do_not_depend_on_which_thread_was_first() -> None:
    task = task_of(target=native(), rows=8, n=40, k=3000)
    kernel = split_kernel(rules_of(task)[0], task)
    call = loaded(compile_candidate(task, kernel).binary)
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 3000), np.float32)
    layout = rules_of(task)[0].layouts(task, kernel)["w"]
    w, results = layout.pack(random.standard_normal((40, 3000), np.float32)), []
    for _ in range(20):
        out = np.full((5, 40), np.nan, np.float32)
        call([x, w, out])
        results.append(out)
    assert all(np.array_equal(results[0], each) for each in results)


def estimate(task: SearchTask, kernel: MicroKernel, rows: int) -> float:
    shape = {task.shape_vars[0].name: rows}
    return float(rules_of(task)[0].estimate_s(task, [kernel], extents_of(task.workload, [shape]))[0, 0])


def test_theory_expects_more_of_parts_where_one_thread_would_do_all() -> None:
    # One panel, read in order: the second thread has nothing to do.
    few = task_of(n=16, k=2**17)
    space, rule = rules_of(few)[0].space(few), rules_of(few)[0]
    whole = space.legal({**space.values_of(rule.default_kernel(few)), "pack": 0, "nv": 1, "mr": 4})
    assert whole is not None
    split = space.legal({**dict(whole.values), "tn": 1, "split_k": 2})
    assert split is not None
    assert estimate(few, split, 4) < 0.7 * estimate(few, whole, 4)
    # Two shares of the columns are as even as two parts of k, and have nothing to add up.
    many = task_of(rows=256, n=512, k=1024)
    space, rule = rules_of(many)[0].space(many), rules_of(many)[0]
    whole = space.legal({**space.values_of(rule.default_kernel(many)), "nv": 2})
    assert whole is not None
    split = space.legal({**dict(whole.values), "tn": 1, "split_k": 2})
    assert split is not None
    assert estimate(many, split, 256) > estimate(many, whole, 256)


def test_theory_alone_has_threads_share_k_where_there_is_one_panel() -> None:
    task = task_of(n=48, k=8192)
    model = PairCostModel(task)
    best = theory_set(task, space_of(task), model, np.random.default_rng(0), TheorySettings(samples=200))
    assert {kernel.get("split_k") for kernel in best} == {2}


def test_a_search_finds_them_where_a_device_is_faster_so_than_theory_expects() -> None:
    """Two shares of 256 columns are as even as two parts of k: this device alone can tell."""
    task = task_of(n=256, k=8192)
    policy = EvolutionarySearch(task, space_of(task), model := PairCostModel(task), 0, EVOLUTION)

    def time(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        expected = rule_of(kernel).estimate_s(task, [kernel], extents_of(task.workload, [shape]))
        return float(expected[0, 0]) * (0.8 if kernel.get("split_k") > 1 else 1.0)

    suggested = [each for _ in range(3) for each in measured_round(policy, model, 16, time, task)]
    pairs = ((each.kernel, instance) for each in suggested for instance in each.instances)
    fastest, _ = min(pairs, key=lambda pair: time(task, pair[0], pair[1].shape))
    assert fastest.get("split_k") == 2


def test_a_kernel_with_parts_of_k_is_not_the_safe_one(offered: None) -> None:
    """Its sums are as large as the output, which outside of the range has any size."""
    rows = ShapeVar("T", range(1, 33))
    task = SearchTask("dense", {"m": rows, "n": 45, "k": 1100}, (rows,), target=native(), threads=2)
    rule = rules_of(task)[0]
    split = split_kernel(rule, task)
    for kernels in ([split, rule.default_kernel(task)], [split]):
        found = make_dispatcher(task, PairCostModel(task), Measured(), kernels)
        assert found.default_kernel == len(kernels) - 1


def test_a_cut_program_is_bounded_where_all_of_its_pieces_are() -> None:
    rows, product = ShapeVar("T", range(1, 9)), "{0}[m, n{0}] = sum(k{0}) {1}[m, k{0}] * w{0}[n{0}, k{0}]"
    program = "; ".join(product.format(*names) for names in ("ax", "ba", "cb"))
    sizes = {f"{axis}{stage}": 32 for stage in "abc" for axis in "nk"}
    data = {"program": program, "extents": {"m": "T", **sizes}, "constant": ["wa", "wb", "wc"]}
    task = SearchTask(workload_from_json(data), shape_vars=(rows,), target=native(), threads=2)
    cuts = [rule for rule in rules_of(task) if isinstance(rule, Cut)]
    cut = next(rule for rule in cuts if isinstance(rule.pieces[-1].rule, Matmul))
    kernel, last = cut.default_kernel(task), len(cut.pieces) - 1
    assert is_bounded(kernel)
    assert not is_bounded(replace(kernel, values=(*kernel.values, (f"{last}.split_k", 2))))
