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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

import shapewright as sw
from benchmarks.harness.calls import library_of_one
from benchmarks.harness.results import Row, finish, say
from benchmarks.nets.zoo import ARCHITECTURES, Model
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


def row_of(name: str, verify: bool) -> Row:
    """One architecture. What a frontend refuses is reported in its place."""
    architecture, verified, generates = ARCHITECTURES[name], None, None
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        in_ways = (("export", _exported), ("dynamo", _compiled), ("onnx", _onnx))
        ways = {way: _told_by(partial(lifted, architecture)) for way, lifted in in_ways}
        found = {way: facts.pop("ops") for way, facts in ways.items() if "ops" in facts}
        if verify and "export" in found:
            verified = _told_by(partial(_verified, architecture), share=None, right=False)
        decoder: Any = getattr(architecture.build(), "model", None)
        if verify and hasattr(decoder, "can_generate") and decoder.can_generate():
            # Caches of keys and values: one that grows, one that is written in place.
            looks = {cache: partial(generated, decoder, cache) for cache in ("dynamic", "static")}
            generates = {cache: _told_by(look, share=None, right=False) for cache, look in looks.items()}
    keys = {way: {op.workload.key: str(op.workload) for op in ops} for way, ops in found.items()}
    # Workloads of ``sw.extract`` alone, and of the other way alone.
    export = keys.get("export", {})
    differ = {
        way: {
            "export": [text for key, text in export.items() if key not in own],
            "other": [text for key, text in own.items() if key not in export],
        }
        for way, own in keys.items() if "export" in keys
    }  # fmt: skip
    return {"architecture": name, "ways": ways, "differ": differ, "verified": verified, "generates": generates}


def _told_by(look: Callable[[], Row], **otherwise: Any) -> Row:
    """What ``look`` finds, or its error: one architecture must not cost the others."""
    try:
        return look()
    except Exception as error:  # whatever a model or an exporter has to say
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}", **otherwise}


# -- the ways in ----------------------------------------------------------------------------------------------------
def _program(architecture: Model) -> Any:
    """The exported program, its batch and its length dynamic."""
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in architecture.axes)
    return torch.export.export(architecture.build(), architecture.inputs(*SIZES[0]), dynamic_shapes=shapes)


def _exported(architecture: Model) -> Row:
    program = decomposed(_program(architecture))
    return _counted([(program.graph_module, lift(program.graph_module, torch_model.constants_of(program)))])


def _compiled(architecture: Model) -> Row:
    found: list[tuple[Any, Lifting]] = []

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        def rewrite(module: Any, constants: frozenset[str]) -> bool:
            found.append((module, lift(module, constants)))
            return False

        with read_as_constants(graph), suppress(NothingReplaced):
            as_it_is(graph, inputs, rewrite)
        return graph.forward

    torch._dynamo.reset()
    fast, graphs = torch.compile(architecture.build(), backend=backend, dynamic=None), []
    for size in SIZES[:2]:
        inputs = architecture.inputs(*size)
        for tensor, axes in zip(inputs, architecture.axes, strict=True):
            torch._dynamo.mark_dynamic(tensor, list(axes))
        fast(*inputs)
        graphs.append(len(found))
    return {**_counted(found), "graphs": graphs[0], "recompiled": graphs[-1] - graphs[0]}


def _onnx(architecture: Model) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(_program(architecture), f=str(file), dynamo=True, verbose=False)
        return _number(lift_graph(from_file(file).graph).ops)


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
    return {
        **_number([op for _, lifting in graphs for op in lifting.ops]), "flops": total,
        "share": 1 - lost.total() / total if total else None,
        "lost": [{"reason": reason, "share": count / total} for reason, count in lost.most_common(MAX_LOST)],
    }  # fmt: skip


def _number(ops: Sequence[Any]) -> Row:
    return {"operators": len(ops), "workloads": len({op.workload.key for op in ops}), "ops": ops}


# -- outputs --------------------------------------------------------------------------------------------------------
def _verified(architecture: Model) -> Row:
    """Compiled with a library for each workload of ``sw.extract``, ``dynamic=True``: errors, and what was replaced."""
    model, program = architecture.build(), _program(architecture)
    with tempfile.TemporaryDirectory() as folder:
        symbols = torch_model.from_program(program).graph.symbols
        tasks = sw.extract(program, shape_vars={each: range(1, max(LARGEST.values()) + 1) for each in sorted(symbols)})
        write_libraries(tasks, Path(folder))
        fast, report = compiled(model, folder)
        errors, graphs, shares = {}, [], []
        for batch, length in SIZES:
            given = architecture.inputs(batch, length)
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
        library_of_one(task, default_kernel(task), folder / task.workload.key)


def generated(model: Any, cache: str) -> Row:
    """A model that has ``generate``, in inference mode, compiled with libraries of what a first compilation lacks, and
    compared with eager at several lengths of prompts."""
    eager, size = model.forward, int(model.config.vocab_size)
    some = torch.randint(3, size, (BATCH, 5))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            fast, first = compiled(eager, folder)
            _scores(model, fast, some, cache)
            write_libraries(first.tasks(dict.fromkeys(first.symbols, range(1, LONGEST + 1))), Path(folder))
            fast, report = compiled(eager, folder)
            _scores(model, fast, some, cache)
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
    parts = [", ".join(f"{way} {_told(facts)}" for way, facts in row["ways"].items())]
    for way, each in row["differ"].items():
        if count := sum(map(len, each.values())):
            parts.append(f"{count} workloads differ by {way}")
    if row["verified"] is not None:
        parts.append(f"replaced {_told(row['verified'])}")
    parts += [f"generates, {cache}: {_told(facts)}" for cache, facts in (row["generates"] or {}).items()]
    return f"{row['architecture']}: {'; '.join(parts)}"


def _told(facts: Row) -> str:
    share = facts.get("share")
    text = f"{share:.1%}" if share is not None else str(facts.get("error") or f"{facts['workloads']} workloads")[:80]
    if "right" not in facts:
        return text
    is_same = facts["right"] or facts.get("worst", 2.0) <= 1
    return f"{text}, {'WRONG' if not is_same else 'right' if facts['right'] else 'right, but compiled again'}"


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
