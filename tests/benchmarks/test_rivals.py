"""Rivals compute what the operators of the catalogue do, or say why they do not apply."""

from __future__ import annotations

import numpy as np
import pytest
from tuner.program.ops import OPS

from benchmarks.kernels import DEFAULT_RIVALS
from benchmarks.rivals import RIVALS, DoesNotApply
from benchmarks.sides import inputs_of, side
from tuner.program.reference import compute
from tuner.program.workload import Workload

pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")

EXTENTS = {"b": 3, "m": "T", "n": 7, "k": 9}
SHAPE = {"T": 5}
APPLY = {
    "dense": {"mm", "linear", "mkl", "onednn"},
    "matmul": {"mm", "onednn"},
    "batch_matmul_nn": {"bmm"},
    "batch_matmul_nt": {"bmm"},
}


def workload_of(op: str) -> Workload:
    return Workload.of(op, {axis: EXTENTS[axis] for axis in OPS[op].args})


@pytest.mark.parametrize("name", DEFAULT_RIVALS.split(","))
@pytest.mark.parametrize("op", sorted(APPLY))
def test_a_rival_computes_the_workload_or_does_not_apply(op: str, name: str) -> None:
    workload = workload_of(op)
    if name not in APPLY[op]:
        with pytest.raises(DoesNotApply):
            side(name, workload, SHAPE, None, 1)
        return
    found = side(name, workload, SHAPE, None, 1)(SHAPE)()
    expected = compute(workload, inputs_of(workload, SHAPE))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_every_default_rival_is_one() -> None:
    assert set(DEFAULT_RIVALS.split(",")) <= set(RIVALS)
