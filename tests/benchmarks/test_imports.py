"""Benchmarks stand on one another in one direction: no circles, and the harness knows nobody above it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp

LAYERS = ["compare", "rivals", "harness"]
"""From the top; every module beside them is a benchmark, which stands on them."""


def test_no_benchmark_imports_itself_by_a_detour() -> None:
    graph = grimp.build_graph("benchmarks", cache_dir=None)
    assert graph.nominate_cycle_breakers("benchmarks") == set()
    for package in LAYERS:
        assert graph.nominate_cycle_breakers(f"benchmarks.{package}") == set()


def test_layers_import_only_from_those_below() -> None:
    graph = grimp.build_graph("benchmarks", cache_dir=None)
    scripts = {name for child in graph.find_children("benchmarks") if (name := child.split(".")[1]) not in LAYERS}
    layers: list[grimp.Layer | str | set[str]] = [grimp.Layer(*scripts, independent=False), *LAYERS]
    assert graph.find_illegal_dependencies_for_layers(layers, containers={"benchmarks"}) == set()


def test_no_library_with_threads_is_loaded_before_these_are_limited() -> None:
    """They read the environment when they are loaded, which benchmarks set once they know their options."""
    names = ("kernels", "operators", "policies", "theory")
    scripts = ", ".join(f"benchmarks.{name}" for name in names)
    loaded = "import sys; print([name for name in ('tvm', 'torch', 'xgboost') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import {scripts}\n{loaded}"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
