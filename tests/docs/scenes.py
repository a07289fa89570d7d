"""What the Python blocks of each how-to page take for granted: names, and files in the current directory.

Libraries are of the kernel that is right everywhere, so nothing is searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import plotly.graph_objects as go
import yaml

import shapewright as sw
from shapewright.snapshot.writing import merge
from tests.docs.pages import DOCS, blocks
from tests.serving import register_local, serving
from tests.shapewright.c_library.calling import files_of
from tuner.figures import view_of
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult, Phase
from tuner.schedule import default_kernel
from tuner.storage.sql import open_storage, upgrade

Names = Mapping[str, Any]
WIDTH = 16


def small_task() -> SearchTask:
    T = sw.ShapeVar("T", range(1, 9))  # noqa: N806 - as users write it
    return SearchTask(sw.ops.dense, {"m": 16 * T, "n": 8, "k": WIDTH}, (T,), target=native())


def write_library(task: SearchTask, directory: str) -> Path:
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(task if task.target else task.on(native())).items():
        (folder / name).write_bytes(content)
    return folder


def first_job_of(page: str) -> SearchTask:
    """The search task of the first job file on a page."""
    block = next(block for block in blocks(DOCS / page) if block.language == "yaml")
    return parse_job(yaml.safe_load(block.text)).tasks[0].on(native())


@contextmanager
def build() -> Iterator[Names]:
    task = small_task()
    merge("all.snapshot", [write_library(task, "libs/qkv")])
    yield {"sw": sw, "task": task}


@contextmanager
def pull() -> Iterator[Names]:
    write_library(first_job_of("howto/pull-a-library.md"), "qkv")
    yield {}


@contextmanager
def programs() -> Iterator[Names]:
    task = first_job_of("howto/submit-a-program.md")
    library = sw.load(write_library(task, "two"))
    shapes = {each.name: each.shape(task.workload.dims({"T": 3})) for each in task.workload.operands}
    yield {"library": library} | {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


@contextmanager
def without_a_service() -> Iterator[Names]:
    yield {}


@contextmanager
def figures() -> Iterator[Names]:
    task = small_task()
    times = [(instance, 1e-4 * (1 + place)) for place, instance in enumerate(task.instances)]
    results = [MeasureResult(default_kernel(task), each, time, phase=Phase.THEORY) for each, time in times]
    # Showing takes a notebook or a browser: drawing is what is tried.
    with patch.object(go.Figure, "show", go.Figure.to_json):
        yield {"task": task, "results": results, "before": view_of(task, results)}


@contextmanager
def torch_model() -> Iterator[Names]:
    import torch  # noqa: PLC0415 - for what needs it alone

    model = torch.nn.Sequential(torch.nn.Embedding(50, WIDTH), torch.nn.Linear(WIDTH, 8), torch.nn.GELU()).eval()
    yield {"sw": sw, "torch": torch, "model": model, "ids": torch.randint(0, 50, (2, 10))}


@contextmanager
def pytorch() -> Iterator[Names]:
    with torch_model() as names:
        dims = {0: names["torch"].export.Dim("batch", max=4), 1: names["torch"].export.Dim("length", max=16)}
        for number, task in enumerate(sw.extract(names["model"], (names["ids"],), (dims,))):
            write_library(task, f"libs/{number}")
        yield names


@contextmanager
def models() -> Iterator[Names]:
    upgrade("sqlite:///tuning.db")
    storage = open_storage("sqlite:///tuning.db")
    register_local(storage)
    try:
        with serving(storage) as url, torch_model() as names:
            yield {**names, "client": sw.Client(url, storage.create_key("tests")[1])}
    finally:
        storage.close()


@contextmanager
def relax() -> Iterator[Names]:
    import tvm  # noqa: PLC0415

    from tests.shapewright.relax.test_applying import WEIGHTS, feed_forward  # noqa: PLC0415

    module, weights = feed_forward(), {name: tvm.runtime.tensor(array) for name, array in WEIGHTS.items()}
    bound = tvm.relax.transform.BindParams("main", weights)(module)
    sizes = {"batch": range(1, 3), "length": range(1, 9)}
    for number, task in enumerate(sw.extract(bound, shape_vars=sizes)):
        write_library(task, f"libs/{number}")
    yield {"sw": sw, "tvm": tvm, "relax": tvm.relax, "module": module, "weights": weights}


SCENES: Mapping[str, Callable[[], Any]] = {
    "howto/build.md": build,
    "howto/pull-a-library.md": pull,
    "howto/submit-a-program.md": programs,
    "howto/tune-without-a-service.md": without_a_service,
    "howto/figures.md": figures,
    "howto/pytorch.md": pytorch,
    "howto/tune-a-model.md": models,
    "howto/relax.md": relax,
}


def without_search(text: str) -> str:
    """A block whose budgets are those of theory: nothing is measured, and a library is built all the same."""
    return re.sub(r"\b(?:trials|seconds)=\d+", "trials=0", text)
