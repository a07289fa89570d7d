"""The light client: what `pip install shapewright` brings is enough to submit, pull and load."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from shapewright import extras
from tests.shapewright import bare
from tests.shapewright.libraries import save_library
from tuner.program.language.workload import ShapeVar

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def client() -> frozenset[str]:
    """The distributions that the client's dependencies bring."""
    return bare.closure(PROJECT["dependencies"])


def run(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"SHAPEWRIGHT_DATA_DIR": str(cwd), "SHAPEWRIGHT_API_KEY": "swk_x", "PYTHONPATH": str(ROOT)}
    environment["SHAPEWRIGHT_URL"] = "http://127.0.0.1:9"
    line = bare.python(code, client())
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two libraries: one with a workspace, one for two threads."""
    made = tmp_path_factory.mktemp("libraries")
    variables = (ShapeVar("M", range(1, 9)),)
    save_library(made / "one", "batch_matmul_nn", {"b": 2, "m": variables[0], "n": 8, "k": 8}, variables)
    save_library(made / "two", "dense", {"m": variables[0], "n": 8, "k": 8}, variables, threads=2)
    return made


def test_the_client_submits_pulls_and_loads_without_the_extras(folder: Path) -> None:
    code = """
import sys
import numpy as np
import shapewright as sw
from shapewright.cli.main import run
sw.Client, sw.Snapshot, sw.load
library = sw.load("one")
x, y = np.random.rand(2, 5, 8).astype("float32"), np.random.rand(2, 8, 8).astype("float32")
for _ in range(3):
    out = np.full((2, 5, 8), np.nan, "float32")
    library(x, y, out)
    assert np.abs(out - x @ y).max() < 1e-4, out
try:
    sw.load("two")
except ImportError as error:
    print(error)
codes = {name: run([name, *["wl-0123456789abcdef"] * (name != "jobs"), *more, "--json"]) for name, more in {
    "jobs": (), "show": (), "best": ("--shape", "m=1"), "history": (), "pull": ("-o", "lib"), "snapshot": ("-o", "f"),
}.items()}
assert set(codes.values()) == {3}, codes
print(run(["ops"]), file=sys.stderr)
"""
    ran = run(code, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == (
        "a library for several threads runs on TVM's threads: pip install 'shapewright[tune]', "
        "for a search in this process, records, and figures"
    )
    assert ran.stderr.splitlines()[-1] == "0"


def test_commands_and_names_say_which_extra_they_need(folder: Path) -> None:
    (folder / "job.yaml").write_text("workload: {op: dense, args: {m: 1, n: 8, k: 8}}\nbudget: {trials: 0}\n")
    (folder / "model.onnx").write_bytes(b"")
    tracker = ("--tracker", "127.0.0.1:9190")
    commands = {
        "server": (("up",), ("serve",), ("worker", *tracker)),
        "tune": (("tune", "job.yaml", "-o", "out"), ("tracker",), ("db", "upgrade")),
        "models": (("tune-model", "model.onnx", "--shape-var", "s=1..4", "--trials", "1"),),
    }
    names = {"tune": ("tune", "relax"), "models": ("torch",)}
    code = f"""
import shapewright as sw
from shapewright.cli.main import run
for extra, lines in {commands}.items():
    for line in lines:
        print(extra, run(list(line)), line, flush=True)
for extra, names in {names}.items():
    for name in names:
        try:
            getattr(sw, name)
        except ImportError as error:
            assert error.extra == extra, (name, error.extra)
        else:
            raise AssertionError(name)
"""
    ran = run(code, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    answered = [line.split()[:2] for line in ran.stdout.splitlines()]
    assert answered == [[extra, "2"] for extra, lines in commands.items() for _ in lines]
    told = re.findall(r"pip install 'shapewright\[(\w+)\]'", ran.stderr)
    assert told == [extra for extra, lines in commands.items() for _ in lines]


def test_every_module_is_brought_by_the_extra_that_is_named() -> None:
    by = packages_distributions()
    lists = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    for extra, modules in extras.EXTRAS.items():
        if extra == "gpu":
            continue  # not installed with the tests: a gigabyte
        brought = bare.closure([each for each in lists[extra] if not each.startswith("shapewright[")])
        for module in modules:
            assert brought & {bare.distribution(name) for name in by[module]}, (extra, module)


def test_what_no_extra_brings_is_a_defect() -> None:
    assert extras.of_error(ModuleNotFoundError("No module named 'tuner.gone'", name="tuner.gone")) is None
    assert Requirement(PROJECT["dependencies"][0]).name == "apache-tvm-ffi"
