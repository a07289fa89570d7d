"""What well-known models do is replaced, by the workloads that ``sw.extract`` finds, whatever sizes come."""

from __future__ import annotations

import functools
import itertools
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import shapewright as sw
from shapewright.torch.backend import shapewright
from tests.shapewright.libraries import OnDemand
from tests.shapewright.torch.idioms import IDIOMS, WIDTH, RmsNorm, build, exported
from tests.shapewright.torch.replacing import Replacing
from tests.shares import chosen

pytestmark = pytest.mark.timeout(300)

SIZES = ((4, 7), (2, 5), (3, 9), (5, 40))
"""Batches and lengths; the libraries are for up to 32."""


@pytest.fixture(autouse=True)
def _counted_from_here(quiet_process: None) -> None:
    counters.clear()


@functools.cache
def tasks(name: str) -> sw.ModelTasks:
    """What ``sw.extract`` finds in an idiom."""
    return sw.extract(build(name), *exported(name))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory, built: OnDemand) -> Callable[[str], Path]:
    """By idiom the libraries of what ``sw.extract`` finds in it, and of nothing else."""
    folder = tmp_path_factory.mktemp("idioms")

    def made(name: str) -> Path:
        for task in tasks(name):
            if not (at := folder / name / task.workload.key).is_dir():
                shutil.copytree(built.folder(task.workload), at)
        return folder / name

    return made


def compiled(name: str, source: Any, report: sw.torch.Report) -> tuple[torch.nn.Module, Any]:
    model = build(name)
    options = {"source": source, "report": report, "rest": "eager", "threads": 1}
    return model, torch.compile(model, backend=shapewright, dynamic=True, options=options)


def marked(inputs: Sequence[torch.Tensor], dims: Sequence[Mapping[int, Any]]) -> None:
    """Only these axes are dynamic."""
    for given, axes in zip(inputs, dims, strict=True):
        for axis in axes:
            torch._dynamo.mark_dynamic(given, axis)


@pytest.mark.parametrize("name", chosen(["residual"], IDIOMS))
def test_all_that_is_lifted_is_replaced_at_every_size(name: str, libraries: Callable[[str], Path]) -> None:
    report = sw.torch.Report()
    model, fast = compiled(name, str(libraries(name)), report)
    graphs = []
    with torch.no_grad():
        for batch, length in SIZES:
            inputs = IDIOMS[name].inputs(batch, length)
            torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-4, equal_nan=True)
            graphs.append(counters["stats"]["unique_graphs"])
            if (batch, length) == SIZES[0]:
                assert report.replaced
                assert report.share is not None and report.share >= 0.95
                assert not [each for each in report.kept if each.workload], str(report)
    assert graphs[0] == graphs[-1]


@pytest.mark.parametrize("name", chosen(["residual"], IDIOMS))
def test_sizes_of_one_are_a_graph_of_their_own(name: str, libraries: Callable[[str], Path]) -> None:
    """PyTorch takes a size of 1 for a constant."""
    model, fast = compiled(name, str(libraries(name)), sw.torch.Report())
    with torch.no_grad():
        for batch, length in ((4, 7), (1, 1)):
            inputs = IDIOMS[name].inputs(batch, length)
            torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", chosen(["residual"], IDIOMS))
def test_a_compiled_model_asks_for_what_extract_finds(name: str, built: OnDemand, replacing: Replacing) -> None:
    model = build(name)
    inputs, dims = exported(name)
    marked(inputs, dims)
    with torch.no_grad():
        replacing.compiled(model, dynamic=None)(*inputs)
    assert {each.key for each in replacing.report.replaced} == {task.workload.key for task in tasks(name)}


SHORT = [("unmasked", "autocast")]
"""Weights in bfloat16 are in `test_chains.py`."""


@pytest.mark.parametrize("which", chosen(SHORT, itertools.product(IDIOMS, ["weights", "autocast"])), ids="-".join)
def test_models_in_bfloat16_are_replaced_and_as_exact_as_eager(which: tuple[str, str], replacing: Replacing) -> None:
    name, by = which
    model, inputs, is_autocast = build(name), IDIOMS[name].inputs(3, 8), by == "autocast"
    exact = model(*inputs)
    if not is_autocast:
        model = model.bfloat16()
        inputs = tuple(each.bfloat16() if each.is_floating_point() else each for each in inputs)
    fast = replacing.compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        found, right = fast(*inputs), model(*inputs)
    assert (found.dtype, found.shape, found.stride()) == (right.dtype, right.shape, right.stride())
    mine, own = ((each.float() - exact).abs().nan_to_num().max().item() for each in (found, right))
    assert mine <= 2 * own + 1e-3
    assert replacing.report.share is not None and replacing.report.share >= 0.95, str(replacing.report)


@pytest.mark.parametrize("name", chosen(["residual"], IDIOMS))
def test_a_saved_program_is_replaced_as_the_model_is(name: str, tmp_path: Path, replacing: Replacing) -> None:
    model, (inputs, dims) = build(name), exported(name)
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dims), tmp_path / "model.pt2")
    fast = replacing.compiled(torch.export.load(tmp_path / "model.pt2").module(), dynamic=None)
    marked(inputs, dims)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert replacing.report.share is not None and replacing.report.share >= 0.95, str(replacing.report)
    assert {each.key for each in replacing.report.replaced} == {task.workload.key for task in tasks(name)}


@pytest.mark.soak
@pytest.mark.parametrize(("given", "rest"), itertools.product(["none", "words", "keys"], ["eager", "inductor"]))
def test_autocast_has_its_say_inside_of_the_fast_path(given: str, rest: str, replacing: Replacing) -> None:
    layer, x = torch.nn.TransformerEncoderLayer(32, 2, 48, batch_first=True).eval(), torch.randn(3, 5, 32)
    masks: dict[str, torch.Tensor] = {}
    if given == "words":
        masks["src_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    elif given == "keys":
        masks["src_key_padding_mask"] = torch.arange(5).expand(3, 5) > 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, right = replacing.compiled(lambda x: layer(x, **masks), rest=rest)(x), layer(x, **masks)
    assert found.dtype is right.dtype is torch.bfloat16
    torch.testing.assert_close(found, right, rtol=3e-2, atol=3e-2)
    assert replacing.report.share == 1.0, str(replacing.report)


def test_a_number_that_goes_on_changing_becomes_an_operand(built: OnDemand, replacing: Replacing) -> None:
    model = RmsNorm().eval()
    fast = replacing.compiled(model)
    rows = torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        for epsilon in (1e-6, 1e-5, 1e-4, 1e-1, 2.0):
            model.variance_epsilon = epsilon
            torch.testing.assert_close(fast(rows), model(rows), rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] <= 4
    assert any("rms_norm" in each.workload for each in replacing.report.replaced)


def test_sizes_that_libraries_fix_are_compiled_anew_and_marked_ones_are_not(
    libraries: Callable[[str], Path],
) -> None:
    report = sw.torch.Report()
    model, fast = compiled("residual", str(libraries("residual")), report)
    with torch.no_grad():
        for batch, size in ((2, 12), (5, 12), (3, 20), (4, 20)):
            images = torch.randn(batch, 3, size, size)
            torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 2
    assert any("a size of 12 is read as a constant" in note for note in report.notes)
    torch._dynamo.reset()
    model, fast = compiled("residual", str(libraries("residual")), report := sw.torch.Report())
    images = torch.randn(2, 3, 12, 12)
    torch._dynamo.mark_dynamic(images, 2)
    with torch.no_grad():
        fast(images)
    assert not any("read as a constant" in note for note in report.notes)


MASKS = ("none", "words", "keys", "words and keys", "all keys of a sample")


LAYERS = [("words", True)]
"""For `make test`."""


@pytest.mark.parametrize("case", chosen(LAYERS, itertools.product(MASKS, [False, True])), ids=str)
def test_the_fast_path_of_an_encoder_layer_is_taken_apart(case: tuple[str, bool], replacing: Replacing) -> None:
    mask, is_first = case
    layer = torch.nn.TransformerEncoderLayer(32, 2, 48, batch_first=True, norm_first=is_first).eval()
    given: dict[str, torch.Tensor] = {}
    if "words" in mask:
        given["src_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if "keys" in mask:
        given["src_key_padding_mask"] = torch.zeros(3, 5, dtype=torch.bool)
        given["src_key_padding_mask"][0, 0 if "all" in mask else 2 :] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of masks of two dtypes
        replacing.check(lambda x: layer(x, **given), torch.randn(3, 5, 32), replaced=7)


@pytest.mark.parametrize("rest", chosen(["eager"], ["eager", "inductor"]))
def test_the_fast_path_of_self_attention_is_taken_apart(rest: str, replacing: Replacing) -> None:
    attention = torch.nn.MultiheadAttention(32, 2, batch_first=True).eval()
    given = torch.randn(3, 5, 32)
    replacing.check(lambda x: attention(x, x, x, need_weights=False), given, rest=rest, replaced=3)
