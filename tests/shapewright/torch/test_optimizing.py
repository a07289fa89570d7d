"""sw.torch.optimize: modules swapped for tuned ones, and PyTorch's own where nothing fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import shapewright as sw
from tests.shapewright.libraries import save_library
from tests.shapewright.torch.models import CLASSES, WIDTH, Layers, close
from tuner.errors import InvalidInput, ShapewrightError
from tuner.program.language.workload import ShapeVar

ROOT = Path(__file__).resolve().parents[3]


def test_modules_are_swapped_and_compute_the_same_at_every_size(libraries: Path) -> None:
    model = Layers().eval()
    tuned = sw.torch.optimize(model, libraries)
    report = sw.torch.report(tuned)
    assert {each.where: each.workload.partition("(")[0] for each in report.replaced} == {
        "layer.self_attn.in_proj": "dense", "layer.self_attn.attention": "attention",
        "layer.self_attn.out_proj": "dense", "layer.linear1": "dense", "layer.linear2": "dense",
        "layer.norm1": "layer_norm", "layer.norm2": "layer_norm", "head": "dense", "softmax": "softmax",
    }  # fmt: skip
    (kept,) = report.kept
    assert (kept.where, kept.reason) == ("norm", "no library for this workload")
    with torch.no_grad():
        for batch, length in ((1, 1), (1, 5), (3, 7), (2, 40), (0, 3)):
            x = torch.randn(batch, length, WIDTH)
            assert close(tuned(x), model(x))
    assert "of " + str(libraries) in str(report)
    document = report.to_json()
    assert document["replaced"][1]["copies"].keys() == {"q", "k", "v"}
    assert {len(document[name]) for name in ("replaced", "kept", "notes")} == {9, 1, 0}
    assert document["share"] is None


def test_the_model_itself_stays_as_it_was_and_shares_its_weights(libraries: Path) -> None:
    model = Layers().eval()
    tuned = sw.torch.optimize(model, libraries)
    assert type(model.head) is nn.Linear
    assert isinstance(tuned.head, nn.Linear)
    assert tuned.head.weight is model.head.weight
    assert list(tuned.state_dict()) == list(model.state_dict())
    model.load_state_dict(Layers().state_dict())
    x = torch.randn(2, 3, WIDTH)
    with torch.no_grad():
        assert close(tuned(x), model(x))


def test_a_bias_is_added_where_the_library_has_none(tmp_path: Path) -> None:
    rows = ShapeVar("M", range(1, 9))
    save_library(tmp_path, "dense", {"m": rows, "n": 5, "k": 3}, (rows,))
    model = nn.Linear(3, 5).eval()
    tuned = sw.torch.optimize(model, tmp_path)
    (replaced,) = sw.torch.report(tuned).replaced
    assert "bias" not in replaced.workload
    x = torch.randn(4, 3)
    with torch.no_grad():
        assert close(tuned(x), model(x))


def test_where_a_gradient_is_wanted_pytorchs_own_runs_and_this_is_said_once(libraries: Path) -> None:
    model = Layers().eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(2, 3, WIDTH)
    with pytest.warns(UserWarning, match="for inference") as told:
        tuned(x).square().sum().backward()
        tuned(x).square().sum().backward()
    assert len(told) == 1
    assert len(sw.torch.report(tuned).notes) == 1
    ours = model.head.weight.grad
    model.head.weight.grad = None
    for _ in range(2):
        model(x).square().sum().backward()
    assert ours is not None
    assert close(ours, model.head.weight.grad)


@pytest.mark.parametrize("masked", ["attn_mask", "key_padding_mask", "need_weights", "cross"])
def test_attention_that_libraries_have_not_runs_as_it_did(libraries: Path, masked: str) -> None:
    model = nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(2, 4, WIDTH)
    further = {
        "attn_mask": {"attn_mask": torch.ones(4, 4, dtype=torch.bool).triu(1), "need_weights": False},
        "key_padding_mask": {"key_padding_mask": torch.tensor([[False] * 3 + [True]] * 2), "need_weights": False},
        "need_weights": {},
        "cross": {"need_weights": False},
    }[masked]
    keys = torch.randn(2, 3, WIDTH) if masked == "cross" else x
    with torch.no_grad():
        for ours, theirs in zip(tuned(x, keys, keys, **further), model(x, keys, keys, **further), strict=True):
            assert (ours is None and theirs is None) or close(ours, theirs)


def test_attention_takes_sequences_in_front(libraries: Path) -> None:
    model = nn.MultiheadAttention(WIDTH, 2).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(4, 2, WIDTH)
    with torch.no_grad():
        assert close(tuned(x, x, x, need_weights=False)[0], model(x, x, x, need_weights=False)[0])


def test_a_convolution_takes_images_of_every_size(tmp_path: Path) -> None:
    b, h, w = (ShapeVar(name, range(1, 9)) for name in "BHW")
    args = {"b": b, "c": 3, "h": h, "w": w, "o": 8, "r": 3, "s": 3, "stride": 2, "pad": 1}
    save_library(tmp_path, "conv2d", args, (b, h, w), ("bias",))
    model = nn.Conv2d(3, 8, 3, stride=2, padding=1).eval()
    tuned = sw.torch.optimize(model, tmp_path, strict=True)
    with torch.no_grad():
        for size in ((1, 3, 5, 5), (2, 3, 8, 3)):
            x = torch.randn(size)
            assert close(tuned(x), model(x))
        for each in (model, tuned):
            each.stride, each.padding, each.dilation = (1, 1), (2, 2), (2, 2)
        with pytest.warns(UserWarning, match="another one than when it was optimized"):
            assert close(tuned(x), model(x))


def test_a_norm_whose_eps_is_changed_is_pytorchs_own(libraries: Path) -> None:
    model, x = nn.LayerNorm(WIDTH).eval(), torch.randn(5, WIDTH)
    tuned = sw.torch.optimize(model, libraries)
    model.eps = tuned.eps = 0.5
    with torch.no_grad(), pytest.warns(UserWarning, match="another one than when it was optimized"):
        assert close(tuned(x), model(x))


def test_libraries_for_as_many_threads_as_pytorch_has_are_taken(tmp_path: Path) -> None:
    rows = ShapeVar("M", range(1, 9))
    save_library(tmp_path, "dense", {"m": rows, "n": WIDTH, "k": WIDTH}, (rows,), ("bias",), threads=2)
    model = nn.Linear(WIDTH, WIDTH).eval()
    assert not sw.torch.report(sw.torch.optimize(model, tmp_path)).replaced
    torch.set_num_threads(2)
    tuned = sw.torch.optimize(model, tmp_path, strict=True)
    assert [each.threads for each in sw.torch.report(tuned).replaced] == [2]
    with torch.no_grad():
        for count in (1, 7, 64):
            x = torch.randn(count, WIDTH)
            assert close(tuned(x), model(x))


class _Subclass(nn.Linear):  # type: ignore[misc]
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_what_is_not_swapped_is_as_it_was(libraries: Path) -> None:
    with torch.inference_mode():
        made = nn.Linear(WIDTH, WIDTH)
    model = nn.ModuleList(
        [_Subclass(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.LayerNorm((2, WIDTH)), made]
    ).eval()
    tuned = sw.torch.optimize(model, libraries)
    assert [type(each) for each in tuned] == [type(each) for each in model]
    reasons = {kept.where: kept.reason for kept in sw.torch.report(tuned).kept}
    assert reasons == {
        "0": "it is a subclass of Linear, and what that computes is not known",
        "1": "its parameters are of float64",
        "2": "it normalises several axes, or has no weight or no bias",
        "3": "its parameters were made in inference mode: a change of them could not be noticed",
    }


def test_other_inputs_go_to_pytorch(libraries: Path) -> None:
    model = nn.Linear(WIDTH, CLASSES).eval()
    tuned = sw.torch.optimize(model, libraries)
    with torch.no_grad():
        assert tuned(torch.randn(WIDTH)).shape == (CLASSES,)
        with pytest.raises(RuntimeError, match="dtype"):
            tuned(torch.randn(3, WIDTH, dtype=torch.float64))


def test_strict_refuses_a_module_without_a_library(libraries: Path) -> None:
    with pytest.raises(ShapewrightError, match="rms_norm"):
        sw.torch.optimize(Layers().eval(), libraries, strict=True)


def test_what_is_no_model_or_has_no_report_is_refused(libraries: Path) -> None:
    with pytest.raises(InvalidInput, match="model"):
        sw.torch.optimize(Layers, libraries)
    with pytest.raises(InvalidInput, match="has no report"):
        sw.torch.report(Layers())


@pytest.mark.soak
def test_an_optimized_model_is_exported_saved_and_loaded_in_another_process(
    libraries: Path, tmp_path: Path, data_dir: Path
) -> None:
    model = Layers().eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(3, 5, WIDTH)
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=1, max=64)}
    program = torch.export.export(tuned, (torch.randn(2, 9, WIDTH),), dynamic_shapes=(dims,))
    calls = [node for node in program.graph.nodes if node.target is torch.ops.shapewright.call.default]
    assert len(calls) == 9
    torch.export.save(program, tmp_path / "model.pt2")
    with torch.no_grad():
        torch.save((x, model(x)), tmp_path / "expected.pt")
    script = (
        "import sys, torch, shapewright.torch\n"
        "program = torch.export.load(sys.argv[1])\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "with torch.no_grad():\n"
        "    print(torch.allclose(program.module()(x), expected, rtol=1e-4, atol=1e-5))\n"
    )
    line = [sys.executable, "-c", script, str(tmp_path / "model.pt2"), str(tmp_path / "expected.pt")]
    result = subprocess.run(line, capture_output=True, text=True, timeout=240, check=True, cwd=ROOT)
    assert result.stdout.split() == ["True"]
