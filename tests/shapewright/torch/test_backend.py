"""torch.compile(backend="shapewright"): what is replaced, for which lengths it is compiled, what is left alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch.nn import functional

import shapewright as sw
from shapewright.torch.backend import shapewright
from shapewright.torch.normal_form import PROBE, probe_vectors
from tests.shapewright.libraries import save
from tests.shapewright.torch.models import CLASSES, INNER, WIDTH, Encoder, close, words
from tests.shares import chosen
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.target import native

ROOT = Path(__file__).resolve().parents[3]


def compiled(model: nn.Module, libraries: Path, **options: Any) -> Any:
    given = {"source": libraries, "rest": "eager", **options}
    return torch.compile(model.eval(), backend=shapewright, dynamic=True, options=given)


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def copies() -> list[dict[str, int]]:
    """What the operator itself has copied so far, of all models with such calls."""
    return [dict(each.copies) for each in sw.torch.report().replaced]


@pytest.fixture(autouse=True)
def _counted() -> None:
    counters.clear()


def test_groups_of_a_graph_are_replaced_and_new_lengths_compile_nothing(encoder_libraries: Path) -> None:
    model = Encoder()
    fast = compiled(model, encoder_libraries)
    with torch.no_grad():
        for batch, length in ((2, 7), (2, 9), (3, 5), (4, 33), (2, 100)):
            given = words(batch, length)
            assert close(fast(given), model(given))
        assert graphs() == 1
        report = sw.torch.report()
        # A size of 1 is one of TorchDynamo's own special cases.
        given = words(1, 9)
        assert close(fast(given), model(given))
        before = graphs()
        assert before == 2
        for batch, length in ((1, 12), (5, 6), (1, 2)):
            given = words(batch, length)
            assert close(fast(given), model(given))
        assert graphs() == before
    names = sorted(each.workload.partition("(")[0] for each in report.replaced)
    assert names == ["attention", *["dense"] * 7, *["layer_norm"] * 2, "softmax"]
    assert [each.workload for each in report.replaced if "gelu" in each.workload]
    assert not [each for each in report.replaced if each.strided]
    assert "embedding" in " ".join(kept.reason for kept in report.kept)


def test_weights_that_change_are_packed_again(encoder_libraries: Path) -> None:
    model, given = Encoder(), words(2, 5)
    fast = compiled(model, encoder_libraries)
    with torch.no_grad():
        fast(given)
        model.up.weight.mul_(2.0)
        assert close(fast(given), model(given))
        model.load_state_dict(Encoder().state_dict())
        assert close(fast(given), model(given))
        model.down.weight.data = torch.randn(WIDTH, INNER)
        assert close(fast(given), model(given))
        model.head.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))
        assert close(fast(given), model(given))


def test_inductor_calls_libraries_directly_and_compiles_the_rest(encoder_libraries: Path) -> None:
    model = Encoder()
    fast = compiled(model, encoder_libraries, rest="inductor", strict=True)
    with torch.no_grad():
        fast(words(2, 8))
        before = copies()
        for length in (7, 9, 31):
            given = words(2, length)
            assert close(fast(given), model(given))
        assert graphs() == 1
        model.up.weight.mul_(2.0)
        model.down.weight.data = torch.randn(WIDTH, INNER)
        assert close(fast(given), model(given))
    # Inductor's code copies what has strides: the operator itself was never called.
    assert copies() == before


@pytest.mark.parametrize("by", chosen(["options"], ["options", "configuration"]))
def test_passes_of_the_users_own_run_too(by: str, encoder_libraries: Path) -> None:
    seen: list[set[str]] = []

    def own(graph: torch.fx.Graph) -> None:
        seen.append({str(node.target) for node in graph.nodes})

    passes = {"joint_custom_pre_pass": own}
    fast = compiled(
        Encoder(), encoder_libraries, rest="inductor", strict=True, inductor=passes if by == "options" else {}
    )
    with torch.no_grad(), inductor_config.patch(**({} if by == "options" else passes)):
        given = words(2, 8)
        assert close(fast(given), fast._orig_mod(given))
    (targets,) = seen
    assert any("addmm" in target or "linear" in target for target in targets), targets
    assert sw.torch.report().replaced


def test_where_gradients_are_recorded_nothing_is_replaced(encoder_libraries: Path) -> None:
    model, given = Encoder(), words(2, 5)
    fast = compiled(model, encoder_libraries)
    fast(given).square().sum().backward()
    assert model.head.weight.grad is not None
    report = sw.torch.report()
    assert not report.replaced
    assert "for inference" in report.notes[0]
    with torch.no_grad():
        assert close(fast(given), model(given))
    assert sw.torch.report().replaced


class _Turned(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.transpose(0, 1))


def test_operands_that_have_to_be_copied_are_reported(libraries: Path) -> None:
    model, x = _Turned(), torch.randn(4, 3, WIDTH)
    with torch.no_grad():
        assert close(compiled(model, libraries)(x), model(x))
    (replaced,) = sw.torch.report().replaced
    assert replaced.strided == ("x",)
    assert "x has strides that no kernel takes" in str(sw.torch.report())


class _Images(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(x)))


def test_a_norm_is_folded_into_a_convolution_and_again_when_it_has_changed(tmp_path: Path) -> None:
    model, images = _Images().eval(), torch.randn(3, 3, 8, 8)
    dims = ({0: torch.export.Dim("batch", min=1, max=8)},)
    for task in sw.extract(model, (images,), dims):
        save(tmp_path / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))
    fast = torch.compile(model, backend=shapewright, options={"source": tmp_path, "rest": "eager", "strict": True})
    torch._dynamo.mark_dynamic(images, 0)
    with torch.no_grad():
        assert close(fast(images), model(images))
        model.norm.running_mean.add_(1.0)
        model.norm.weight.mul_(2.0)
        for count in (3, 2, 7):
            images = torch.randn(count, 3, 8, 8)
            assert close(fast(images), model(images))
    assert graphs() == 1
    (replaced,) = sw.torch.report().replaced
    assert "relu" in replaced.workload


class _InPlace(nn.Module):  # type: ignore[misc]
    def __init__(self, is_needless: bool) -> None:
        super().__init__()
        self.up, self.is_needless = nn.Linear(WIDTH, INNER), is_needless

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_needless:
            return functional.relu(self.up(x), inplace=True)
        y = x.clone()
        x.add_(1.0)
        return self.up(y)


@pytest.mark.parametrize("is_needless", [True, False])
def test_what_is_written_in_place_is_no_obstacle(is_needless: bool, libraries: Path) -> None:
    model, x = _InPlace(is_needless), torch.randn(2, 3, WIDTH)
    mine, own = x.clone(), x.clone()
    with torch.no_grad():
        assert close(compiled(model, libraries)(mine), model(own))
    assert close(mine, own)
    reasons = {kept.reason for kept in sw.torch.report().kept}
    assert reasons <= {"no library for this workload", "a single pass over memory on its own: a kernel gains nothing"}


@pytest.mark.parametrize("is_refused", [True, False])
def test_inductor_probes_vector_instructions_in_a_thread_once(
    is_refused: bool, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpu_vec_isa  # noqa: PLC0415 - seconds

    asked, find = list[threading.Thread](), cpu_vec_isa.valid_vec_isa_list

    def finding() -> Any:
        asked.append(threading.current_thread())
        if is_refused and asked[-1] is not threading.main_thread():
            raise OSError
        return find()

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", finding)
    probe_vectors.cache_clear()
    model, given = _Turned().eval(), torch.randn(4, 3, WIDTH)
    with torch.no_grad():
        assert close(compiled(model, libraries, rest="inductor")(given), model(given))
        compiled(nn.Linear(3, 3), libraries, rest="inductor")(torch.ones(2, 3))
    for each in threading.enumerate():
        if each.name == PROBE:
            each.join(60)
    assert len([each for each in asked if each is not threading.main_thread()]) == 1


def test_strict_raises_and_otherwise_pytorch_takes_over(libraries: Path, tmp_path: Path) -> None:
    model, given = _Turned().eval(), torch.randn(4, 3, WIDTH)
    with torch.no_grad():
        with pytest.raises(BackendCompilerFailed, match="no library for this workload"):
            compiled(model, tmp_path, strict=True)(given)
        torch._dynamo.reset()
        report = sw.torch.Report()
        assert close(compiled(model, tmp_path, report=report)(given), model(given))
        assert not report.replaced
        assert {kept.reason for kept in report.kept} >= {"no library for this workload"}
        torch._dynamo.reset()
        with pytest.warns(UserWarning, match="is not a directory"):
            assert close(compiled(model, tmp_path / "missing")(given), model(given))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"sources": "x"}, "options.sources"), ({"rest": "xla"}, "options.rest"), ({"report": 3}, "options.report")],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], field: str) -> None:
    graph = torch.fx.symbolic_trace(nn.Identity())
    with pytest.raises(InvalidInput, match=field):
        shapewright(graph, [torch.ones(1)], options=options)


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (target,) = project["entry-points"]["torch_dynamo_backends"].values()
    module, _, name = target.partition(":")
    assert getattr(importlib.import_module(module), name) is shapewright


@pytest.mark.soak
def test_pytorch_finds_the_backend_of_the_example_by_its_entry_point(libraries: Path, tmp_path: Path) -> None:
    """As it stands in pyproject.toml, of a distribution that holds nothing else; and the example of one line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["torch_dynamo_backends"]
    folder = tmp_path / "entry_point-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: entry-point\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines, ""]))
    line = [sys.executable, "-m", "examples.pytorch_one_line", "--source", str(libraries)]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = subprocess.run(
        [*line, "--width", str(WIDTH), "--rest", "eager"], capture_output=True, text=True, timeout=240, check=False,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    replaced = [line for line in result.stdout.splitlines() if str(libraries) in line]
    assert [line.split(": ")[1].partition("(")[0] for line in replaced] == ["dense", "dense", "layer_norm"]
