"""Which convolutions the rule takes, and the sizes of their products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule import NoMatch, extents_of
from tuner.schedule.rules.winograd import Winograd
from tuner.schedule.rules.winograd.pattern import LINES, Convolution, match

SERVER = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})

SIZES = {"b": "T", "c": 16, "h": 7, "w": 10, "o": 18, "r": 3, "s": 3}


def conv2d(dtype: Any = "float32", **args: Any) -> Workload:
    return workload_from_json({"op": "conv2d", "args": {**SIZES, **args}, "dtype": dtype})


def taken(workload: Workload) -> Convolution:
    result = match(workload)
    assert isinstance(result, Convolution)
    return result


def test_a_convolution_has_the_sizes_of_its_output() -> None:
    own = taken(conv2d(pad=1))
    assert (own.channels, own.kernels, own.height, own.width) == (16, 18, 7, 10)
    assert (own.tile_rows, own.tiles_in_row) == (4, 5)
    assert taken(conv2d()).height == 5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stride": 3, "pad": 1}, "a stride of 1 or 2"),
        ({"dilation": 2}, "3 x 3"),
        ({"r": 1, "s": 3}, "3 x 3"),
        ({"c": 12}, "fewer than 16 channels"),
        ({"o": 8}, "fewer than 16 channels"),
        ({"groups": 2, "o": 32}, "channels outside"),
        ({"layout": "nhwc"}, "channels outside"),
        ({"dtype": "bfloat16"}, "not float32"),
        ({"h": "T", "b": 1}, "channels outside"),
    ],
)
def test_others_are_refused(fields: dict[str, Any], reason: str) -> None:
    answer = match(conv2d(**fields))
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason


def test_the_stride_is_the_same_along_both_axes() -> None:
    answer = match(
        workload_from_json({
            "program": "out[b, o, p, q] = sum(c, r, s) x[b, c, p + r, 2 * q + s] * w[o, c, r, s]",
            "extents": {"b": "T", "c": 16, "p": 5, "q": 4, "o": 16, "r": 3, "s": 3},
            "shapes": {"x": ["b", "c", 7, 9]}, "constant": ["w"],
        })
    )  # fmt: skip
    assert isinstance(answer, NoMatch)
    assert "a stride of 1 or 2" in answer.reason


def test_tiles_with_a_stride_of_2_are_four_or_eight_elements_apart() -> None:
    own = taken(conv2d(pad=1, h=28, w=27, stride=2))
    assert (own.height, own.width, own.least) == (14, 14, 2)
    found = [(each.span, each.tile, each.side) for each in (own.by(pairs).filtering for pairs in own.pairs)]
    assert found == [(4, 5, 3), (8, 9, 5)]
    assert (own.filtering.points, own.by(2).filtering.points) == (25, 81)


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({}, 3), ({"pad": 1}, 2), ({"pad": 2}, 1), ({"pad": 3}, 0), ({"pad": 1, "h": 1}, 1),
        ({"pad": 1, "stride": 2, "w": 9}, 2), ({"pad": 2, "stride": 2}, 1), ({"stride": 2}, 3),
    ],
)  # fmt: skip
def test_tiles_are_large_where_windows_lie_on_the_image(fields: dict[str, Any], least: int) -> None:
    own = taken(conv2d(**fields))
    assert own.least == least
    assert own.pairs == ((1, 2) if least >= 2 else (1,))


def test_products_are_of_blocks_of_about_the_same_size() -> None:
    workload = conv2d(pad=1)
    extents = taken(workload).by_role(3, extents_of(workload, [{"T": 1}, {"T": 3}]))
    # 4 and 12 rows of 5 tiles, in 2 and 4 blocks.
    assert {role: sizes.tolist() for role, sizes in extents.items()} == {
        "b": [32, 64], "m": [18, 18], "n": [10, 15], "k": [16, 16],
    }  # fmt: skip
    assert np.all(extents["n"] > 0)


def test_blocks_of_wide_images_have_fewer_rows() -> None:
    rule, narrow, wide = Winograd(), conv2d(pad=1), conv2d(pad=1, c=256, w=4096, o=256)

    def task(workload: Workload, threads: int = 1) -> SearchTask:
        return SearchTask(workload, shape_vars=(ShapeVar("T", (1, 2)),), target=SERVER, threads=threads)

    def lines(workload: Workload) -> tuple[int, ...]:
        return next(axis.choices for axis in rule.space(task(workload)).axes if axis.name == "lines")

    assert lines(narrow) == LINES
    # A row of 2048 tiles of 2 x 2 outputs is 67 MiB, one of 1024 of 4 x 4 is 80 MiB.
    assert lines(wide) == (1,)
    assert rule.default_kernel(task(wide))["lines"] == 1
    assert rule.workspace_bytes(task(wide, threads=2)) == 2 * 4 * 36 * (257 + 257) * (1024 + 112)
