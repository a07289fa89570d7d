"""How much of well-known architectures is lifted and replaced, and by what the ways into Shapewright differ.

Each architecture is exported (``sw.extract``), compiled by TorchDynamo, and exported to ONNX. Floating-point operations
are those of products, convolutions and attention, at one size. To verify, each is compiled once more with libraries of
kernels that are right and not fast, for exactly what ``sw.extract`` found, and its outputs are compared with eager ones
at further sizes. Decoders generate words as well, with a cache that grows and with one that is written in place.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from tuner.program.job.task import SearchTask
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
CACHES = ("dynamic", "static")
"""Caches of keys and values: one that grows, one that is written in place."""
PROMPTS, WORDS, BATCH, LONGEST = (7, 4, 12), 6, 2, 64


def covered(names: Sequence[str] | None, verify: bool, out: Path) -> int:
    """Write what is covered of these architectures, all of them if there are none. Returns the exit code."""
    rows = []
    for name in names or ARCHITECTURES:
        rows.append(row_of(name, verify))
        say(line_of(rows[-1]))
    finish(out, {"rows": rows, "summary": summary_of(rows), "protocol": {"sizes": SIZES}})
    compared = [each for row in rows for each in (row["verified"], *(row["generates"] or {}).values())]
    return 0 if all(each is None or each["right"] for each in compared) else 1


def refused(names: Sequence[str]) -> str | None:
    """Why these cannot be covered: a package of the extra ``zoo`` that is not installed, or an unknown name."""
    packages = ("transformers", "torchvision", "timm", "onnx", "onnxscript")
    if lacking := [name for name in packages if find_spec(name) is None]:
        return f"--coverage needs {', '.join(lacking)}: pip install -e '.[zoo]'"
    unknown = sorted(set(names) - set(ARCHITECTURES))
    return f"--only: {unknown[0]!r} is no architecture; known: {', '.join(ARCHITECTURES)}" if unknown else None


def row_of(name: str, verify: bool) -> Row:
    """One architecture. What a frontend refuses is reported in its place."""
    ways: dict[str, Row] = {}
    found: dict[str, Lifting] = {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for way, lifted in (("export", _exported), ("dynamo", _compiled), ("onnx", _onnx)):
            try:
                ways[way], found[way] = lifted(name)
            except Exception as error:  # whatever an exporter has to say
                ways[way] = _error(error)
        verified = _told_by(lambda: _verified(name)) if verify and "export" in found else None
        generates = _generates(name) if verify else None
    keys = {way: {op.workload.key: str(op.workload) for op in lifting.ops} for way, lifting in found.items()}
    differ = {way: _differ(keys["export"], own) for way, own in keys.items() if "export" in keys}
    return {"architecture": name, "ways": ways, "differ": differ, "verified": verified, "generates": generates}


def _generates(name: str) -> Row | None:
    """The outcome of a decoder's ``generate``, by cache; None for what has none."""
    model = getattr(build(name), "model", None)
    if model is None or not hasattr(model, "can_generate") or not model.can_generate():
        return None
    return {cache: _told_by(partial(generated, model, cache)) for cache in CACHES}


def _told_by(verify: Callable[[], Row]) -> Row:
    """What a comparison says: one architecture must not cost the others."""
    try:
        return verify()
    except Exception as error:  # whatever a model has to say
        return {**_error(error), "share": None, "right": False}


def _error(error: Exception) -> Row:
    return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}


def _differ(export: Mapping[str, str], other: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """Workloads of ``sw.extract`` alone, and of the other way alone."""
    only = ((export, other), (other, export))
    return {n: [a[key] for key in a.keys() - b.keys()] for n, (a, b) in zip(("export", "other"), only, strict=True)}


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
    return {**_counted(found), "graphs": graphs[0], "recompiled": graphs[-1] - graphs[0]}, lifting


def _onnx(name: str) -> tuple[Row, Lifting]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(_program(name), f=str(file), dynamo=True, verbose=False)
        lifting = lift_graph(from_file(file).graph)
    return {"operators": len(lifting.ops), "workloads": len({op.workload.key for op in lifting.ops})}, lifting


def _counted(graphs: Sequence[tuple[Any, Lifting]]) -> Row:
    """Operations of what is lifted among all, and what the others are lost by."""
    total, lifted = 0, 0
    lost: Counter[str] = Counter()
    for module, lifting in graphs:
        taken = {name for op in lifting.ops for name in op.nodes}
        reasons = {left.node: f"{left.op}: {left.reason}" for left in lifting.left}
        for name, count in flops_by_name(module.graph).items():
            total += count
            if name in taken:
                lifted += count
            else:
                lost[reasons.get(name, "no reason is known")] += count
    ops = [op for _, lifting in graphs for op in lifting.ops]
    return {
        "operators": len(ops), "workloads": len({op.workload.key for op in ops}), "flops": total,
        "share": lifted / total if total else None,
        "lost": [{"reason": reason, "share": count / total} for reason, count in lost.most_common(MAX_LOST)],
    }  # fmt: skip


# -- outputs --------------------------------------------------------------------------------------------------------
def _verified(name: str) -> Row:
    """Compiled with a library for each workload of ``sw.extract``, ``dynamic=True``: errors, and what was replaced."""
    model, inputs = build(name), ARCHITECTURES[name].inputs
    with tempfile.TemporaryDirectory() as folder:
        symbols = torch_model.from_program(program := _program(name)).graph.symbols
        tasks = sw.extract(program, shape_vars={each: range(1, max(LARGEST.values()) + 1) for each in sorted(symbols)})
        write_libraries(tasks, Path(folder))
        fast, report = compiled(model, folder)
        errors, graphs, shares = {}, [], []
        for batch, length in SIZES:
            given = inputs(batch, length)
            right = model(*given)
            errors[f"batch {batch}, length {length}"] = _error_of(fast(*given), right)
            graphs.append(counters["stats"]["unique_graphs"])
            shares.append(report.share)
    return {
        "share": shares[0], "errors": errors, "right": all(error <= 1 for error in errors.values()),
        "recompiled": graphs[-2] - graphs[0], "notes": [note for note in report.notes if "constant" in note],
    }  # fmt: skip


# -- generated words --------------------------------------------------------------------------------------------------
def write_libraries(tasks: Iterable[SearchTask], folder: Path) -> None:
    """Libraries of kernels that are right and not fast, for whoever looks at results alone: one for each task, for this
    machine, in a folder of its own."""
    for task in (each.on(native()) for each in tasks):
        library = build_library(Dispatcher(task, (default_kernel(task),), 0, Leaf(0)), None)
        write(library.files, folder / task.workload.key)


def generated(model: Any, cache: str) -> Row:
    """A model that has ``generate``, in inference mode, compiled with libraries of what a first compilation lacks, and
    compared with eager at several lengths of prompts."""
    eager, size = model.forward, int(model.config.vocab_size)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            fast, first = compiled(eager, folder)
            _scores(model, fast, torch.randint(3, size, (BATCH, 5)), cache)
            write_libraries(first.tasks(dict.fromkeys(first.symbols, range(1, LONGEST + 1))), Path(folder))
            fast, report = compiled(eager, folder)
            _scores(model, fast, torch.randint(3, size, (BATCH, 5)), cache)
            graphs, worst = counters["stats"]["unique_graphs"], 0.0
            for length in PROMPTS:
                prompt = torch.randint(3, size, (BATCH, length))
                ours, right = (_scores(model, forward, prompt, cache) for forward in (fast, eager))
                worst = max(worst, _error_of(ours, right))
            recompiled = counters["stats"]["unique_graphs"] - graphs
        finally:
            model.forward = eager
    return {
        "share": report.share, "graphs": graphs, "recompiled": recompiled, "worst": worst,
        "right": worst <= 1 and recompiled == 0,
    }  # fmt: skip


def _error_of(ours: torch.Tensor, right: torch.Tensor) -> float:
    """The largest error in tolerances."""
    return float((right - ours).abs().max()) / (TOLERANCE * max(1.0, float(right.abs().max())))


def compiled(call: Callable[..., Any], folder: str) -> tuple[Any, sw.torch.Report]:
    """``call`` compiled anew with libraries of ``folder``, and what is said of that once it has been called."""
    torch._dynamo.reset()
    counters.clear()
    report = sw.torch.Report()
    options = {"source": folder, "threads": 1, "rest": "eager", "report": report}
    return torch.compile(call, backend=shapewright, dynamic=True, options=options), report


def _scores(model: Any, forward: Callable[..., Any], prompt: torch.Tensor, cache: str) -> torch.Tensor:
    """The scores of each generated word, [words, batch, vocabulary]."""
    model.forward = forward
    result = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=WORDS, min_new_tokens=WORDS, do_sample=False,
        use_cache=True, cache_implementation=cache, return_dict_in_generate=True, output_logits=True, pad_token_id=0,
    )  # fmt: skip
    return torch.stack(result.logits)


# -- told -----------------------------------------------------------------------------------------------------------
def line_of(row: Row) -> str:
    ways = ", ".join(f"{way} {_told(facts)}" for way, facts in row["ways"].items())
    differ = {way: sum(map(len, each.values())) for way, each in row["differ"].items() if way != "export"}
    told = "".join(f"; {count} workloads differ by {way}" for way, count in differ.items() if count)
    if (verified := row["verified"]) is not None:
        told += f"; replaced {_told(verified)}, {'right' if verified['right'] else 'WRONG'}"
    for cache, generates in (row["generates"] or {}).items():
        told += f"; generates, {cache}: {_told(generates)}, {_verdict(generates)}"
    return f"{row['architecture']}: {ways}{told}"


def _verdict(generates: Row) -> str:
    if generates["right"]:
        return "right"
    return "right, but compiled again" if generates.get("worst", 2.0) <= 1 else "WRONG"


def _told(facts: Row) -> str:
    if "error" in facts:
        return str(facts["error"])[:80]
    return f"{facts['share']:.1%}" if facts.get("share") is not None else f"{facts['workloads']} workloads"


def summary_of(rows: Sequence[Row]) -> Row:
    """How many architectures each statement holds for."""
    dynamo = [row["ways"]["dynamo"].get("share") or 0.0 for row in rows]
    differ = [row["differ"] for row in rows]
    same = {way: sum(way in each and not any(each[way].values()) for each in differ) for way in ("dynamo", "onnx")}
    verified = [row["verified"] for row in rows if row["verified"] is not None]
    return {
        "architectures": len(rows), "at_95_percent": sum(share >= 0.95 for share in dynamo),
        "least_share": min(dynamo, default=None), "same_workloads_as_export": same,
        "recompiled": sum(row["ways"]["dynamo"].get("recompiled", 0) > 0 for row in rows),
        "verified": len(verified), "right": sum(each["right"] for each in verified),
        "generate": sum(all(each["right"] for each in row["generates"].values()) for row in rows if row["generates"]),
        "least_replaced": min((each["share"] or 0.0 for each in verified), default=None),
    }  # fmt: skip
