"""The parts of a lookup: sizes asked for, what is near, what is expected there."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.library.dispatcher import log_distance
from tuner.library.lookup import BestAnswer, Match, axis_distances, dims_of, expected, nearest
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, format_shape
from tuner.schedule import default_kernel, space_of
from tuner.schedule.registry import estimate_s
from tuner.schedule.space import MicroKernel

T = ShapeVar("T", range(1, 129))
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
TASK = SearchTask("dense", {"m": 2 * T, "n": 96, "k": 32}, (T,), target=TARGET)
SAFE = default_kernel(TASK)
OTHERS = [space_of(TASK).sample(np.random.default_rng(seed)) for seed in range(8)]


@dataclass(frozen=True)
class Where:
    workload_key: str = "wl-0"
    target_fingerprint: str | None = "f"
    threads: int = 1
    cache: Cache = Cache.WARM


# -- the sizes that are asked for -------------------------------------------------------------------------------------
def test_a_shape_is_given_in_symbols_or_in_the_tasks_variables() -> None:
    assert dims_of(TASK, {"m": 37}) == {"m": 37}
    assert dims_of(TASK, {"T": 5}) == {"m": 10}


def test_a_variable_of_a_symbols_name_is_the_symbol() -> None:
    m = ShapeVar("m", range(1, 9))
    assert dims_of(SearchTask("dense", {"m": 16 * m, "n": 8, "k": 8}, (m,)), {"m": 16}) == {"m": 16}


@pytest.mark.parametrize("shape", [{}, {"S": 3}, {"T": 3, "S": 3}, {"T": 3, "m": 6}])
def test_a_shape_of_other_variables_is_refused(shape: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="give T") as caught:
        dims_of(TASK, shape)
    assert caught.value.field == "shape"


# -- what is near -----------------------------------------------------------------------------------------------------
def test_instances_of_other_symbols_and_no_instances_at_all_are_left_out() -> None:
    assert nearest(["T=9", "m=9,n=2", "", "m=10", "odd"], {"m": 9}, 3) == ["m=10"]
    assert nearest([""], {}, 3) == [""]


SIZES = st.fixed_dictionaries({"m": st.integers(0, 10**6), "n": st.integers(0, 10**6)})


@given(SIZES, st.lists(SIZES, max_size=20, unique_by=format_shape), st.integers(1, 4))
def test_the_nearest_come_first(dims: dict[str, int], measured: list[dict[str, int]], most: int) -> None:
    by_name = {format_shape(each): each for each in measured}
    result = [log_distance(by_name[name], dims) for name in nearest(by_name, dims, most)]
    assert result == pytest.approx(sorted(log_distance(each, dims) for each in measured)[:most])
    assert all(
        sum(map(abs, axis_distances(dims, each).values())) == pytest.approx(log_distance(each, dims))
        for each in measured
    )


def test_the_distance_is_told_along_each_symbol() -> None:
    assert axis_distances({"m": 99, "n": 4}, {"n": 9, "m": 49}) == {"m": math.log(2.0), "n": math.log(0.5)}


# -- what is expected -------------------------------------------------------------------------------------------------
@settings(max_examples=20)
@given(st.sampled_from(OTHERS), st.integers(0, 300), st.floats(1e-7, 1e-1), st.floats(1e-7, 1e-1))
def test_where_both_were_measured_the_same_is_expected_again(
    kernel: MicroKernel, m: int, kernel_s: float, default_s: float
) -> None:
    result = expected(TASK, kernel, SAFE, (kernel_s, default_s), ({"m": m}, {"m": m}))
    assert (result.latency_s, result.default_s) == pytest.approx((kernel_s, default_s))


def test_theory_carries_the_measured_times_to_another_shape() -> None:
    extents = {axis: np.array([size, near]) for axis, size, near in (("m", 256, 16), ("n", 96, 96), ("k", 32, 32))}
    prior = estimate_s(TASK, [OTHERS[1], SAFE], extents)

    measured = expected(TASK, OTHERS[1], SAFE, (1e-3, 2e-3), ({"m": 256}, {"m": 16}))
    assert measured.latency_s == pytest.approx(1e-3 * prior[0, 0] / prior[0, 1])
    assert measured.default_s == pytest.approx(2e-3 * prior[1, 0] / prior[1, 1])

    # Nobody measured the default: theory alone says which is faster.
    alone = expected(TASK, OTHERS[1], SAFE, (1e-3, None), ({"m": 256}, {"m": 16}))
    assert alone.default_s / alone.latency_s == pytest.approx(prior[1, 0] / prior[0, 0])


# -- answers ----------------------------------------------------------------------------------------------------------
def test_an_answer_is_json() -> None:
    shown = {"id": "a", "name": "a", "kernel": {}}
    answer = BestAnswer(Where(), {"m": 10}, Match.DEFAULT, shown)
    data = json.loads(json.dumps(answer.to_json()))
    assert (data["match"], data["kernel"], data["latency_s"], data["digest"]) == ("default", shown, None, None)
    nearby = replace(answer, match=Match.NEAREST, measured_shape={"m": 12}, distance={"m": -0.17}, readings=3)
    data = json.loads(json.dumps(nearby.to_json()))
    assert (data["match"], data["measured_shape"], data["distance"]) == ("nearest", {"m": 12}, {"m": -0.17})


def test_what_says_most_ranks_first() -> None:
    assert sorted(Match, key=lambda match: match.rank) == [
        Match.EXACT,
        Match.DISPATCHED,
        Match.NEAREST,
        Match.DEFAULT,
    ]
