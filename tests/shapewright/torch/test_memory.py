"""Memory that chains use again: a piece has one user at a time, and serves the next one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import shapewright as sw
from shapewright.torch.memory import MEMORY, Memory


def test_a_piece_serves_one_after_the_other_and_never_two() -> None:
    memory = Memory()
    first, second = memory.take(1000), memory.take(1000)
    assert first.data_ptr() != second.data_ptr()
    memory.give(first)
    assert memory.take(400) is first, "one that is larger than needed serves"
    memory.give(second)
    memory.give(first)
    memory.release()
    assert all(memory.take(1000) is not each for each in (first, second))


def test_the_smallest_piece_that_fits_is_taken_and_one_too_small_gives_way() -> None:
    memory = Memory()
    small, large = memory.take(100), memory.take(1000)
    memory.give(large)
    memory.give(small)
    assert memory.take(50) is small
    larger = memory.take(2000)
    memory.give(larger)
    assert memory.take(1000) is larger, "the one of 1000 is gone"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_there_are_as_many_pieces_as_were_used_at_once(steps: list[tuple[bool, int]]) -> None:
    memory, used, most = Memory(), list[torch.Tensor](), 0
    for is_taken, number in steps:
        if is_taken:
            piece = memory.take(number)
            assert piece.numel() >= number
            assert all(piece is not each for each in used)
            used.append(piece)
            most = max(most, len(used))
        elif used:
            memory.give(used.pop(number % len(used)))
        assert len(used) + len(memory._pieces) <= most


def test_forgetting_frees_it() -> None:
    piece = MEMORY.take(4096)
    MEMORY.give(piece)
    sw.torch.forget()
    assert MEMORY._pieces == []
