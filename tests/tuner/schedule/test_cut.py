"""Programs that no rule takes whole are cut into pieces that rules take. What kernels of pieces compute is among the
contract of rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.contract.rule_samples import CUT_SAMPLES, sample_task
from tests.shares import every
from tuner.errors import IllegalKernel
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.notation import MAX_STAGES
from tuner.program.language.part import part_of
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.schedule import NoMatch, extents_of, is_current, rule_of, rules_of, space_of
from tuner.schedule.cut import ways
from tuner.schedule.cut.rule import Cut, Piece
from tuner.schedule.described import explained
from tuner.schedule.rule import TirRule
from tuner.schedule.serial import Serial
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy.theory import TheorySettings, theory_set

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
CHAIN = (
    "a[m, f] = sum(k) x[m, k] * w1[f, k]\nb[m, g] = sum(f) a[m, f] * w2[g, f]\nout[m, n] = sum(g) b[m, g] * w3[n, g]"
)
SIZES = {"m": "T", "f": 96, "k": 64, "g": 80, "n": 112}


def program(text: str, extents: dict[str, Any], **fields: Any) -> SearchTask:
    workload = workload_from_json({"program": text, "extents": extents, **fields})
    variables = tuple(ShapeVar(name, range(1, 129)) for name in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=TARGET)


def cuts(task: SearchTask) -> list[Cut]:
    return [rule for rule in rules_of(task) if isinstance(rule, Cut)]


def rules(cut: Cut) -> list[str]:
    return [piece.rule.name for piece in cut.pieces]


# -- ways --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("title", CUT_SAMPLES)
def test_nothing_that_rules_take_in_pieces_runs_in_the_fallback(title: str) -> None:
    task = sample_task(CUT_SAMPLES[title], TARGET, 1)
    assert cuts(task) == list(rules_of(task))
    assert "fallback" not in [name for cut in cuts(task) for name in rules(cut)]


def test_pieces_are_as_large_as_rules_take_them() -> None:
    (best, *_) = cuts(sample_task(CUT_SAMPLES["softmax"], TARGET, 1))
    assert best.name == "cut:x86_contraction/0,row_reduction/1.2.3.4"


def test_a_chain_of_any_length_is_cut_with_and_without_fusion() -> None:
    fused = {tuple(rules(cut)) for cut in cuts(program(CHAIN, SIZES, constant=["w1", "w2", "w3"]))}
    assert {("x86_contraction", "x86_chain"), ("x86_chain", "x86_contraction")} <= fused


def layers(count: int) -> SearchTask:
    """Products, elementwise stages and row reductions in turns: four stages for each layer."""
    lines, before = list[str](), "x"
    for layer in range(count):
        after = f"d{layer}" if layer < count - 1 else "out"
        lines += [
            f"a{layer}[m, k] = sum(j) {before}[m, j] * w{layer}[k, j]",
            f"b{layer}[m, k] = exp(a{layer}[m, k]) + x[m, k]",
            f"c{layer}[m] = sum(k) b{layer}[m, k]",
            f"{after}[m, k] = b{layer}[m, k] / c{layer}[m]",
        ]
        before = after
    sizes = {"m": "T", "k": 64, "j": 64}
    return program("\n".join(lines), sizes, constant=[f"w{layer}" for layer in range(count)])


def test_the_longest_program_is_cut_with_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    priced, seconds = list[tuple[str, tuple[int, ...]]](), ways._Costs._seconds

    def counted(costs: ways._Costs, rule: TirRule, stages: tuple[int, ...]) -> NDArray[np.float64]:
        priced.append((rule.name, stages))
        return seconds(costs, rule, stages)

    monkeypatch.setattr(ways._Costs, "_seconds", counted)
    stages = MAX_STAGES
    best, *_ = cuts(layers(stages // 4))
    orders, rules_at_once = 2, 2
    assert len(priced) <= (orders * rules_at_once * ways.MAX_STAGES_OF_PIECE + 1) * stages
    assert len(priced) == len(set(priced))
    short, *_ = cuts(layers(2))
    assert set(rules(best)) == set(rules(short))
    assert len(best.pieces) == stages // 8 * len(short.pieces)


def test_what_a_rule_takes_whole_is_not_cut() -> None:
    two = "a[m, f] = sum(k) x[m, k] * w1[f, k]\nout[m, n] = sum(f) a[m, f] * w2[n, f]"
    assert not cuts(program(two, {"m": "T", "f": 96, "k": 64, "n": 80}, constant=["w1", "w2"]))


def test_a_program_that_a_rule_takes_whole_is_cut_where_its_pieces_have_faster_instructions() -> None:
    """The rule of feed-forward layers has tiles of AMX for constant weights alone; single products for any."""
    two = (
        "a[m, f] = sum(k) x[m, k] * w1[f, k]\nb[m, f] = cast(max(a[m, f], 0), bfloat16)\n"
        "out[m, n] = sum(f) b[m, f] * w2[n, f]"
    )
    sizes = {"m": "T", "f": 512, "k": 512, "n": 512}
    assert not cuts(program(two, sizes, constant=["w1", "w2"], dtype="bfloat16"))
    task = program(two, sizes, constant=[], dtype="bfloat16")
    assert rules_of(task)[0].name == "x86_chain"
    assert [rules(cut) for cut in cuts(task)] == [["x86_contraction", "x86_contraction"]]


def test_what_only_the_fallback_takes_is_not_cut() -> None:
    two = "a[m, f] = sum(k) x[m, k] * w[f, k]\nout[m, n] = sum(f) a[m, f] * v[n, f]"
    (rule,) = rules_of(program(two, {"m": "T", "f": 96, "k": 64, "n": 80}, dtype="float64"))
    assert rule.name == "fallback"


def test_the_order_of_independent_stages_does_not_matter() -> None:
    """Two normalised products, written one stage of each after the other."""
    text = (
        "a[m, n] = sum(k) x[m, k] * w[n, k]\nb[m, n] = sum(k) y[m, k] * v[n, k]\n"
        "s[m] = max(n) a[m, n]\nt[m] = max(n) b[m, n]\nc[m, n] = a[m, n] - s[m]\nd[m, n] = b[m, n] - t[m]"
    )
    (best, *_) = cuts(program(text, {"m": "T", "n": 96, "k": 64}, constant=["w", "v"]))
    assert sorted(rules(best)) == ["row_reduction", "row_reduction", "x86_contraction", "x86_contraction"]


def test_the_ways_do_not_depend_on_what_was_measured_of_a_device() -> None:
    task = program(CHAIN, SIZES, constant=["w1", "w2", "w3"])
    assert cuts(task.at_rates(replace(task.rates, l2_bytes=0.1, memory_bytes=0.01))) == cuts(task)


# -- parts -------------------------------------------------------------------------------------------------------------
def test_a_part_hands_out_what_others_read_and_has_the_shapes_of_the_whole() -> None:
    text = "a[m, n] = x[m, n] + y[m]\ns[m] = sum(n) a[m, n]\nout[m, k] = a[m, k] / s[m]"
    whole = program(text, {"m": "T", "n": 5, "k": 3}, shapes={"x": ["U + T", 9]}).workload
    first, last = part_of(whole, (0, 1)), part_of(whole, (2,))
    assert (first.program.outputs, last.program.outputs) == (("a", "s"), ("out",))
    assert last.tensors["a"].dims == whole.tensors["a"].dims
    assert first.tensors["x"].dims == whole.tensors["x"].dims
    assert first.dims({"T": 5, "U": 9}) == whole.dims({"T": 5, "U": 9})
    assert hash(first) != hash(last)


def test_what_others_read_outside_of_a_tensor_does_not_concern_who_computes_it() -> None:
    text = "h[m] = x[m] * 2\nout[m] = h[m - 1] + h[m + 1]"
    whole = program(text, {"m": "T"}, padded={"h": 0}).workload
    assert (part_of(whole, (0,)).padding, part_of(whole, (1,)).padding) == ((), (("h", 0),))


def test_a_constant_that_two_pieces_read_is_packed_for_none() -> None:
    text = "a[m, n] = sum(k) x[m, k] * w[n, k]\nb[m] = max(n) a[m, n]\nout[m, k] = sum(n) a[m, n] * w[n, k] / b[m]"
    task = program(text, {"m": "T", "n": 96, "k": 96}, constant=["w"])
    for cut in cuts(task):
        assert cut.layouts(task, cut.default_kernel(task)) == {}


# -- kernels -----------------------------------------------------------------------------------------------------------
def test_kernels_are_known_by_their_rules_name() -> None:
    task = program(CHAIN, SIZES, constant=["w1", "w2", "w3"])
    for cut in cuts(task):
        kernel = MicroKernel.from_json(cut.default_kernel(task).to_json())
        assert rule_of(kernel) == cut
        assert is_current(kernel)
        assert "0.m_tile" in kernel.named


@pytest.mark.parametrize("name", ["cut:", "cut:fallback", "cut:fallback/x", "cut:unknown/0", "cut:fallback/0,/1"])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(IllegalKernel):
        rule_of(MicroKernel(name, 1, ()))


def test_pieces_that_are_not_the_stages_of_a_program_do_not_match() -> None:
    task = program(CHAIN, SIZES, constant=["w1", "w2", "w3"])
    (cut, *_) = cuts(task)
    for stages in ((0, 1), (1, 2), (0, 1, 2, 3)):
        other = Cut([Piece(cut.pieces[0].rule, stages)], cut.version)
        assert isinstance(other.match(task.workload, TARGET), NoMatch)


def test_intermediates_count_and_have_a_limit() -> None:
    task = program(CHAIN, SIZES, constant=["w1", "w2", "w3"])
    needs = [cut.workspace_bytes(task) for cut in cuts(task)]
    assert all(need >= 128 * 80 * 4 for need in needs)


def test_an_explanation_names_the_pieces() -> None:
    told = explained(sample_task(CUT_SAMPLES["softmax"], TARGET, 1))
    assert told["why"] == "2 pieces: x86_contraction computes a; row_reduction computes top, e, z, out"
    assert told["rules"][0]["roles"]["n"] == "0.n, 1.column"


# -- theory ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", every(2, [1, 2]))
def test_theory_chooses_each_piece_by_itself(threads: int) -> None:
    """Of a thousand samples of all pieces at once none is as good as what is best for each."""
    task = program(CHAIN, {"m": "T", "f": 512, "k": 384, "g": 256, "n": 640}, constant=["w1", "w2", "w3"])
    task = task.for_threads(threads)
    rng, model = np.random.default_rng(0), PairCostModel(task)
    shapes = [instance.shape for instance in task.instances]
    chosen = theory_set(task, space_of(task), model, rng, TheorySettings(samples=100, generations=2))
    (cut, *_) = cuts(task)
    samples = [cut.space(task).sample(rng) for _ in range(1000)]
    sampled = cut.estimate_s(task, samples, extents_of(task.workload, shapes)).min(axis=0)
    assert model.predict(chosen, shapes).latency_s.min(axis=0).sum() < sampled.sum()


def test_theory_tries_what_is_best_of_each_piece_for_one_thread_too() -> None:
    """A few rows of a small chain: no thread is worth waking for any of its pieces."""
    small = program(CHAIN, {"m": "T", "f": 48, "k": 48, "g": 48, "n": 48}, constant=["w1", "w2", "w3"]).for_threads(4)
    task = SearchTask(small.workload, shape_vars=(ShapeVar("T", range(1, 5)),), target=TARGET, threads=4)
    rng, model, settings = np.random.default_rng(0), PairCostModel(task), TheorySettings(samples=100, generations=2)
    chosen = theory_set(task, space_of(task), model, rng, settings)
    serial = next(rule for rule in rules_of(task) if isinstance(rule, Serial))
    samples = [serial.space(task).sample(rng) for _ in range(500)]
    shapes = [instance.shape for instance in task.instances]
    sampled = model.predict(samples, shapes).latency_s.min(axis=0).sum()
    assert all(kernel.rule.startswith("serial:cut:") for kernel in chosen)
    assert model.predict(chosen, shapes).latency_s.min(axis=0).sum() < sampled
