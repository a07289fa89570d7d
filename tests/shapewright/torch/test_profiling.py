"""Profiles of models: kernels by their workloads, PyTorch's own by name, the rest as overhead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shapewright as sw
from shapewright.torch import profiling
from shapewright.torch.backend import shapewright
from shapewright.torch.profiling import Part, Profile
from tests.shapewright.torch.models import Encoder, words
from tests.shares import chosen
from tuner.errors import InvalidInput


class Sorted(nn.Module):  # type: ignore[misc]
    """An encoder, and an operator that no library has."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.sort(self.encoder(ids), -1).values


def calls_of(profile: Profile, word: str) -> list[float]:
    return [each.calls for each in profile.kernels if each.name.startswith(word)]


@pytest.mark.parametrize("rest", chosen(["eager"], ["eager", "inductor"]))
def test_a_compiled_model_has_a_profile(rest: str, encoder_libraries: Path) -> None:
    model, report = Sorted().eval(), sw.torch.Report()
    options = {"source": encoder_libraries, "rest": rest, "report": report}
    fast = torch.compile(model, backend=shapewright, dynamic=True, options=options)
    ids = words(2, 7)
    profile = report.profile(fast, ids, seconds=0.05)
    assert sum(each.calls for each in profile.kernels) == len(report.replaced)
    assert sum(calls_of(profile, "layer_norm")) == 2
    assert [each for each in profile.between if "sort" in each.name]
    assert all(each.seconds > 0 for each in (*profile.kernels, *profile.between))
    text, data = str(profile), profile.to_json()
    assert all(each.name in text for each in profile.kernels)
    assert data["overhead"] == profile.overhead
    assert [each["name"] for each in data["between"]] == [each.name for each in profile.between]
    # Nobody watches any more.
    assert sys.getprofile() is None
    with torch.no_grad():
        fast(ids)


def test_an_optimized_model_has_a_profile(encoder_libraries: Path) -> None:
    model = sw.torch.optimize(Encoder().eval(), encoder_libraries)
    report: Any = sw.torch.report(model)
    profile = report.profile(model, words(2, 7), seconds=0.05)
    assert sum(each.calls for each in profile.kernels) == len(report.replaced)
    names = {each.name for each in profile.between}
    assert "embedding" in names
    assert not [name for name in names if "shapewright" in name], "an operator that calls a library is no one's own"


def test_overhead_is_what_is_left() -> None:
    parts = Part("dense", 2, 3e-6), Part("layer_norm", 1, 1e-6)
    profile = Profile(10e-6, parts, (Part("sort", 1, 2e-6),))
    assert profile.overhead == pytest.approx(4e-6)
    assert "40.0%" in str(profile).splitlines()[-1]
    assert Profile(1e-6, parts, ()).overhead == 0.0


def test_disturbed_readings_do_not_count() -> None:
    assert profiling._low([5.0, 1.0, *[1.1] * 18]) == 1.1


def test_what_has_no_profile_is_refused() -> None:
    report = sw.torch.Report()
    with pytest.raises(InvalidInput, match="calls no tuned library"):
        report.profile(torch.exp, torch.rand(2), seconds=0.01)
    for seconds in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(InvalidInput, match="seconds"):
            report.profile(torch.exp, torch.rand(2), seconds=seconds)
