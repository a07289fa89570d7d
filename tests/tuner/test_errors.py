"""Errors name the field, the problem and the remedy."""

from __future__ import annotations

import pytest

from tuner.errors import IllegalKernel, InvalidInput, ShapewrightError, did_you_mean


def test_the_message_holds_all_three_parts() -> None:
    error = InvalidInput("workload.args.m", "'x' is not a dim", "16*T")
    assert str(error) == "workload.args.m: 'x' is not a dim (16*T)"
    assert (error.field, error.problem, error.remedy) == ("workload.args.m", "'x' is not a dim", "16*T")
    assert str(InvalidInput("seed", "is odd")) == "seed: is odd"


def test_an_error_is_seen_from_further_out() -> None:
    assert InvalidInput("args.m", "p", "r").within("workload").field == "workload.args.m"
    outer = InvalidInput("", "p", "r").within("workload")
    assert (outer.field, outer.problem, outer.remedy) == ("workload", "p", "r")


def test_every_error_is_one_of_ours_and_a_value_error() -> None:
    for kind in (InvalidInput("f", "p"), IllegalKernel("p")):
        assert isinstance(kind, ShapewrightError)
        assert isinstance(kind, ValueError)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("dens", "dense"),
        ("Conv2D", "conv2d"),
        ("max-pool2d", "max_pool2d"),
        ("linear", "dense"),
        ("gemm", "dense or matmul"),
        ("frobnicate", ""),
        ("", ""),
        ("x" * 1000, ""),
        (7, ""),
        (None, ""),
    ],
)
def test_a_name_that_is_near_or_a_synonym_is_suggested(word: object, meant: str) -> None:
    names = ("dense", "matmul", "conv2d", "max_pool2d")
    synonyms = {"dense": ("linear", "gemm"), "matmul": ("gemm",)}
    assert did_you_mean(word, names, synonyms) == (f"did you mean {meant}? " if meant else "")
