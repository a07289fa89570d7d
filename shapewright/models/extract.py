"""``sw.extract``: the search tasks of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shapewright.models.graph import Graph
from shapewright.models.lifted import LiftedOp
from shapewright.models.lifting import lift_graph
from shapewright.models.model import Model, Named, bound, described
from shapewright.models.tasks import ModelTasks, Occurrence, Weights, job_name, tasks_of
from tuner.errors import InvalidInput, shown
from tuner.program.job.task import parse_target
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native

FORMS = "a torch.nn.Module, a torch.export.ExportedProgram, an ONNX model, a Relax IRModule, or a .pt2 or .onnx file"


def extract(
    model: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    *,
    shape_vars: Mapping[str, Iterable[int]] | Sequence[ShapeVar | Named] | None = None,
    weights: Weights | None = None,
    target: Target | str | Mapping[str, Any] | None = "native",
    threads: int = 1,
    max_kernels: int = 8,
    cache: str = "streamed",
) -> ModelTasks:
    """What there is to tune in ``model``: one search task for each distinct workload, with its count and its places.

    ``model`` is a ``torch.nn.Module`` in eval mode (with ``example_inputs`` and ``dynamic_shapes`` as for
    ``torch.export.export``), a ``torch.export.ExportedProgram``, an ONNX model, a Relax ``IRModule``, or the path of a
    `.pt2` or `.onnx` file. ``shape_vars`` gives the sizes of dynamic dims by name, ``{"seq": range(1, 129)}``; a dim
    that ``torch.export.Dim`` gives a min and a max needs none. ``weights`` says which sizes occur how often,
    ``{"seq": {1: 0.2, 64: 0.8}}``; the default spreads over the range. The weights of the model are not looked at.
    ``cache`` says how the tasks time their calls: in a model other layers run between two calls of one, so that its
    weights come from memory (``streamed``); ``warm`` or ``cold`` if given.

    Raises InvalidInput for another kind of model, for one that PyTorch or ONNX refuses, and for dims without a range.
    """
    known = parse_target(target)
    try:
        read, name = _read(model, example_inputs, dynamic_shapes)
    except ModuleNotFoundError as error:
        remedy = "pip install 'shapewright[models]'"
        raise InvalidInput("model", f"reading it needs {error.name}, which is not installed", remedy) from error
    graph, variables = bound(read, _named(shape_vars))
    lifting = lift_graph(graph, known or native())
    used = frozenset().union(*(op.workload.variables for op in lifting.ops))
    missing = sorted(used - {var.name for var in variables})
    if missing:
        remedy = f"give the sizes of {missing[0]} in shape_vars; the model has {described(read)}"
        raise InvalidInput(f"shape_vars.{missing[0]}", "the model does not say how large it may be", remedy)
    found = [Occurrence(op.workload, op.output, _place(graph, op)) for op in lifting.ops]
    options = {"target": known, "threads": threads, "max_kernels": max_kernels, "cache": cache}
    return tasks_of(job_name(name), found, lifting.left, variables, weights, options)


def _read(model: Any, example_inputs: Any, dynamic_shapes: Any) -> tuple[Model, str]:
    """The model's graph and a name for it."""
    if isinstance(model, str | Path):
        path = Path(model)
        if not path.is_file():
            raise InvalidInput("model", f"there is no file {shown(str(path))}", FORMS)
        return _of_file(path), path.stem
    packages = {each.__module__.partition(".")[0] for each in type(model).__mro__}
    if "torch" in packages:
        from shapewright.models import torch_model  # noqa: PLC0415 - a frontend for those who have the framework

        if hasattr(model, "graph_signature"):
            return torch_model.from_program(model), "exported program"
        if hasattr(model, "forward"):
            return torch_model.from_module(model, example_inputs, dynamic_shapes), type(model).__name__
    if "onnx" in packages and hasattr(model, "graph"):
        from shapewright.models.onnx_model import from_onnx  # noqa: PLC0415

        return from_onnx(model), model.graph.name or "model"
    if "tvm" in packages and hasattr(model, "functions"):
        from shapewright.models.relax_model import from_relax  # noqa: PLC0415

        return from_relax(model), "relax module"
    raise InvalidInput("model", f"a {type(model).__name__} is no model that can be read", FORMS)


def _of_file(path: Path) -> Model:
    if path.suffix == ".onnx":
        from shapewright.models.onnx_model import from_file  # noqa: PLC0415

        return from_file(path)
    if path.suffix == ".pt2":
        from shapewright.models import torch_model  # noqa: PLC0415

        return torch_model.from_file(path)
    raise InvalidInput("model", f"{shown(path.name)} ends neither in .onnx nor in .pt2", FORMS)


def _named(given: Mapping[str, Iterable[int]] | Sequence[ShapeVar | Named] | None) -> list[Named]:
    if isinstance(given, Mapping):
        return [Named(ShapeVar(name, values)) for name, values in given.items()]
    return [each if isinstance(each, Named) else Named(each) for each in given or ()]


def _place(graph: Graph, op: LiftedOp) -> str:
    """What the model calls the first of its nodes that is in the graph: others were put together."""
    known = next(name for name in op.nodes if name in graph.nodes)
    return graph[known].place or known
