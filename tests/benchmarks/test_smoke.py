"""Every benchmark is loaded and says what it does."""

from __future__ import annotations

import importlib
import sys

import pytest

SCRIPTS = ("kernels", "models", "operators", "overhead", "policies", "regret", "service", "theory", "workers")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " ".join(str(module.__doc__).split("\n", 1)[0].split()) in said
