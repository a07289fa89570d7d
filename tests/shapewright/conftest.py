from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shapewright.cli.main import run
from shapewright.models import defects, lifting
from tests.conftest import MakeOnce
from tests.serving import register_local, serving
from tests.shapewright.cli_bed import SMALL_JOB, Bed, Ran, arguments
from tuner.measure.network import addresses
from tuner.storage.sql import open_storage

Shapewright = Callable[..., Ran]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of the test's own, and none of the settings of whoever runs it."""
    for name in ("SHAPEWRIGHT_URL", "SHAPEWRIGHT_API_KEY", "SHAPEWRIGHT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "data"
    directory.mkdir()
    monkeypatch.setenv("SHAPEWRIGHT_DATA_DIR", str(directory))
    return directory


@pytest.fixture(scope="session")
def libraries(once: MakeOnce) -> Path:
    """A folder of libraries for small models, as `pull JOB_ID -o DIR` makes one."""
    from tests.shapewright.libraries import TASKS, save_library  # noqa: PLC0415 - a compiler, for those who build

    def make(folder: Path) -> None:
        for name, task in TASKS.items():
            save_library(folder / name, *task)

    return once("libraries", make)


@pytest.fixture
def shapewright(capfd: pytest.CaptureFixture[str], data_dir: Path) -> Shapewright:
    """Runs a command line in this process: ``shapewright("jobs", "--json")``."""

    def run_line(*parts: object) -> Ran:
        capfd.readouterr()
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            code = run(arguments(*parts))
        finally:
            # A command that sets up logging does so for its process, which goes on here.
            root.handlers[:], root.level = handlers, level
        return Ran(code, *capfd.readouterr())

    return run_line


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(SMALL_JOB)
    return path


@pytest.fixture
def bed(data_dir: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """A service with one device, at SHAPEWRIGHT_URL, its key in the data directory."""
    url = f"sqlite:///{data_dir / 'tuning.db'}"
    shutil.copy(sqlite_template, data_dir / "tuning.db")
    storage = open_storage(url)
    register_local(storage)
    (data_dir / "client.key").write_text(storage.create_key("tests")[1])
    with serving(storage) as address:
        monkeypatch.setenv("SHAPEWRIGHT_URL", address)
        yield Bed(address, data_dir, url, storage)
    storage.close()


@pytest.fixture
def free_port() -> int:
    return addresses.free_port()


@pytest.fixture(autouse=True)
def no_defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A defect of ours that lifting and compiling live through fails the test, unless it is marked as one that causes
    some."""
    told, handler = list[str](), logging.Handler(logging.WARNING)
    monkeypatch.setattr(handler, "emit", lambda record: told.append(record.getMessage()))
    monkeypatch.setattr(defects, "_told", set())
    defects.logger.addHandler(handler)
    yield
    defects.logger.removeHandler(handler)
    assert not told or request.node.get_closest_marker("causes_defects")


@pytest.fixture(autouse=True)
def _few_elements_are_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What operations mean is tested with few elements, which would be left to PyTorch."""
    monkeypatch.setattr(lifting, "FEW", 0)
