"""The learned residual: intervals that hold the share of times that they say, whatever the models' disagreement."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.search.cost_model.residual import (
    INTERVAL,
    INTERVAL_SPREADS,
    MIN_PAIRS,
    MIN_SURPRISES,
    UNKNOWN_SPREAD,
    Features,
    Floats,
    Residual,
)


def pairs(count: int, noise: float, seed: int = 0) -> tuple[Features, Floats]:
    """[pairs, 3] features and a target that two of them make, with normal noise."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(0, 1, (count, 3)).astype(np.float32)
    exact = 0.5 * np.sin(6 * features[:, 0]) + 0.3 * (features[:, 1] > 0.5)
    return features, exact + noise * rng.normal(size=count)


def trained(noise: float, rounds: int = 12, each: int = 8) -> Residual:
    """Pairs put to the test before they are learned, the models trained after every few."""
    residual = Residual(0)
    features, targets = pairs(rounds * each, noise)
    for start in range(0, len(targets), each):
        some = slice(start, start + each)
        residual.test(features[some], targets[some])
        residual.learn(features[some], targets[some], 1.0)
        residual.predict(lambda: features[:1], (1, 1))
    return residual


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.4])
def test_intervals_hold_the_share_of_unseen_pairs_that_they_say(noise: float) -> None:
    residual, (features, targets) = trained(noise), pairs(400, noise, seed=1)
    mean, spread = residual.predict(lambda: features, (len(targets), 1))
    off = np.abs(targets - np.asarray(mean)[:, 0]) / np.asarray(spread)[:, 0]
    assert INTERVAL - 0.15 < float((off <= INTERVAL_SPREADS).mean()) < INTERVAL + 0.15


def test_what_was_tested_is_counted() -> None:
    residual = trained(0.1)
    assert residual.tested == 12 * 8 - 2 * 8  # before there are MIN_PAIRS there are no models to be tested
    assert MIN_PAIRS <= 2 * 8
    assert 0 < residual.covered <= residual.tested


def test_without_models_the_spread_is_what_theory_is_off_by() -> None:
    residual = Residual(0)
    features, targets = pairs(MIN_PAIRS - 1, 0.1)
    residual.test(features, targets)
    residual.learn(features, targets, 1.0)
    mean, spread = residual.predict(lambda: features, (1, 1))
    assert mean == pytest.approx(float(np.median(targets)))
    assert spread == UNKNOWN_SPREAD
    assert residual.tested == 0


def test_few_tests_change_no_interval() -> None:
    residual = Residual(0)
    features, targets = pairs(MIN_PAIRS, 0.1)
    residual.learn(features, targets, 1.0)
    before = residual.predict(lambda: features, (MIN_PAIRS, 1))[1]
    residual.test(features[: MIN_SURPRISES - 1], np.full(MIN_SURPRISES - 1, 5.0))
    assert np.array_equal(residual.predict(lambda: features, (MIN_PAIRS, 1))[1], before)


def test_forgetting_pairs_keeps_what_is_known_of_errors() -> None:
    residual = trained(0.4)
    features, _ = pairs(50, 0.4)
    before = residual.predict(lambda: features, (50, 1))[1]
    residual.forget()
    assert residual.pairs == 0
    residual.learn(*pairs(96, 0.4), 1.0)
    after = residual.predict(lambda: features, (50, 1))[1]
    assert float(np.mean(after)) == pytest.approx(float(np.mean(before)), rel=0.2)
