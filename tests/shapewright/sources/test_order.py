"""Of several libraries that fit every source has the same one found: a directory, a snapshot, a service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shapewright.client import Client
from shapewright.snapshot.writing import chosen, offers_of, write_snapshot
from shapewright.sources.opening import source_of
from shapewright.sources.source import Match
from tests.conftest import MakeOnce
from tests.serving import lease
from tests.shapewright.cli_bed import Bed
from tests.shapewright.libraries import M, save
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.target import native

ONE_SHAPE = make_workload("dense", {"m": 16, "n": 8, "k": 8})
HERE = native()
Add = Callable[[Path], str]
"""Adds the library in a folder; gives what names the source."""


def elsewhere(more: int) -> SearchTask:
    target = replace(HERE, hardware=replace(HERE.hardware, cores=HERE.hardware.cores + more))
    return SearchTask("dense", {"m": M, "n": 8, "k": 8}, (M,), target=target)


def dynamic(more: int, cache: str) -> SearchTask:
    """A task of this machine's CPU with so many more cores."""
    return elsewhere(more)._with(cache=cache)


def static(cache: str) -> SearchTask:
    return SearchTask(ONE_SHAPE, None, (), target=HERE, cache=cache)


DYNAMIC = [dynamic(more, cache) for more, cache in (
    (4, "cold"), (2, "cold"), (2, "warm"), (4, "streamed"), (2, "streamed"), (0, "cold"), (0, "warm"), (0, "streamed"),
)]  # fmt: skip
"""The later are preferred."""
STATIC = [dynamic(0, "warm"), dynamic(0, "streamed"), static("cold"), static("warm")]


@pytest.fixture(params=["directory", "snapshot", "service"])
def add(request: pytest.FixtureRequest, tmp_path: Path, bed: Bed) -> Add:
    there = tmp_path / "libraries"
    there.mkdir()

    def to_directory(folder: Path) -> str:
        shutil.copytree(folder, there / folder.name)
        return str(there)

    def to_snapshot(folder: Path) -> str:
        to_directory(folder)
        file = tmp_path / f"{len(list(there.iterdir()))}.snapshot"
        write_snapshot(file, chosen(offers_of(there)))
        return str(file)

    def to_service(folder: Path) -> str:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        manifest, dispatch = (json.loads(files[name]) for name in ("manifest.json", "dispatch.json"))
        Client(bed.url).submit({**dispatch["task"], "name": folder.name, "budget": {"trials": 1}})
        held = lease(bed.storage)
        bed.storage.save_library(held, held.tasks[0].id, files, manifest, dispatch)
        return bed.url

    adds: dict[str, Add] = {"directory": to_directory, "snapshot": to_snapshot, "service": to_service}
    return adds[request.param]


@pytest.mark.parametrize("tasks", [DYNAMIC, STATIC], ids=["dynamic", "static"])
def test_libraries_are_preferred_in_one_order(tasks: list[SearchTask], add: Add, once: MakeOnce) -> None:
    asked = ONE_SHAPE if tasks is STATIC else make_workload("dense", {"m": "M", "n": 8, "k": 8})
    for task in tasks:
        kind = "" if task.shape_vars else "static-"
        name = f"order-{kind}{task.known_target.hardware.cores}-{task.cache.value}"
        folder = once(name, lambda into, task=task: save(into, task))  # type: ignore[misc]
        match = source_of(add(folder)).find(asked, 1)
        assert isinstance(match, Match)
        assert match.library.digest == json.loads((folder / "manifest.json").read_text())["digest"], name
        assert match.how == ("exact" if task.workload.key == asked.key else "covers")
