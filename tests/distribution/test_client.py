"""The light client: what `pip install shapewright` brings is enough to submit, pull and load."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence
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


def run(code: str, *, cwd: Path, beside: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Where there is the client, and ``beside`` it what else its user has."""
    environment = {"SHAPEWRIGHT_DATA_DIR": str(cwd), "SHAPEWRIGHT_API_KEY": "swk_x", "PYTHONPATH": str(ROOT)}
    environment["SHAPEWRIGHT_URL"] = "http://127.0.0.1:9"
    line = bare.python(code, bare.closure([*PROJECT["dependencies"], *beside]) - ({"numpy"} - set(beside)))
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three libraries: one with a workspace, one for two threads, one that packs nothing."""
    made = tmp_path_factory.mktemp("libraries")
    variables = (ShapeVar("M", range(1, 9)),)
    save_library(made / "one", "batch_matmul_nn", {"b": 2, "m": variables[0], "n": 8, "k": 8}, variables)
    save_library(made / "two", "dense", {"m": variables[0], "n": 96, "k": 8}, variables, threads=2)
    save_library(made / "rows", "softmax", {"m": variables[0], "n": 8}, variables)
    return made


def test_the_client_submits_pulls_and_loads_without_the_extras(folder: Path) -> None:
    code = """
import sys
import shapewright as sw
from shapewright.cli.main import run
sw.Client, sw.Snapshot
libraries = {name: sw.load(name) for name in ("one", "two", "rows")}
print({name: str(library.kernel_for(M=3).rule) for name, library in libraries.items()}, file=sys.stderr)
codes = {name: run([name, *["wl-0123456789abcdef"] * (name != "jobs"), *more, "--json"]) for name, more in {
    "jobs": (), "show": (), "best": ("--shape", "m=1"), "history": (), "pull": ("-o", "lib"), "snapshot": ("-o", "f"),
}.items()}
assert set(codes.values()) == {3}, codes
print(run(["explain", "job.yaml"]))
"""
    (folder / "job.yaml").write_text("workload: {op: dense, args: {m: 1, n: 8, k: 8}}\nbudget: {trials: 0}\n")
    ran = run(code, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "2"
    assert ran.stderr.splitlines()[-1] == (
        "shapewright: this needs numpy, which is not installed: pip install 'shapewright[arrays]', "
        "for packed constants, and what rules say of a job"
    )


def test_what_the_client_calls_is_right_and_needs_of_numpy_what_its_caller_has(folder: Path) -> None:
    code = """
import os
import threading
import shapewright as sw
libraries = {name: sw.load(name) for name in ("one", "two")}
import numpy as np
numbers = np.random.default_rng(0)
x, y = numbers.random((2, 5, 8), "float32"), numbers.random((2, 8, 8), "float32")
def batched():
    out = np.full((2, 5, 8), np.nan, "float32")
    libraries["one"](x, y, out)
    assert np.abs(out - x @ y).max() < 1e-4, out
weight, rows = numbers.random((96, 8), "float32"), numbers.random((7, 8), "float32")
packed = libraries["two"].pack(weight)
def on_threads():
    for _ in range(50):
        out = np.full((7, 96), np.nan, "float32")
        libraries["two"](rows, packed, out)
        assert np.abs(out - rows @ weight.T).max() < 1e-4, out
batched()
on_threads()
names = {each.name.rpartition("_")[0] for each in threading.enumerate()}
failed = []
def caller():
    try:
        on_threads()
    except BaseException as error:
        failed.append(error)
callers = [threading.Thread(target=caller) for _ in range(12)]
[each.start() for each in callers]
[each.join() for each in callers]
assert not failed, failed
child = os.fork()
if not child:
    on_threads()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(names)
"""
    ran = run(code, cwd=folder, beside=("numpy",))
    assert ran.returncode == 0, ran.stderr
    assert "shapewright-loop" in ran.stdout


def test_without_numpy_tensors_are_called_with_and_nothing_is_packed(folder: Path) -> None:
    code = """
import torch
import shapewright as sw
x, out = torch.rand(5, 8), torch.zeros(5, 8)
sw.load("rows")(x, out)
assert (out - torch.softmax(x, -1)).abs().max() < 1e-5
library = sw.load("two")
wrong = {"shape (5, 4)": (x[:, :4], out), "dtype float64": (x.double(), out), "list cannot": (x, [1.0])}
for problem, refused in wrong.items():
    try:
        sw.load("rows")(*refused)
    except sw.InvalidInput as error:
        assert problem in str(error), error
    else:
        raise AssertionError(problem)
try:
    library.pack(torch.rand(96, 8))
except ImportError as error:
    print(error)
"""
    ran = run(code, cwd=folder, beside=("torch",))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("w is packed by NumPy: pip install 'shapewright[arrays]'")


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
