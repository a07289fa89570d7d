"""Pieces as programs of their own: they compute what they do within the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.suite import Benchmark, alone, read_suite
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.schedule import rules_of
from tuner.schedule.cut.rule import Cut

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
SUITE = Path(__file__).parents[2] / "benchmarks" / "suites" / "pieces.yaml"
PADDED = {
    "program": "h[b, o, y, x] = sum(c, r, s) i[b, c, y + r - 1, x + s - 1] * w[o, c, r, s]\n"
    "out[b, q, y, x] = sum(o, u, t) h[b, o, y + u - 1, x + t - 1] * v[q, o, u, t]",
    "extents": {"b": "T", "o": 16, "y": 9, "x": 9, "c": 16, "r": 3, "s": 3, "q": 16, "u": 3, "t": 3},
    "padded": {"i": 0, "h": 0}, "shapes": {"i": ["T", 16, 9, 9]}, "constant": ["w", "v"],
}  # fmt: skip


def padded() -> Benchmark:
    rows = ShapeVar("T", range(1, 9))
    return Benchmark("padded", SearchTask(workload_from_json(PADDED), shape_vars=(rows,), target=TARGET), ())


@pytest.mark.parametrize("benchmark", [*read_suite(SUITE, TARGET, 1)[1], padded()], ids=lambda each: each.name)
def test_a_piece_alone_is_taken_by_its_rule_and_has_the_shapes_of_the_whole(benchmark: Benchmark) -> None:
    task = benchmark.task
    cut = rules_of(task)[0]
    assert isinstance(cut, Cut)
    for piece, part in zip(cut.pieces, cut.parts(task.workload), strict=True):
        own = alone(task, part)
        assert piece.rule in rules_of(own)
        assert own.workload.padding == part.padding
        for instance in task.instances:
            dims, of_whole = own.workload.dims(instance.shape), task.workload.dims(instance.shape)
            shapes = {each.name: each.shape(dims) for each in own.workload.operands}
            assert shapes == {name: task.workload.tensors[name].shape(of_whole) for name in shapes}
