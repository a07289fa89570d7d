"""What a newcomer starts with: the Makefile, CI's script, pins, what the distribution and the image hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from one_package import FILES
from packaging.requirements import Requirement

from tests.shapewright.bare import closure, device_requirements, distribution

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = ("demo", "test", "soak", "install", "serve", "lint", "bench", "clean")

# Stands in for an interpreter: says what it was asked, and "makes" environments of more of its kind.
FAKE_PYTHON = """#!/bin/bash
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in
  *version_info*) exit ${TOO_OLD:-0} ;;
  *ensurepip*) exit ${NO_VENV:-0} ;;
  --version) echo "Python 3.9.2" ;;
  *"pip --version"*) [ ! -e "$(dirname "$0")/broken" ] ;;
  "-m venv --clear .venv") mkdir -p .venv/bin && rm -f .venv/bin/broken && cp "$0" .venv/bin/python ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a Makefile, no environment, and an interpreter that only says what it was asked."""
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.lock", ".ci/run"):
        shutil.copy(ROOT / name, root / name)
    script(tmp_path / "python3", FAKE_PYTHON)
    return root


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def make(checkout: Path, *arguments: str, **settings: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run make, and what it asked of the interpreter."""
    log = checkout / "log"
    log.write_text("")
    environment = {"PATH": os.environ["PATH"], "LOG": str(log), **settings}
    line = ["make", *arguments, f"PYTHON={checkout.parent / 'python3'}"]
    ran = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ran, log.read_text().splitlines()


def installs(asked: list[str]) -> list[str]:
    return [line.split()[-1] for line in asked if "pip install" in line]


def test_make_has_every_target_of_the_contract(checkout: Path) -> None:
    told = make(checkout, "help")[0].stdout
    for target in TARGETS:
        assert f"make {target} " in told
        assert make(checkout, "--dry-run", target)[0].returncode == 0


def test_install_makes_the_environment_once(checkout: Path) -> None:
    ran, asked = make(checkout, "install")
    assert ran.returncode == 0, ran.stderr
    assert installs(asked) == [".[server]"]
    assert make(checkout, "install")[1] == [], "a second run has nothing to do"
    assert installs(make(checkout, "install", "EXTRAS=bench,dev")[1]) == [".[bench,dev,server]"]
    assert make(checkout, "install", "EXTRAS=dev,bench")[1] == [], "the order of extras does not matter"
    (checkout / "pyproject.toml").touch()
    os.utime(checkout / "pyproject.toml", (4_000_000_000, 4_000_000_000))
    assert installs(make(checkout, "install")[1]) == [".[server]"], "new pins are installed"


def test_a_half_made_environment_is_made_anew(checkout: Path) -> None:
    make(checkout, "install")
    (checkout / ".venv" / "bin" / "python").unlink()
    _, asked = make(checkout, "install")
    assert "python3 -m venv --clear .venv" in asked
    assert installs(asked) == [".[server]"]
    # Interrupted before it had pip, and so before its stamp was written.
    for stamp in (checkout / ".venv").glob(".installed-*"):
        stamp.unlink()
    (checkout / ".venv" / "bin" / "broken").touch()
    assert "python3 -m venv --clear .venv" in make(checkout, "install")[1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"TOO_OLD": "1"}, ("needs Python 3.11 or newer", "Python 3.9.2", "PYTHON=")),
        ({"NO_VENV": "1"}, ("lacks the venv module", "apt-get install python3-venv")),
    ],
)
def test_an_interpreter_that_will_not_do_is_told(checkout: Path, settings: Mapping[str, str], says: str) -> None:
    ran, asked = make(checkout, "test", **settings)
    assert ran.returncode != 0
    for part in says:
        assert part in ran.stderr
    assert installs(asked) == []


def test_targets_install_what_they_need(checkout: Path) -> None:
    assert installs(make(checkout, "test")[1]) == [".[dev,server]"]
    assert installs(make(checkout, "bench")[1]) == [".[bench,server]"]
    _, asked = make(checkout, "demo", "EXTRAS=bench")
    assert "python -m examples.demo" in asked


def ci(checkout: Path, stubs: Mapping[str, str]) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run CI's script where only ``stubs`` and the simplest commands exist."""
    commands = checkout.parent / "bin"
    commands.mkdir()
    for name in ("bash", "dirname", "env", "cat"):
        (commands / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    for name, body in stubs.items():
        script(commands / name, f'#!/bin/bash\necho "{name} $*" >>"$LOG"\n{body}\n')
    log = checkout / "log"
    log.write_text("")
    environment = {"PATH": str(commands), "LOG": str(log)}
    line = [str(checkout / ".ci" / "run")]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ran, log.read_text().splitlines()


WHOLE = {"make": "", "python3": "", "gcc": "", "apt-get": "", "id": "echo 0"}


def test_ci_installs_what_is_missing_then_lints_and_tests(checkout: Path) -> None:
    ran, log = ci(checkout, {name: body for name, body in WHOLE.items() if name != "gcc"})
    assert ran.returncode == 0, ran.stderr
    steps = [line for line in log if line.startswith(("apt-get", "make"))]
    assert steps[0].startswith("apt-get update")
    assert steps[1].startswith("apt-get install")
    assert "gcc" in steps[1].split()
    assert steps[2:] == ["make lint", "make docs", "make test", "make gpu"]


def test_ci_fails_with_the_first_of_them_that_fails(checkout: Path) -> None:
    ran, log = ci(checkout, WHOLE | {"make": '[ "$1" != lint ]'})
    assert ran.returncode != 0
    assert "make test" not in log


def test_ci_without_root_says_what_is_missing(checkout: Path) -> None:
    stubs = {name: body for name, body in WHOLE.items() if name != "gcc"}
    ran, log = ci(checkout, stubs | {"id": "echo 1000"})
    assert ran.returncode != 0
    assert "missing: gcc" in ran.stderr
    assert not any(line.startswith("apt-get") for line in log)


def locked() -> dict[str, set[str]]:
    """The versions of each distribution in the lock file; there may be several, each for some versions of Python."""
    found: dict[str, set[str]] = {}
    for line in LOCK.splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found.setdefault(distribution(requirement.name), set()).add(pin.version)
    return found


def test_every_dependency_has_a_range_and_the_lock_has_a_version_in_it() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    names = {"arrays", "tune", "server", "models", "gpu", "bench", "zoo", "rivals", "parquet", "docs", "dev", "lock"}
    assert set(extras) == names
    lists = (PROJECT["project"]["dependencies"], *extras.values())
    pins = locked()
    for requirement in (Requirement(each) for requirements in lists for each in requirements):
        if requirement.name == "shapewright":
            assert requirement.extras <= names
            continue
        assert ">=" in str(requirement.specifier), requirement
        versions = pins[distribution(requirement.name)]
        assert all(version in requirement.specifier for version in versions), (requirement, versions)


def test_the_lock_names_no_host_and_is_what_is_installed_here() -> None:
    assert not re.search(r"://|--(?:index|extra|find|hash)", LOCK)
    pins = locked()
    with_tests = [Requirement(each).name for each in PROJECT["project"]["optional-dependencies"]["dev"]]
    others = {name: version(name) for name in closure(PROJECT["project"]["dependencies"]) if name != "shapewright"}
    direct = {name: version(name) for name in with_tests if name not in ("shapewright", "torch")}
    for name, there in {**others, **direct}.items():
        assert there in pins[distribution(name)], f"{name} {there} is installed, not {pins[distribution(name)]}"


def test_what_a_device_needs_is_locked_as_everywhere() -> None:
    pins = locked()
    for requirement in map(Requirement, device_requirements()):
        assert {str(requirement.specifier).removeprefix("==")} == pins[distribution(requirement.name)]


def test_what_the_makefile_and_the_image_install_is_the_locked_set() -> None:
    assert "-c requirements.lock -e" in (ROOT / "Makefile").read_text()
    assert "pip install --no-cache-dir -c requirements.lock '.[server]'" in (ROOT / "Dockerfile").read_text()


def test_the_command_is_where_the_distribution_says() -> None:
    module, _, name = PROJECT["project"]["scripts"]["shapewright"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_the_distribution_and_the_image_hold_every_package() -> None:
    """And their files: tests/distribution."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples", "docs"}
    included = {pattern.rstrip("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages == included
    image = (ROOT / "Dockerfile").read_text()
    context = (ROOT / ".dockerignore").read_text().splitlines()
    for folder in (*packages, "distribution"):
        assert f"COPY {folder} {folder}" in image
        assert f"!{folder}" in context
    (files,) = re.findall(r"^COPY (.+) \./$", image, re.MULTILINE)
    assert set(FILES) <= set(files.split())
    assert {f"!{file}" for file in files.split()} <= set(context)


def test_versions_of_python_agree() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert "FROM python:3.11" in (ROOT / "Dockerfile").read_text()
