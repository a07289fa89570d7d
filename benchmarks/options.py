"""Types of options that several benchmarks share, as argparse wants them."""

from __future__ import annotations

import argparse


def integers(text: str) -> tuple[int, ...]:
    """Integers from text as in 0,1,2."""
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of integers, as in 1,2,3") from None


def count(text: str) -> int:
    """One or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return number


def numbers(text: str) -> tuple[float, ...]:
    """Numbers of 0 or more, from text as in 0,60,180."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, as in 0,60,180") from None
    if not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} has a number that is negative or no number")
    return values
