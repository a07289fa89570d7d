"""The products of matrices in a convolution by minimal filtering, as kernels of x86_contraction."""

from __future__ import annotations

from tuner.program.workload import Workload
from tuner.schedule.product.axes import WIDEST_BLOCK
from tuner.schedule.rule import matched
from tuner.schedule.rules.winograd.pattern import Convolution, match
from tuner.schedule.space import MicroKernel

TILE_AXES = ("mr", "nv", "ku")


def convolution_of(workload: Workload) -> Convolution:
    """The convolution of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def as_product(kernel: MicroKernel, threads: int) -> MicroKernel:
    """The micro-kernel of x86_contraction by which the products are computed: both operands packed, all of k at once,
    exact code for a panel of fewer vectors. Threads share blocks."""
    own = {name: kernel[name] for name in (*TILE_AXES, "tail")}
    fixed = {"mb": WIDEST_BLOCK, "kc": 0, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "pack": 0}
    ragged = {"edge": int(kernel["nv"] > 1), "tb": threads, "tn": 1}
    return MicroKernel(kernel.rule, kernel.rule_version, tuple({**own, **fixed, **ragged}.items()))
