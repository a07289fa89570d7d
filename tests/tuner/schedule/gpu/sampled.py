"""Choices for the samples of the rules' contract suite."""

from __future__ import annotations

from tuner.schedule.gpu.attention import AttentionTile
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.rows import RowTile
from tuner.schedule.gpu.stages import Blocks
from tuner.schedule.gpu.tiling import Tiling


def sample_choices(number: int) -> Choices:
    """Small tiles for a sample, of another kind for each number."""
    split, dot, pack = (1, 2, 1, 3)[number % 4], number % 5 != 4, ("", "nk", "kn")[number % 3]
    precision = ("ieee", "tf32x3")[number % 2]
    tiling = Tiling(
        (16, 32, 64)[number % 3], (32, 16, 64)[number // 2 % 3], (16, 32)[number % 2], 4, split, 4, 3, precision,
        number % 3 == 1, number % 4 == 2, dot, (1, 1, 3)[number % 3], pack,
    )  # fmt: skip
    return Choices(
        product=tiling,
        attention=AttentionTile((16, 32, 64)[number % 3], (16, 32)[number % 2], 16, 32, precision=precision),
        rows=RowTile((1, 4, 2)[number % 3], (128, 16, 64)[number % 3]),
        blocks=Blocks((128, 32)[number % 2], (16, 32)[number % 2]),
        is_wide=number % 7 == 3,
    )
