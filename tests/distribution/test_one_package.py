"""Everything that is installed is one package: the folders beside `shapewright` are moved into it by the build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import one_package
import pytest

import tuner

ROOT = Path(__file__).parents[2]
HOMES = (one_package.PACKAGE, *one_package.MOVED)


def test_a_wheel_has_one_package_with_every_file_of_the_folders(wheel: Path, unpacked: Path) -> None:
    assert wheel.name == f"shapewright-{tuner.__version__}-py3-none-any.whl"
    told = unpacked / f"shapewright-{tuner.__version__}.dist-info"
    assert {each.name for each in unpacked.iterdir()} == {"shapewright", told.name}
    assert (told / "top_level.txt").read_text().split() == ["shapewright"]
    assert {each.name for each in (told / "licenses").iterdir()} == {"LICENSE", "NOTICE"}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *HOMES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"git does not say which files are part of the tree: {listed.stderr.strip()}")
    there = {Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()}
    inside = {Path("shapewright", each) if each.parts[0] in one_package.MOVED else each for each in there}
    found = {each.relative_to(unpacked) for each in unpacked.rglob("*") if each.is_file()}
    assert {each for each in found if each.parts[0] == "shapewright"} == inside
    assert Path("shapewright/py.typed") in found


def test_nothing_in_a_wheel_is_imported_from_where_it_is_not(unpacked: Path) -> None:
    elsewhere = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(one_package.MOVED)})\b", re.MULTILINE)
    assert [str(file) for file in unpacked.rglob("*.py") if elsewhere.search(file.read_text())] == []


def test_a_wheel_finds_its_own_modules(unpacked: Path) -> None:
    """Without those of the repository; test_installed.py runs the commands."""
    code = """
import shapewright as sw
from shapewright import migrations, service, worker
print(sw.SearchTask(sw.ops.dense, {"m": 1, "n": 1, "k": 1}).workload.key, sw.__version__)
assert not {"tuner", "service", "worker", "migrations"} & set(sys.modules)
"""
    others = [each for each in sys.path if each and Path(each).resolve() != ROOT]
    start = f"import sys; sys.path[:] = {[str(unpacked), *others]!r}\n"
    line = [sys.executable, "-P", "-c", start + code]
    ran = subprocess.run(line, cwd=unpacked.parent, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    assert ran.stdout.split()[1] == tuner.__version__


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from tuner.errors import A", "from shapewright.tuner.errors import A"),
        ("from tuner import logs", "from shapewright.tuner import logs"),
        ("def f():\n    from worker.run import (\n        g,\n    )", None),
        ("é = 'é'; from service import app", "é = 'é'; from shapewright.service import app"),
        ("import migrations as m, os", "import shapewright.migrations as m, os"),
        ("from service import a; from service import b", None),
        ("from . import tuner", "from . import tuner"),
        ("from tunerlike import worker", "from tunerlike import worker"),
        ("'''See tuner.errors.'''\nx = 'worker'", "'''See tuner.errors.'''\nx = 'worker'"),
    ],
)
def test_imports_follow_and_nothing_else_changes(before: str, after: str | None) -> None:
    wanted = after or before.replace("from worker", "from shapewright.worker").replace(
        "from service", "from shapewright.service"
    )
    assert one_package.moved(before.encode(), "a.py").decode() == wanted


@pytest.mark.parametrize(
    "source",
    [
        "import tuner",
        "import tuner.errors",
        "import os, service.app",
        "MODULE = 'worker.tracker'",
        "run(f'service.{name}')",
        "['python', '-c', 'from tuner import logs']",
        "line = 'python -m worker.tracker'",
        "files('migrations')",
        "importlib.import_module('tuner')",
    ],
)
def test_what_would_not_follow_stops_the_build(source: str) -> None:
    with pytest.raises(one_package.CannotMove, match=r"^a\.py:1: .*(names a module|import \.\.\. as)"):
        one_package.moved(source.encode(), "a.py")
