"""Models with packed weights that were unpacked, with libraries: bit for bit what PyTorch's own layers compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import shapewright as sw
from shapewright.torch.optimizing import PACKED
from tests.conftest import MakeOnce
from tests.shapewright.libraries import save
from tests.shapewright.models.packed import HIDDEN, INPUTS, K, N, packed, quantised, with_relu
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import every
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.target import native

MOST = 32
COUNTS = (1, 2, 7, MOST)
DIMS = ({0: Dim("rows", min=1, max=MOST)},)


def layer() -> nn.Module:
    return packed()[:1].eval()


@pytest.fixture(scope="module")
def libraries(once: MakeOnce) -> Path:
    """A library for each workload that ``sw.extract`` finds in the packed layer."""

    def make(folder: Path) -> None:
        for task in sw.extract(layer(), (torch.randn(7, K),), DIMS):
            save(folder / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))

    return once("packed", make)


@pytest.mark.parametrize("rest", every(2, ["eager", "inductor"]))
def test_a_program_computes_what_the_packed_layer_does(rest: str, libraries: Path) -> None:
    """Bit for bit, also halfway between two bytes: kernels multiply and add in one instruction, as FBGEMM does."""
    model = layer()
    program = export(sw.torch.unpacked(model), (torch.randn(7, K),), dynamic_shapes=DIMS)
    compiled = sw.torch.compile_exported(program, libraries, strict=True, options={"rest": rest})
    report = sw.torch.report(compiled)
    assert report.share == 1.0
    assert len(report.replaced) == 2
    for name, rows in INPUTS.items():
        for count in COUNTS:
            given = rows(count, K)
            with torch.no_grad():
                found, right = compiled(given), model(given)
            assert torch.equal(found, right), f"{name}, {count} rows"


def test_the_backend_replaces_both_layers(replacing: Replacing) -> None:
    model = packed("a scale for each column")
    compiled = replacing.compiled(sw.torch.unpacked(model))
    for rows in (torch.randn(5, K), torch.zeros(2, K), torch.empty(0, K)):
        with torch.no_grad():
            same(compiled(rows), model(rows))
    assert replacing.report.share == 1.0


@pytest.mark.parametrize("make", every(3, [with_relu, lambda: packed("float16"), lambda: packed("zero points")]))
def test_other_layers_are_replaced_as_far_as_they_are_products(
    make: Callable[[], nn.Module], replacing: Replacing
) -> None:
    model = make()
    compiled = replacing.compiled(sw.torch.unpacked(model))
    rows = torch.randn(5, K)
    with torch.no_grad():
        same(compiled(rows), model(rows))
    assert replacing.report.share == 1.0


def test_what_is_no_number_is_none_behind_libraries_either(replacing: Replacing) -> None:
    compiled = replacing.compiled(sw.torch.unpacked(layer()))
    for wrong in (torch.inf, torch.nan):
        rows = torch.randn(3, K)
        rows[1, 2] = wrong
        with torch.no_grad():
            assert not compiled(rows).isfinite().any()


def test_unpacking_shares_the_rest_and_changes_nothing() -> None:
    model = nn.Sequential(nn.LayerNorm(K), *packed()).eval()
    before = str(model)
    found = sw.torch.unpacked(model)
    assert found[0].weight is model[0].weight
    assert str(model) == before
    assert not found.training
    again = sw.torch.unpacked(found)
    assert again[1].weight_int8 is found[1].weight_int8
    with pytest.raises(InvalidInput, match=r"model: function is none"):
        sw.torch.unpacked(layer)


def test_a_saved_program_needs_no_packed_weights(tmp_path: Path) -> None:
    model = packed()
    program = export(sw.torch.unpacked(model), (torch.randn(7, K),), dynamic_shapes=DIMS)
    torch.export.save(program, tmp_path / "model.pt2")
    rows = torch.randn(3, K)
    with torch.no_grad():
        same(torch.export.load(tmp_path / "model.pt2").module()(rows), model(rows))
    assert len(list(sw.extract(tmp_path / "model.pt2"))) == 4


def test_modules_alone_stay_packed_and_say_why(libraries: Path) -> None:
    model = quantised(nn.Sequential(nn.Linear(K, HIDDEN), nn.LSTM(HIDDEN, N)), layers=(nn.Linear, nn.LSTM))
    tuned = sw.torch.optimize(model, libraries)
    kept = sw.torch.report(tuned).kept
    assert [(each.where, each.what, each.reason) for each in kept] == [("0", "Linear", PACKED), ("1", "LSTM", PACKED)]
    rows = torch.randn(4, 3, K)
    with torch.no_grad():
        same(tuned(rows), model(rows))
