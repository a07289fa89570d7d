"""Models that are quantised dynamically, with libraries that multiply int8: what they compute, and what is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import shapewright as sw
from shapewright.torch import chain_op as chains
from shapewright.torch.chain_op import chains_so_far
from shapewright.torch.plan import plan_of
from tests.conftest import MakeOnce
from tests.shapewright.libraries import save
from tests.shapewright.models.quantised import LIMITS, perceptron, quantised, rows_of, wrapped
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import every
from tuner.program.job.task import SearchTask
from tuner.program.target import native

MOST = 32
COUNTS = (1, 2, 7, MOST)
RESTS = ("inductor", "eager")
DIMS = ({0: Dim("rows", min=1, max=MOST)},)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return perceptron()


@pytest.fixture(scope="module")
def libraries(once: MakeOnce, model: nn.Module) -> Path:
    """A library for each workload that ``sw.extract`` finds."""

    def make(folder: Path) -> None:
        tasks = sw.extract(model, (rows_of(7),), DIMS)
        assert not tasks.left
        for task in tasks:
            save(folder / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))

    return once("quantised", make)


@pytest.mark.parametrize("rest", every(2, RESTS, first=1))
def test_a_program_computes_what_the_model_does(
    rest: str, model: nn.Module, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "_chains", {})
    compiled = sw.torch.compile_exported(
        export(model, (rows_of(7),), dynamic_shapes=DIMS), libraries, strict=True, options={"rest": rest}
    )
    report = sw.torch.report(compiled)
    assert report.share == 1.0
    assert not report.kept
    for count in COUNTS:
        rows = rows_of(count)
        with torch.no_grad():
            same(compiled(rows), model(rows))
    (chain,) = chains_so_far()
    made = [plan_of(step.plan).dtype for step in chain.plan.steps]
    # Bytes lie in the memory of a chain, too, and so do scales of rows, which are read without their last axis.
    assert made == ["float32", "int8", "float32"] * 2


@pytest.mark.parametrize("rest", every(2, RESTS, first=1))
def test_the_backend_replaces_the_layers(rest: str, model: nn.Module, replacing: Replacing) -> None:
    replacing.check(model, rows_of(5), rest=rest, replaced=2)
    assert replacing.report.share == 1.0


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize(("count", "k", "n"), [(1, 1, 1), (1, 50, 33), (5, 67, 16), (MOST, 64, 7)])
def test_sums_are_those_of_pytorch(count: int, k: int, n: int, rest: str, replacing: Replacing) -> None:
    """Bit for bit: of the largest magnitudes, too."""
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    rows = torch.randint(-128, 128, (count, k), dtype=torch.int8)
    weight[0], rows[0] = -128, -128

    class Sums(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch._int_mm(x, self.weight.t())

    replacing.check(Sums(), rows, rest=rest)
    assert replacing.report.share == 1.0


@pytest.mark.parametrize("lies", ["in a row", "transposed", "with gaps"])
def test_rows_that_lie_in_another_way_are_copied(lies: str, replacing: Replacing) -> None:
    weight = nn.Buffer(torch.randint(-128, 128, (9, 20), dtype=torch.int8))
    rows = {
        "in a row": torch.randint(-128, 128, (6, 20), dtype=torch.int8),
        "transposed": torch.randint(-128, 128, (20, 6), dtype=torch.int8).t(),
        "with gaps": torch.randint(-128, 128, (6, 40), dtype=torch.int8)[:, ::2],
    }[lies]
    module = nn.Module()
    module.weight = weight
    module.forward = lambda x: torch._int_mm(x, module.weight.t())
    replacing.check(module, rows)


def test_weights_that_change_are_packed_again(replacing: Replacing) -> None:
    model = perceptron()
    compiled = replacing.compiled(model, dynamic=None)
    rows = rows_of(4)
    with torch.no_grad():
        same(compiled(rows), model(rows))
        model[0].weight.neg_().clamp_(*LIMITS)
        same(compiled(rows), model(rows))
    assert replacing.report.share == 1.0


@pytest.mark.parametrize("rest", every(2, RESTS))
def test_rows_are_rounded_as_pytorch_rounds_them(rest: str, replacing: Replacing) -> None:
    """Bit for bit, halves to even; a row of zeros, and one so small that its scale has a floor."""
    halves = torch.arange(-127, 128).repeat(4, 1) + 0.5
    halves[:, 0] = 127.0
    halves[1] *= 3e-9
    halves[2] = 0.0
    halves[3] = torch.randn(255)
    replacing.check(quantised, halves, rest=rest, replaced=2)
    with torch.no_grad():
        found = replacing.compiled(quantised, rest=rest)(halves)
    assert all(map(torch.equal, found, quantised(halves)))


def test_weights_that_wrap_several_tensors_stay_from_call_to_call(replacing: Replacing) -> None:
    """All of them, also where a program has more inputs than weights: each is one or several."""
    model = wrapped()
    program = export(model, (rows_of(7),), dynamic_shapes=DIMS)
    compiled = sw.torch.compile_exported(program, options={"rest": "eager"})
    assert sw.torch.report(compiled).share == 1.0
    for count in COUNTS:
        rows = rows_of(count)
        with torch.no_grad():
            same(compiled(rows), model(rows))


@pytest.mark.parametrize("kind", ["Int8DynamicActivationInt8WeightConfig", "Int8WeightOnlyConfig"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_of_torchao_have_libraries(dtype: torch.dtype, kind: str, replacing: Replacing) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed: pip install torchao")
    model = nn.Sequential(nn.Linear(50, 33), nn.GELU(), nn.Linear(33, 17)).eval().to(dtype)
    quantization.quantize_(model, getattr(quantization, kind)())
    rows = rows_of(7).to(dtype)
    compiled = replacing.compiled(model)
    with torch.no_grad():
        same(compiled(rows), model(rows))
    assert replacing.report.share == 1.0
