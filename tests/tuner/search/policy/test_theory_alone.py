"""Theory alone: every pair of its round once, whatever cuts the round off, and nothing else."""

from __future__ import annotations

from tests.fakes import TASK, measured
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import space_of
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import TheorySettings
from tuner.search.policy.theory_alone import TheoryAlone


def policy() -> TheoryAlone:
    return TheoryAlone(TASK, space_of(TASK), PairCostModel(TASK), 0, TheorySettings(samples=200))


def test_a_round_that_was_cut_off_is_gone_on_with_and_then_it_ends() -> None:
    whole = {(s.kernel, instance) for s in policy().suggest(1000) for instance in s.instances}
    assert len(whole) > 9
    cut, done = policy(), list[MeasureResult]()
    while suggestions := cut.suggest(4):
        results = [result for s in suggestions for result in measured(TASK, s.kernel, *s.instances)]
        assert 0 < len(results) <= 4
        cut.update(results)
        done += results
    pairs = [(result.kernel, result.instance) for result in done]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == whole


def test_what_is_being_measured_and_what_failed_is_left_out() -> None:
    alone = policy()
    first, second, *_ = [suggestion.kernel for suggestion in alone.suggest(1000)]
    following = alone.suggest(1000, [first])
    assert following
    assert first not in {suggestion.kernel for suggestion in following}
    alone.update([MeasureResult(second, TASK.instances[0], error_kind=ErrorKind.CRASH, error="signal 11")])
    assert second not in {suggestion.kernel for suggestion in alone.suggest(1000)}
