"""Constants of a chain, looked at together: every change of one is noticed, and nothing is looked up without one."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import shapewright as sw
from shapewright.torch.packs import CHECK, Packs
from shapewright.torch.weights import Operand, Weights
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.models import close
from tests.shapewright.torch.test_packs import CHANGES
from tuner.program.job.build import make_workload

Two = tuple[nn.Parameter, nn.Parameter]


class Counted:
    """A packed weight and a bias as it is; how often each was looked up."""

    def __init__(self) -> None:
        self.packs = Packs(lambda weight: weight.detach() * 2)
        self.looked_up = 0
        get = (self._packed, lambda tensors: tensors[2].detach())
        self.weights = Weights([Operand(get[0], (1,), True), Operand(get[1], (2,), False)])

    def _packed(self, tensors: Any) -> Any:
        self.looked_up += 1
        return self.packs.of_one(tensors[1])

    def of(self, *tensors: torch.Tensor) -> Any:
        return self.weights.of([torch.rand(2), *tensors])


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def two() -> Two:
    return nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))


def settled(counted: Counted, two: Two) -> Any:
    """What is found once nothing is packed any more."""
    counted.of(*two)
    counted.of(*two)
    counted.looked_up = 0
    return counted.of(*two)


def test_what_has_not_changed_is_not_looked_up(counted: Counted, two: Two) -> None:
    found = settled(counted, two)
    assert counted.of(*two) is found
    assert counted.looked_up == 0
    assert list(found.pointers) == [counted.packs.of_one(two[0]).data_ptr(), two[1].data_ptr()]
    assert found.described == (((3, 4), "float32"), ((4,), "float32"))


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_weight_is_noticed(counted: Counted, two: Two, change: str) -> None:
    settled(counted, two)
    CHANGES[change](two[0])
    pointer, _ = counted.of(*two).pointers
    assert counted.looked_up == 1
    assert pointer == counted.packs.of_one(two[0]).data_ptr()
    assert torch.equal(counted.packs.of_one(two[0]), two[0] * 2)


OTHERS: dict[str, Callable[[nn.Parameter], Any]] = {
    "another place": lambda bias: setattr(bias, "data", torch.randn(4)),
    "another shape in the same place": lambda bias: setattr(bias, "data", bias.data.view(2, 2)),
    "another dtype in the same place": lambda bias: setattr(bias, "data", bias.data.view(torch.bfloat16)),
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_constant_as_it_is_may_be_another_one(counted: Counted, two: Two, change: str) -> None:
    before = settled(counted, two)
    OTHERS[change](two[1])
    found = counted.of(*two)
    assert found.pointers[1] == two[1].data_ptr()
    shape, dtype = found.described[1]
    assert shape == tuple(two[1].shape)
    assert torch.zeros(0, dtype=getattr(torch, dtype)).dtype is two[1].dtype
    assert (found.number == before.number) == (found.described == before.described)


def test_a_storage_that_has_another_ones_address_is_noticed(counted: Counted, two: Two) -> None:
    weight, bias = two
    settled(counted, two)
    place, version = weight.data_ptr(), weight._version
    weight.data = torch.empty(0)
    # The allocator hands out what was freed last.
    others = [torch.randn(3, 4) for _ in range(100)]
    weight.data = next((each for each in others if each.data_ptr() == place), others[0])
    assert weight._version == version
    counted.of(weight, bias)
    assert torch.equal(counted.packs.of_one(weight), weight * 2)
    assert counted.looked_up == 1


def test_what_was_dropped_is_looked_up_again_and_let_go(counted: Counted, two: Two) -> None:
    found = settled(counted, two)
    packed = weakref.ref(found.kept[0])
    del found
    sw.torch.forget()
    gc.collect()
    assert packed() is None
    counted.of(*two)
    assert counted.looked_up == 1


def test_a_constant_that_has_to_be_copied_is_copied_at_each_call(two: Two) -> None:
    spread = torch.randn(8)[::2]
    weights = Weights([Operand(lambda tensors: tensors[0].contiguous(), (0,), False)])
    first = weights.of([spread])
    spread.add_(1)
    second = weights.of([spread])
    assert torch.equal(second.kept[0], spread)
    assert first is not second
    assert first.number == second.number


def test_tensors_of_inference_mode_are_looked_up_at_each_call(counted: Counted) -> None:
    with torch.inference_mode():
        weight, bias = torch.randn(3, 4), torch.randn(4)
        counted.of(weight, bias)
        weight.mul_(2)
        (packed,) = counted.of(weight, bias).kept
        assert torch.equal(packed, weight * 2)
    assert counted.looked_up == 2


def test_whoever_wants_values_checked_has_them_checked(monkeypatch: pytest.MonkeyPatch, two: Two) -> None:
    monkeypatch.setenv(CHECK, "1")
    counted = Counted()
    settled(counted, two)
    two[0].data.mul_(3.0)
    with pytest.warns(UserWarning, match="was changed"):
        (packed,) = counted.of(*two).kept
    assert torch.equal(packed, two[0] * 2)


def test_a_weight_that_a_frozen_program_writes_to_is_read_by_each_call(built: OnDemand) -> None:
    class Growing(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.register_buffer("weight", torch.eye(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = nn.functional.linear(self.first(x).relu(), self.weight, self.weight[0])
            self.weight.mul_(2)
            return out

    model, x = Growing().eval(), torch.rand(3, 16)
    own = copy.deepcopy(model)
    program = torch.export.export(model, (x,))
    # As if the weight stayed, there is a library, too.
    workloads = [make_workload("dense", {"m": 3, "n": 16, "k": 16}, epilogue=["bias"])]
    workloads += [task.workload for task in sw.extract(program)]
    folders = [built.folder(each) for each in workloads]
    fast = sw.torch.compile_exported(program, folders, freeze=True, options={"rest": "eager"})
    with torch.no_grad():
        for _ in range(3):
            assert close(fast(x), own(x))


def test_an_input_of_a_frozen_program_stays_an_input_where_buffers_are_one(built: OnDemand) -> None:
    class Twice(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
            self.register_buffer("count", torch.zeros(16))
            self.register_buffer("same", self.count)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return self.second(self.first(x).relu()).cumsum(0) + self.same

    model = Twice().eval()
    own = copy.deepcopy(model)
    epilogues = ["bias"], ["bias", "relu"]
    kept = [make_workload("dense", {"m": 3, "n": 16, "k": 16}, epilogue=each) for each in epilogues]
    folders = [built.folder(each) for each in kept]
    program = torch.export.export(model, (torch.rand(3, 16),))
    fast = sw.torch.compile_exported(program, folders, freeze=True, options={"rest": "eager"})
    assert len(fast.shapewright_report.replaced) == 2
    with torch.no_grad():
        for _ in range(3):
            x = torch.rand(3, 16)
            assert close(fast(x), own(x))
