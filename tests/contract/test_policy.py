"""What every SearchPolicy does, on a synthetic device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import pytest

from tests.fakes import TASK, latency_s
from tests.searching import QUICK_POLICIES, few_trees, small_models
from tests.shares import chosen
from tuner.errors import InvalidInput
from tuner.library.selection import select
from tuner.program.job import policies as registry
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import layout_group, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import POLICIES, Suggestion, make_policy

Fails = Callable[[MicroKernel], bool]
SPACE = space_of(TASK)
SHAPES = [instance.shape for instance in TASK.instances]
WEIGHTS = np.array([instance.weight for instance in TASK.instances])

LEARNING = sorted(entry.name for entry in registry.POLICIES.values() if entry.learns)
ENDING = sorted(entry.name for entry in registry.POLICIES.values() if entry.learns or entry.settled)


class Search:
    """A policy with a cost model that is trained as the search loop does it."""

    def __init__(self, name: str, task: SearchTask, seed: int) -> None:
        self.is_settled = registry.POLICIES[name].settled
        self.model = PairCostModel(task, seed)
        space = space_of(task)
        self.policy = make_policy(name, task, space, self.model, seed, QUICK_POLICIES)

    def suggest(self, trials: int, pending: Sequence[MicroKernel] = ()) -> list[Suggestion]:
        return self.policy.suggest(trials, pending)

    def update(self, results: Sequence[MeasureResult]) -> None:
        self.model.update(results)
        self.policy.update(results)


Make = Callable[[SearchTask, int], Search]


def some(*names: str) -> pytest.MarkDecorator:
    """Asks these policies alone in `make test`: several tests ask each, and those that cost little ask all."""
    return pytest.mark.parametrize("make", chosen(names, POLICIES), indirect=True)


@pytest.fixture(params=POLICIES)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    small_models(monkeypatch)
    few_trees(monkeypatch)
    return partial(Search, request.param)


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidInput, match=r"'unheard-of' is not known .*evolutionary, random") as refused:
        make_policy("unheard-of", TASK, SPACE, PairCostModel(TASK), 0)
    assert refused.value.field == "policy"


def answers(suggestions: Sequence[Suggestion], fails: Fails = lambda kernel: False) -> list[MeasureResult]:
    """What the synthetic device says to these suggestions."""
    result = []
    for suggestion in suggestions:
        for instance in suggestion.instances:
            time = latency_s(TASK, suggestion.kernel, instance.shape)
            failed = MeasureResult(suggestion.kernel, instance, error_kind=ErrorKind.CRASH, error="signal 11")
            result.append(failed if fails(suggestion.kernel) else MeasureResult(suggestion.kernel, instance, time))
    return result


def searched(policy: Search, trials: int, fails: Fails = lambda kernel: False) -> list[MeasureResult]:
    results: list[MeasureResult] = []
    while len(results) < trials and (suggestions := policy.suggest(trials - len(results))):
        result = answers(suggestions, fails)
        assert len(result) <= trials - len(results)
        policy.update(result)
        results += result
    return results


def set_cost(kernels: Sequence[MicroKernel]) -> float:
    """The weighted time of the best set that these kernels hold, on the synthetic device."""
    table = np.array([[latency_s(TASK, kernel, shape) for shape in SHAPES] for kernel in kernels])
    chosen = select(table, WEIGHTS, TASK.max_kernels, [layout_group(TASK, kernel) for kernel in kernels])
    return float((table[chosen].min(axis=0) * WEIGHTS).sum())


def test_suggestions_are_legal_and_for_the_tasks_instances(make: Make) -> None:
    policy = make(TASK, 0)
    for number in range(3):
        suggestions = policy.suggest(40)
        assert sum(len(suggestion.instances) for suggestion in suggestions) <= 40
        assert suggestions or (number > 0 and policy.is_settled)
        for suggestion in suggestions:
            assert SPACE.space_of(suggestion.kernel).kernel(dict(suggestion.kernel.values)) == suggestion.kernel
            assert set(suggestion.instances) <= set(TASK.instances)
            assert len(set(suggestion.instances)) == len(suggestion.instances) == len(suggestion.predicted_s)
            assert all(predicted > 0 for predicted in suggestion.predicted_s)
        assert len({suggestion.kernel for suggestion in suggestions}) == len(suggestions)
        policy.update(answers(suggestions))


def test_no_more_trials_are_suggested_than_asked_for(make: Make) -> None:
    policy = make(TASK, 0)
    for trials in (0, 1, 2, 1, 0, 7, 7):
        suggestions = policy.suggest(trials)
        assert sum(len(suggestion.instances) for suggestion in suggestions) <= trials
        assert bool(suggestions) == bool(trials)
        policy.update(answers(suggestions))


def test_the_first_round_times_the_default_on_every_instance(make: Make) -> None:
    timed = {instance for suggestion in make(TASK, 0).suggest(1000) for instance in suggestion.instances}
    assert timed == set(TASK.instances)


@some("annealing", "qlearning", "random")
def test_the_same_seed_and_results_give_the_same_suggestions(make: Make) -> None:
    one, other = make(TASK, 5), make(TASK, 5)
    for _ in range(3):
        suggestions = one.suggest(30)
        assert suggestions == other.suggest(30)
        one.update(answers(suggestions))
        other.update(answers(suggestions))
    assert make(TASK, 6).suggest(30) != make(TASK, 5).suggest(30)


@some("droplet", "qlearning", "roller")
def test_what_is_being_measured_is_not_suggested(make: Make) -> None:
    policy = make(TASK, 0)
    policy.update(answers(policy.suggest(1000)))
    for _ in range(4):
        pending = policy.suggest(30)
        following = policy.suggest(30, [suggestion.kernel for suggestion in pending])
        assert following or policy.is_settled
        assert {suggestion.kernel for suggestion in following}.isdisjoint(suggestion.kernel for suggestion in pending)
        policy.update(answers([*pending, *following]))


@some("annealing", "random", "roller")
def test_a_kernel_that_failed_is_never_suggested_again(make: Make) -> None:
    failed: set[MicroKernel] = set()
    policy = make(TASK, 0)
    for _ in range(8):
        suggestions = policy.suggest(20)
        assert failed.isdisjoint(suggestion.kernel for suggestion in suggestions)
        results = answers(suggestions, fails=lambda kernel: kernel["nv"] != 2)
        policy.update(results)
        failed |= {result.kernel for result in results if not result.ok}
    assert failed


def test_when_everything_fails_nothing_is_tried_twice(make: Make) -> None:
    policy = make(TASK, 0)
    tried: list[MicroKernel] = []
    for _ in range(4):
        suggestions = policy.suggest(20)
        tried += [suggestion.kernel for suggestion in suggestions]
        policy.update(answers(suggestions, fails=lambda kernel: True))
    assert tried
    assert len(tried) == len(set(tried))


@some("droplet", "evolutionary", "theory")
def test_a_policy_is_rebuilt_from_its_results(make: Make) -> None:
    results = searched(make(TASK, 0), 40)
    again = make(TASK, 1)
    again.update(results)
    known = {result.kernel for result in results}
    suggestions = again.suggest(20)
    assert suggestions or again.is_settled
    assert known.isdisjoint(suggestion.kernel for suggestion in suggestions)
    more = searched(again, 30)
    assert set_cost([*known, *(result.kernel for result in more)]) <= set_cost(list(known))


@some("evolutionary", "roller", "theory")
def test_a_search_is_no_worse_than_theory(make: Make) -> None:
    policy = make(TASK, 0)
    first = policy.suggest(1000)
    assert set(policy.policy.theory) <= {suggestion.kernel for suggestion in first}
    policy.update(answers(first))
    kernels = {result.kernel for result in searched(policy, 60)}
    assert kernels or policy.is_settled
    assert set_cost([*policy.policy.theory, *kernels]) <= set_cost(policy.policy.theory)


@cache
def best_of_a_sample() -> float:
    """No set can be better than the best kernel of a fair sample of the space at each shape, by much."""
    rng = np.random.default_rng(0)
    sample = list({SPACE.sample(rng) for _ in range(1500)})
    table = np.array([[latency_s(TASK, kernel, shape) for shape in SHAPES] for kernel in sample])
    return float((table.min(axis=0) * WEIGHTS).sum())


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["small models", "whole"])
@pytest.mark.parametrize("name", chosen(["evolutionary"], LEARNING))
def test_a_policy_that_learns_beats_theory_and_comes_near_the_best(
    name: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        small_models(monkeypatch)
    policy = Search(name, TASK, 0)
    first = policy.suggest(1000)
    theory = set_cost([suggestion.kernel for suggestion in first])
    policy.update(answers(first))
    results = searched(policy, 160)
    ideal = best_of_a_sample()
    reached = set_cost([*(suggestion.kernel for suggestion in first), *(result.kernel for result in results)])
    # Most of what theory leaves is found.
    assert theory > ideal
    assert reached - ideal < 0.5 * (theory - ideal)
    assert reached < 1.15 * ideal


def test_a_policy_reads_the_cost_model_and_never_trains_it(make: Make) -> None:
    policy = make(TASK, 0)
    for _ in range(2):
        policy.policy.update(answers(policy.suggest(40)))
    assert policy.model.pairs == 0


@pytest.mark.parametrize("name", chosen(["annealing", "droplet", "roller", "theory"], ENDING))
def test_a_policy_ends_by_itself_when_nothing_helps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_models(monkeypatch)
    task = SearchTask("dense", {"m": 1, "n": 16, "k": 1}, target=TASK.target)
    policy = Search(name, task, 0)
    for _ in range(200):
        # As many at once as keep eight devices busy: fewer rounds.
        suggestions = policy.policy.suggest(200, (), devices=8)
        if not suggestions:
            break
        policy.update(
            [
                MeasureResult(suggestion.kernel, instance, 1e-6)
                for suggestion in suggestions
                for instance in suggestion.instances
            ]
        )
    else:
        pytest.fail("200 rounds without any gain, and it still suggests")


def test_results_of_other_shapes_and_nothing_at_all_do_no_harm(make: Make) -> None:
    policy = make(TASK, 0)
    policy.update([])
    suggestions = policy.suggest(30)
    policy.update(answers(suggestions))
    policy.update([])
    assert policy.suggest(10) or policy.is_settled
