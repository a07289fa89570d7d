"""How much of well-known architectures is lifted and replaced, and by what the ways into Shapewright differ.

Each architecture is exported (``sw.extract``), compiled by TorchDynamo, and exported to ONNX. Floating-point operations
are those of products, convolutions and attention, at one size. To verify, each is compiled once more with libraries of
kernels that are right and not fast, for exactly what ``sw.extract`` found, and its outputs are compared with eager ones
at further sizes.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

import shapewright as sw
from benchmarks.harness.results import Row, finish, say
from benchmarks.nets.architectures import ARCHITECTURES, build
from shapewright.download import write
from shapewright.models import torch_model
from shapewright.models.aten import decomposed
from shapewright.models.fx import lift
from shapewright.models.lifted import Lifting
from shapewright.models.lifting import lift_graph
from shapewright.models.onnx_model import from_file
from shapewright.torch.backend import shapewright
from shapewright.torch.floats import read_as_constants
from shapewright.torch.normal_form import NothingReplaced, as_it_is
from shapewright.torch.work import flops_by_name
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.program.target import native
from tuner.schedule import default_kernel

SIZES = ((3, 9), (2, 5), (5, 17), (4, 40), (1, 1))
"""Batches and lengths; the first one is that of which operations are counted."""
LARGEST = {"batch": 64, "length": 32}
"""The largest sizes that libraries are made for with ``--verify``: one length is beyond them."""
TOLERANCE = 1e-4
"""The tolerance of outputs, absolute and relative to the largest element."""
MAX_LOST = 5
"""Reasons that are reported, those that cost the most first."""


def covered(names: Sequence[str] | None, verify: bool, out: Path) -> int:
    """Write what is covered of these architectures, all of them if there are none. Returns the exit code."""
    rows = []
    for name in names or ARCHITECTURES:
        rows.append(row_of(name, verify))
        shares = {way: facts.get("error") or facts.get("share") for way, facts in rows[-1]["ways"].items()}
        say(f"{name}: lifted of its operations {shares}, replaced and compared {rows[-1]['verified']}")
    finish(out, {"rows": rows, "summary": summary_of(rows), "protocol": {"sizes": SIZES}})
    return 0 if all(row["verified"] is None or row["verified"]["right"] for row in rows) else 1


def refused(names: Sequence[str]) -> str | None:
    """Why these cannot be covered: a package of the extra ``zoo`` that is not installed, or an unknown name."""
    packages = ("transformers", "torchvision", "timm", "onnx", "onnxscript")
    if lacking := [name for name in packages if find_spec(name) is None]:
        return f"--coverage needs {', '.join(lacking)}: pip install -e '.[zoo]'"
    unknown = sorted(set(names) - set(ARCHITECTURES))
    return f"--only: {unknown[0]!r} is no architecture; known: {', '.join(ARCHITECTURES)}" if unknown else None


def row_of(name: str, verify: bool) -> Row:
    """One architecture. ``differ``: by way in, the workloads of ``sw.extract`` alone, and of the other one alone."""
    ways: dict[str, Row] = {}
    found: dict[str, Mapping[str, str]] = {}
    verified = None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for way, lifted in (("export", _exported), ("dynamo", _compiled), ("onnx", _onnx)):
            try:
                ways[way], lifting = lifted(name)
                found[way] = {op.workload.key: str(op.workload) for op in lifting.ops}
            except Exception as error:  # whatever an exporter has to say stands in its place
                ways[way] = _error(error)
        if verify and "export" in found:
            try:
                verified = _verified(name)
            except Exception as error:  # one architecture must not cost the others
                verified = {**_error(error), "share": None, "right": False}
    export = found.get("export", {})
    differ = {
        way: {
            "export": [export[key] for key in export.keys() - own.keys()],
            "other": [own[key] for key in own.keys() - export.keys()],
        }
        for way, own in found.items() if "export" in found
    }  # fmt: skip
    return {"architecture": name, "ways": ways, "differ": differ, "verified": verified}


def _error(error: Exception) -> Row:
    return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}


# -- the ways in ----------------------------------------------------------------------------------------------------
def _program(name: str) -> Any:
    """The exported program, its batch and its length dynamic."""
    architecture, model = ARCHITECTURES[name], build(name)
    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = tuple({axis: dims[axis] for axis in axes} for axes in architecture.axes)
    return torch.export.export(model, architecture.inputs(*SIZES[0]), dynamic_shapes=shapes)


def _exported(name: str) -> tuple[Row, Lifting]:
    program = decomposed(_program(name))
    lifting = lift(program.graph_module, torch_model.constants_of(program))
    return _counted([(program.graph_module, lifting)]), lifting


def _compiled(name: str) -> tuple[Row, Lifting]:
    found: list[tuple[Any, Lifting]] = []

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        def rewrite(module: Any, constants: frozenset[str]) -> bool:
            found.append((module, lift(module, constants)))
            return False

        with read_as_constants(graph), suppress(NothingReplaced):
            as_it_is(graph, inputs, rewrite)
        return graph.forward

    torch._dynamo.reset()
    fast = torch.compile(build(name), backend=backend, dynamic=None)
    graphs = []
    for batch, length in SIZES[:2]:
        inputs = ARCHITECTURES[name].inputs(batch, length)
        for tensor, axes in zip(inputs, ARCHITECTURES[name].axes, strict=True):
            for axis in axes:
                torch._dynamo.mark_dynamic(tensor, axis)
        fast(*inputs)
        graphs.append(len(found))
    lifting = Lifting(tuple(op for _, each in found for op in each.ops), ())
    return {**_counted(found), "graphs": graphs[0], "recompiled": graphs[1] - graphs[0]}, lifting


def _onnx(name: str) -> tuple[Row, Lifting]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(_program(name), f=str(file), dynamo=True, verbose=False)
        lifting = lift_graph(from_file(file).graph)
    return {"operators": len(lifting.ops), "workloads": len({op.workload.key for op in lifting.ops})}, lifting


def _counted(graphs: Sequence[tuple[Any, Lifting]]) -> Row:
    """Operations of what is lifted among all, and what the others are lost by."""
    total, lost = 0, Counter[str]()
    for module, lifting in graphs:
        taken = {name for op in lifting.ops for name in op.nodes}
        reasons = {left.node: f"{left.op}: {left.reason}" for left in lifting.left}
        for name, count in flops_by_name(module.graph).items():
            total += count
            if name not in taken:
                lost[reasons.get(name, "no reason is known")] += count
    ops = [op for _, lifting in graphs for op in lifting.ops]
    return {
        "operators": len(ops), "workloads": len({op.workload.key for op in ops}), "flops": total,
        "share": 1 - lost.total() / total if total else None,
        "lost": [{"reason": reason, "share": count / total} for reason, count in lost.most_common(MAX_LOST)],
    }  # fmt: skip


# -- outputs --------------------------------------------------------------------------------------------------------
def _verified(name: str) -> Row:
    """Compiled with a library for each workload of ``sw.extract``, ``dynamic=True``: errors, and what was replaced."""
    model, inputs = build(name), ARCHITECTURES[name].inputs
    with tempfile.TemporaryDirectory() as folder:
        symbols = torch_model.from_program(program := _program(name)).graph.symbols
        tasks = sw.extract(program, shape_vars={each: range(1, max(LARGEST.values()) + 1) for each in sorted(symbols)})
        for task in (each.on(native()) for each in tasks):
            library = build_library(Dispatcher(task, (default_kernel(task),), 0, Leaf(0)), None)
            write(library.files, Path(folder) / task.workload.key)
        torch._dynamo.reset()
        counters.clear()
        report = sw.torch.Report()
        options = {"source": folder, "threads": 1, "rest": "eager", "report": report}
        fast = torch.compile(model, backend=shapewright, dynamic=True, options=options)
        errors, graphs, shares = {}, [], []
        for batch, length in SIZES:
            given = inputs(batch, length)
            right, ours = model(*given), fast(*given)
            bound = TOLERANCE * max(1.0, float(right.abs().max()))
            errors[f"batch {batch}, length {length}"] = float((right - ours).abs().max()) / bound
            graphs.append(counters["stats"]["unique_graphs"])
            shares.append(report.share)
    return {
        "share": shares[0], "errors": errors, "right": all(error <= 1 for error in errors.values()),
        "recompiled": graphs[-2] - graphs[0], "notes": [note for note in report.notes if "constant" in note],
    }  # fmt: skip


def summary_of(rows: Sequence[Row]) -> Row:
    dynamo = [row["ways"]["dynamo"].get("share") or 0.0 for row in rows]
    verified = [row["verified"] for row in rows if row["verified"] is not None]
    return {
        "architectures": len(rows),
        "at_95_percent": sum(share >= 0.95 for share in dynamo),
        "least_share": min(dynamo, default=None),
        "same_workloads_as_export": {
            way: sum(way in row["differ"] and not any(row["differ"][way].values()) for row in rows)
            for way in ("dynamo", "onnx")
        },
        "recompiled": sum(row["ways"]["dynamo"].get("recompiled", 0) > 0 for row in rows),
        "verified": len(verified),
        "right": sum(each["right"] for each in verified),
        "least_replaced": min((each["share"] or 0.0 for each in verified), default=None),
    }
