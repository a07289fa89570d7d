"""Weights as matrices for GPUs: what a module's ``pack`` makes of them, by NumPy and by PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.errors import InvalidInput
from tuner.schedule.layout import MatrixLayout, layout_from_json

LAYOUT = MatrixLayout((3, 4, 5), (1, 2, 0), (20, 3))
WEIGHT = np.arange(60, dtype=np.float32).reshape(12, 5)


def test_a_weight_is_a_matrix_of_its_own_memory() -> None:
    wanted = WEIGHT.reshape(3, 4, 5).transpose(1, 2, 0).reshape(20, 3)
    packed = LAYOUT.pack(WEIGHT)
    assert (packed == wanted).all()
    assert packed.flags.c_contiguous
    same = MatrixLayout((12, 5), (0, 1), (12, 5)).pack(WEIGHT)
    assert not np.shares_memory(same, WEIGHT)


def test_pytorch_packs_the_same() -> None:
    torch = pytest.importorskip("torch")
    packed = LAYOUT.pack(torch.from_numpy(WEIGHT))
    assert (packed.numpy() == LAYOUT.pack(WEIGHT)).all()
    assert packed.is_contiguous()


def test_json_is_read_again_and_checked() -> None:
    assert layout_from_json(LAYOUT.to_json()) == LAYOUT
    for change in ({"order": [0, 1, 1]}, {"matrix": [20, 4]}, {"matrix": [60]}, {"dims": [3, -4, 5]}):
        with pytest.raises(InvalidInput):
            layout_from_json(LAYOUT.to_json() | change)


def test_what_nobody_can_permute_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bytes cannot be packed"):
        LAYOUT.pack(b"")
