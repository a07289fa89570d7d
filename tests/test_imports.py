"""What importing costs: a compiler or a cluster only where programs are built; and what `shapewright` offers."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import shapewright as sw
import tuner
from tuner.program.catalogue import OPS

HEAVY = ("tvm", "tvm_ffi", "ray", "torch", "onnx", "xgboost", "fastapi", "plotly", "sqlalchemy")
LIGHT = ("httpx", "rich", "click")
ROOT = Path(__file__).resolve().parents[1]


def loaded_by(statement: str, *names: str) -> set[str]:
    """Which of these top-level modules a new interpreter has loaded after the statement."""
    report = f"import sys; {statement}; print(*sorted({{n.partition('.')[0] for n in sys.modules}} & set({names!r})))"
    line = [sys.executable, "-c", report]
    result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    return set(result.stdout.split())


def test_what_is_loaded_is_noticed() -> None:
    assert loaded_by("from tuner.measure.builders import local", "tvm", "tvm_ffi", "json") == {"tvm", "tvm_ffi", "json"}


def test_what_reads_and_answers_loads_no_compiler() -> None:
    modules = "shapewright, tuner.program.job.jobspec, tuner.library.dispatcher, tuner.library.package, tuner.storage"
    assert loaded_by(f"import {modules}, shapewright.models.extract, shapewright.sources.finder", *HEAVY) == set()
    assert loaded_by("import tuner.library.lookup", *HEAVY) <= {"xgboost"}


def test_programs_are_checked_without_arrays_or_a_compiler() -> None:
    """What the service does with a program that a client sends: it is read, never run."""
    modules = "tuner.program.job.build, tuner.program.job.jobspec, tuner.program.job.task"
    assert loaded_by(f"import {modules}", *HEAVY, *LIGHT, "numpy", "ml_dtypes") == set()
    read = "from tuner.program.job.build import workload_from_json as read"
    text = "out[m, n] = sum(k) x[m, k] * w[e[m], n, k]"
    data = {"program": text, "extents": {"m": "T", "n": 4, "k": 8}, "shapes": {"w": [3, "n", "k"]}}
    statement = f"{read}; workload = read({data!r}); workload.key; workload.tensors; workload.flops({{'m': 3}})"
    assert loaded_by(statement, *HEAVY, "numpy") == set()


def test_libraries_are_pulled_and_loaded_without_arrays() -> None:
    """What the light client imports; that it works so is a test of tests/distribution."""
    modules = "shapewright.cli.main, shapewright.client, shapewright.client_async, shapewright.loading"
    assert loaded_by(f"import {modules}", *HEAVY, "numpy", "ml_dtypes") == set()


def test_rules_and_the_reference_need_numpy_alone() -> None:
    modules = "tuner.schedule.registry, tuner.measure.verification.verify, tuner.program.reference"
    assert loaded_by(f"import {modules}", "numpy", *HEAVY) == {"numpy"}


def test_every_rule_answers_without_a_compiler() -> None:
    statement = "from tuner.schedule import explain; from tuner.program.job.build import make_workload; "
    statement += "from tuner.program.target import native; "
    statement += "explain(make_workload('softmax', {'m': 'T', 'n': 8}), native())"
    assert loaded_by(statement, *HEAVY) == set()


def test_figures_need_plotly_alone() -> None:
    assert loaded_by("import tuner.figures", *HEAVY) == {"plotly"}


def test_what_tunes_loads_the_compiler_only_to_build() -> None:
    modules = "tuner.search.tuning, tuner.schedule, tuner.measure, tuner.measure.verification.verify"
    assert loaded_by(f"import {modules}", *HEAVY) <= {"xgboost", "sqlalchemy"}


def test_importing_shapewright_is_light() -> None:
    assert loaded_by("import shapewright", *HEAVY, *LIGHT) == set()
    task = "import shapewright as sw; sw.SearchTask('dense', {'m': 1, 'n': 1, 'k': 1})"
    assert loaded_by(task, *HEAVY, *LIGHT) == set()


def test_a_library_is_used_without_the_compiler() -> None:
    assert loaded_by("import shapewright as sw; sw.load", "tvm", "ray", "torch", "xgboost", "httpx") == set()
    assert loaded_by("import shapewright as sw; sw.Snapshot", *HEAVY, "httpx", "click") == set()


def test_the_public_surface_is_this() -> None:
    assert sw.__all__ == [
        "AsyncClient",
        "Client",
        "InvalidInput",
        "Library",
        "PackedWeight",
        "Progress",
        "SearchTask",
        "ShapeVar",
        "ShapewrightError",
        "Snapshot",
        "TuneResult",
        "Workload",
        "WorkloadInstance",
        "extract",
        "load",
        "ops",
        "tune",
    ]
    for name in sw.__all__:
        assert getattr(sw, name) is not None
    assert sw.ops.__all__ == sorted([*OPS, "program"])
    for name in OPS:
        assert getattr(sw.ops, name) is OPS[name]


def test_what_is_imported_at_its_first_use_is_listed() -> None:
    listed = dir(sw)
    assert {*sw.__all__, "torch", "relax", "__version__"} <= set(listed)
    assert sw.__version__ == tuner.__version__


def test_help_of_an_operator_has_its_signature_its_doc_and_its_settings() -> None:
    text = pydoc.plain(pydoc.render_doc(sw.ops.conv2d))
    assert "conv2d(b, c, h, w, o, r, s, stride=1, pad=0" in text
    for name, setting in sw.ops.conv2d.settings.items():
        assert f"{name}: {setting.doc}" in text
    assert sw.ops.dense.program in pydoc.plain(pydoc.render_doc(sw.ops.dense))


def test_a_name_that_is_none_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'shapewright' has no attribute 'tuen'"):
        _ = sw.tuen


def test_the_import_rules_see_every_folder() -> None:
    """import-linter looks at packages alone: a folder without ``__init__.py`` would be free of all rules."""
    rooms = [ROOT / name for name in ("shapewright", "tuner", "service", "worker", "migrations")]
    folders = {file.parent for room in rooms for file in room.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
