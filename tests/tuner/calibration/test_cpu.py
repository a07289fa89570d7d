"""The probes: the same for the same seed, all layers in turn, most of them good."""

from __future__ import annotations

import numpy as np

from tests.tuner.calibration.observing import TARGET, all_probes, shapes_of
from tuner.calibration.cpu import BATCH, KERNELS, RATED, ROWS, SIZES, in_tiles, probes, products
from tuner.schedule import RULES, estimate_s, extents_of

PRODUCTS = len(products(TARGET, 1)) - len(in_tiles(TARGET, 1))


def test_every_product_has_its_turn_before_any_has_a_second_one() -> None:
    keys = [probe.task.workload.key for probe in all_probes()]
    turns = [set(keys[start : start + PRODUCTS]) for start in range(0, len(keys), PRODUCTS)]
    assert len(turns) == KERNELS // BATCH
    assert all(len(turn) == PRODUCTS for turn in turns)


def test_a_seed_gives_the_same_probes_and_another_one_others() -> None:
    drawn = [tuple(probe.kernels for probe in probes(TARGET, 1, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_each_is_a_legal_kernel_once_and_most_are_of_the_better_half() -> None:
    [rule] = (rule for rule in RULES if rule.name == RATED[0])
    ranks: list[float] = []
    for number in range(PRODUCTS):
        batches = all_probes()[number::PRODUCTS]
        task, kernels = batches[0].task, [kernel for probe in batches for kernel in probe.kernels]
        assert len(set(kernels)) == KERNELS
        sizes = [size for instance in task.instances for size in instance.shape.values()]
        assert sizes in (list(ROWS), list(SIZES))
        space, rng = rule.space(task), np.random.default_rng(1)
        for kernel in kernels:
            space.check(kernel)
        extents = extents_of(task.workload, shapes_of(task))
        others = np.log(estimate_s(task, [space.sample(rng) for _ in range(60)], extents)).mean(axis=1)
        own = np.log(estimate_s(task, kernels, extents)).mean(axis=1)
        ranks += [float((others < each).mean()) for each in own]
    assert np.mean(np.array(ranks) < 0.6) > 0.6
