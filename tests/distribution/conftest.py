"""The wheel, built once for the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; sys.path.insert(0, 'distribution'); import one_package; one_package.build_wheel(sys.argv[1])"
    line = [sys.executable, "-c", build, str(folder)]
    ran = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
