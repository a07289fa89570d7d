"""DLight as a contender: what it does not take has a reason; wrong and slow calls are refused."""

from __future__ import annotations

import pytest
import tvm

from benchmarks.harness.calls import DoesNotApply, inputs_of
from benchmarks.rivals import DLIGHT, contender, dlight
from benchmarks.rivals.dlight import Checked
from benchmarks.rivals.static_function import static_function
from tuner.program.job.build import make_workload
from tuner.program.language.workload import Workload

SOFTMAX = make_workload("softmax", {"m": "T", "n": 40})
SUM = make_workload("reduce_sum", {"m": "T", "n": 4})
SHAPE = {"T": 3}


@pytest.mark.parametrize("workload", [SOFTMAX, make_workload("gemv", {"n": "16*T", "k": 64})], ids=str)
def test_a_rule_takes_rows_and_products_with_a_vector(workload: Workload) -> None:
    contender(DLIGHT, workload, None, 1)(SHAPE)()


@pytest.mark.parametrize("op", ["matmul", "reduce_sum"])
def test_what_no_rule_takes_is_refused(op: str) -> None:
    extents = {"m": "T", "n": 8} | ({"k": 8} if op == "matmul" else {})
    with pytest.raises(DoesNotApply, match="neither GEMV nor Reduction"):
        contender(DLIGHT, make_workload(op, extents), None, 1)(SHAPE)


def test_a_wrong_result_is_refused() -> None:
    inputs = inputs_of(SUM, SHAPE)
    with pytest.raises(DoesNotApply, match="3 of 3 elements of its result are wrong"):
        Checked(SUM).call(SHAPE, lambda x, out: None, inputs, inputs)


def test_where_a_call_is_slow_larger_shapes_are_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(size: int) -> None:
        inputs, function = inputs_of(SUM, {"T": size}), static_function(SUM, {"T": size})
        checked.call({"T": size}, tvm.compile(function, target="llvm")["main"], inputs, inputs)()

    checked = Checked(SUM)
    call(2)
    monkeypatch.setattr(dlight, "SLOWEST_S", -1.0)
    with pytest.raises(DoesNotApply, match=r"a call takes 0\.0 s at T=3"):
        call(3)
    with pytest.raises(DoesNotApply, match="at T=3: not timed there, nor at larger shapes"):
        call(4)
    call(2)
