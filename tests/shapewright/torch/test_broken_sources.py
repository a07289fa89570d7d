"""A build whose sources are all broken ends with what PyTorch computes, and one warning."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

import shapewright as sw
from tests.shapewright.answering import answering
from tests.shapewright.sources.breaking import FOLDERS, SERVICES, spoiled
from tests.shapewright.torch.models import WIDTH, close
from tests.shapewright.unprivileged import run_unprivileged


def build(model: nn.Module, sources: list[str | Path]) -> tuple[object, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        options = {"source": sources, "rest": "eager"}
        fast = torch.compile(model.eval(), backend="shapewright", dynamic=True, options=options)
        fast(torch.rand(5, WIDTH))
    return fast, [str(each.message) for each in caught if "shapewright" in str(each.message)]


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_with_every_source_broken_in_every_way_pytorch_computes_and_one_warning_says_so(
    libraries: Path, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH))
    with ExitStack() as stack:
        urls = [stack.enter_context(answering(answer)) for answer in SERVICES.values()]
        missing: list[str | Path] = [tmp_path / "missing", "~nobody/here", "a" * 5000, "\0"]
        sources: list[str | Path] = [*spoiled(libraries, tmp_path), *urls, *missing]
        fast, warned = build(model, sources)
    given = torch.rand(7, WIDTH)
    assert close(fast(given), model(given))  # type: ignore[operator]
    assert len(warned) == 1, warned
    assert "more, which the report's notes name" in warned[0]
    assert len(sw.torch.report().notes) >= len(FOLDERS)
    assert len(sw.torch.report().replaced) == 0


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_beside_broken_sources_a_whole_one_serves(libraries: Path, tmp_path: Path) -> None:
    fast, warned = build(nn.Linear(WIDTH, WIDTH), [*spoiled(libraries, tmp_path), libraries])
    assert len(warned) == 1
    assert len(sw.torch.report().replaced) == 1
    assert fast is not None


PROXY, NONE, UNUSABLE = {"ALL_PROXY": "socks5://h:1"}, {"HOME": ""}, {"HOME": "/dev/null/home"}
ENVIRONMENTS = (PROXY | UNUSABLE, PROXY, NONE, UNUSABLE)


@pytest.mark.soak
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_a_user_without_a_home_builds(environment: dict[str, str], libraries: Path, tmp_path: Path) -> None:
    program = (
        "import sys, warnings, torch\n"
        "import shapewright as sw\n"
        "for source in (sys.argv[1], 'http://127.0.0.1:1', 'http://far.example'):\n"
        f"    model, given = torch.nn.Linear({WIDTH}, {WIDTH}).eval(), torch.rand(3, {WIDTH})\n"
        "    options = {'source': source, 'rest': 'eager', 'threads': 1}\n"
        "    fast = torch.compile(model, backend='shapewright', dynamic=True, options=options)\n"
        "    with torch.no_grad():\n"
        "        assert torch.allclose(fast(given), model(given), atol=1e-5)\n"
        "    print(len(sw.torch.report().replaced))\n"
    )
    ran = run_unprivileged([sys.executable, "-W", "ignore", "-c", program, str(libraries)], tmp_path, environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("1\n")
