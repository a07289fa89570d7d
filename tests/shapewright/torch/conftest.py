"""The encoder's libraries, and a process without memory of other tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import shapewright as sw
from shapewright.sources import finder
from shapewright.sources.finder import Finder
from shapewright.torch import backend, chain_op
from shapewright.torch.chain import Chain
from tests import quick_exports
from tests.conftest import MakeOnce
from tests.shapewright.libraries import OnDemand, save
from tests.shapewright.torch.models import Encoder, words
from tests.shapewright.torch.replacing import Replacing
from tuner.program.job.task import SearchTask
from tuner.program.target import native

quick_exports.install()


@pytest.fixture(scope="session")
def encoder_libraries(once: MakeOnce) -> Path:
    """A library for each workload that ``sw.extract`` finds in the encoder."""

    def make(folder: Path) -> None:
        dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=1, max=64)}
        for task in sw.extract(Encoder().eval(), (words(2, 7),), (dims,)):
            save(folder / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))

    return once("encoder", make)


@pytest.fixture(scope="session")
def built(once: MakeOnce) -> OnDemand:
    """A library for whatever is asked for."""
    return OnDemand(once)


@pytest.fixture
def replacing(built: OnDemand, monkeypatch: pytest.MonkeyPatch) -> Replacing:
    """Compiles functions with libraries of ``built``."""
    found = partial(Finder, [built], native(), threads=1, strict=False)
    monkeypatch.setattr(backend, "finder_of", lambda *_, **__: found())
    return Replacing()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Chain]:
    """The chains that a test made."""
    found: dict[str, Chain] = {}
    monkeypatch.setattr(chain_op, "_chains", found)
    return found


@pytest.fixture(autouse=True)
def quiet_process(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A data directory of the test's own, no memory of sources, one thread, and PyTorch's compiler as it starts."""
    monkeypatch.setattr(finder, "_away", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
    torch.set_num_threads(threads)
