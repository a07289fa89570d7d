"""The options that benchmarks share: what they take, and what they say to anything else."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.options import count, integers


def test_integers_are_separated_by_commas() -> None:
    assert integers("0,1,2") == (0, 1, 2)
    assert integers("7") == (7,)
    assert integers("-1, 3") == (-1, 3)


@pytest.mark.parametrize("text", ["", "1,", "1;2", "a", "1.5"])
def test_anything_else_is_no_list_of_integers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no list of integers"):
        integers(text)


def test_a_count_is_one_or_more() -> None:
    assert [count(text) for text in ("1", "12")] == [1, 12]


@pytest.mark.parametrize("text", ["0", "-1", "", "1.5", "many"])
def test_less_than_one_and_other_text_are_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of 1 or more"):
        count(text)
