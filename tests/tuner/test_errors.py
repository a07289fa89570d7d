"""Errors name the field, the problem and the remedy."""

from __future__ import annotations

from tuner.errors import IllegalKernel, InvalidInput, ShapewrightError


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
