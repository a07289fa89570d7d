"""What theory expects of kernels whose operands come from memory: of every rule, never less than of warm ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tuner.program.job.task import SearchTask
from tuner.program.target import Target
from tuner.schedule import estimate_s, extents_of, rules_for

TARGET = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
IMAGE = {"b": 1, "c": 32, "h": 14, "w": 14, "r": 3, "s": 3, "pad": 1}
WORKLOADS: Mapping[str, Mapping[str, object]] = {
    "dense": {"m": 4, "n": 256, "k": 256},
    "matmul": {"m": 4, "n": 256, "k": 256},
    "gemv": {"n": 256, "k": 256},
    "bilinear": {"b": 4, "o": 16, "i": 32, "j": 32},
    "conv2d": IMAGE | {"o": 32},
    "depthwise_conv2d": IMAGE,
    "softmax": {"m": 64, "n": 512},
    "layer_norm": {"m": 64, "n": 512},
    "reduce_sum": {"m": 64, "n": 512},
    "attention": {"b": 1, "h": 4, "i": 64, "j": 64, "d": 32},
    "moe_dense": {"t": 8, "e": 4, "n": 64, "k": 64},
}


@pytest.mark.parametrize("op", WORKLOADS)
def test_operands_from_memory_take_longer_whatever_the_rule(op: str) -> None:
    warm, streamed, cold = (
        SearchTask(op, WORKLOADS[op], target=TARGET, threads=2, cache=cache) for cache in ("warm", "streamed", "cold")
    )
    extents = extents_of(warm.workload, [{}])
    for rule in rules_for(warm.workload, TARGET):
        kernel = rule.default_kernel(warm)
        expected = [float(estimate_s(task, [kernel], extents)[0, 0]) for task in (warm, streamed, cold)]
        assert expected[0] <= expected[1] <= expected[2], rule.name
        assert expected[0] < expected[2], rule.name
        assert (expected[0] < expected[1]) == bool(warm.workload.constants), rule.name
