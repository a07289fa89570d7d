"""``sw.torch.compile_exported``: a program of ``torch.export`` compiled with tuned libraries.

The backend of torch.compile looks, at each call, at every module, parameter and global that TorchDynamo has read: a
thousand places for a small transformer, which kernels have pushed out of the caches. A program that was exported has
nothing of the kind: at a call its inputs are looked at.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import CodeGen
from torch.utils._pytree import tree_structure, tree_unflatten

from shapewright.sources.source import SourceLike
from shapewright.torch.backend import checked_options, compile_graph
from shapewright.torch.chain_op import forget_program
from shapewright.torch.exported_inputs import COMPILE, Given, Inputs
from shapewright.torch.frozen import keep_constants
from shapewright.torch.reports import Report
from tuner.errors import InvalidInput

_numbers = itertools.count(1)


class CompiledProgram:
    """A program to be called as the model is that it was exported of. Safe to use from several threads.

    Inputs are as they were exported: their structure, dtypes and devices, sizes within the range of each dynamic dim.
    What has gaps, or axes in another order, is copied. Nothing records gradients. ``shapewright_report`` tells what was
    replaced. A call raises InvalidInput for inputs.
    """

    def __init__(
        self, call: Callable[..., Any], inputs: Inputs, outputs: Any, constants: Mapping[int, Any], report: Report
    ) -> None:
        """``outputs``: their structure; ``constants``: those that nothing computes, by their places, in order."""
        self._call, self._inputs, self._outputs, self._constants = call, inputs, outputs, dict(constants)
        self._is_single = outputs == tree_structure(0)
        self._is_tuple = outputs == tree_structure((0,) * outputs.num_leaves)
        self.shapewright_report = report

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = self._call(*self._inputs.of(args, kwargs))
        if self._constants:
            results = list(results)
            for place, value in self._constants.items():
                results.insert(place, value)
        if self._is_single:
            return results[0]
        return tuple(results) if self._is_tuple else tree_unflatten(results, self._outputs)


def compile_exported(
    program: ExportedProgram, source: SourceLike | None = None, *, strict: bool = False, threads: int | None = None,
    freeze: bool = False, options: Mapping[str, Any] | None = None,
) -> CompiledProgram:  # fmt: skip
    """Compile ``program`` with the libraries of ``source`` (the service of SHAPEWRIGHT_URL if left out).

    Its weights are those of the model; one that is changed in place is packed anew at the next call, as with the
    backend (``sw.torch.forget``). With ``freeze`` libraries read them once, and again after ``sw.torch.forget()``, and
    what is computed of weights alone is computed as seldom; a call does not look whether they have changed.
    ``strict``, ``threads``, and the further ``options`` (``rest``, ``inductor``) are the backend's. Raises InvalidInput
    for a program that takes what is neither tensor, size nor constant, or inputs whose axes are in another order.
    """
    if not isinstance(program, ExportedProgram):
        raise InvalidInput("program", f"{type(program).__name__} is none", "what torch.export.export(model, ...) gives")
    _check(program)
    report = Report()
    given = checked_options(
        {**(options or {}), "source": source, "strict": strict, "threads": threads, "report": report}
    )
    # Guards of its own would look at a module whose sizes are looked at here.
    module = program.module(check_guards=False)
    module.graph.set_codegen(CodeGen())
    inputs = _inputs(module)
    constants, number = _constant_outputs(module), next(_numbers) if freeze else 0
    examples = [each.value for each in inputs if each.is_passed]
    if freeze:
        keep_constants(number, module)
    try:
        with torch.no_grad():
            call = compile_graph(module, examples, given, frozen=number)
    except BaseException:
        forget_program(number)
        raise
    checked = Inputs(program, module, inputs, _env(examples))
    compiled = CompiledProgram(call, checked, program.call_spec.out_spec, constants, report)
    if freeze:
        weakref.finalize(compiled, forget_program, number).atexit = False
    return compiled


def _check(program: ExportedProgram) -> None:
    strange = [
        each.arg.name
        for each in program.graph_signature.input_specs
        if each.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN)
    ]
    if strange:
        raise InvalidInput("program", f"takes {strange[0]}, which is no tensor", COMPILE)


def _inputs(module: torch.fx.GraphModule) -> list[Given]:
    """The inputs of a program; those that are part of it go from its graph."""
    found, written = [], _written(module)
    for node in list(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        given = Given(node.target, value, isinstance(value, torch.Tensor) and _storage_of(node) in written)
        if isinstance(given.value, torch.Tensor) and not given.value.is_contiguous():
            raise InvalidInput("program", f"{given.name} was exported with its axes in another order", ".contiguous()")
        if not given.is_passed:
            module.graph.erase_node(node)
        found.append(given)
    module.recompile()
    return found


def _written(module: torch.fx.GraphModule) -> set[int]:
    """The storages that operators of the graph write to, or of a graph inside of it, as that of a ``no_grad`` block."""
    found = set()
    graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
                nodes = given if isinstance(given, list | tuple) else [given]
                found |= {_storage_of(each) for each in nodes if isinstance(each, torch.fx.Node)}
    return found


def _storage_of(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0


def _constant_outputs(module: torch.fx.GraphModule) -> dict[int, Any]:
    """The outputs that are no values of the graph, by their places; they go from it."""
    output = module.graph.output_node()
    (values,) = output.args
    output.args = (tuple(each for each in values if isinstance(each, torch.fx.Node)),)
    module.recompile()
    return {place: each for place, each in enumerate(values) if not isinstance(each, torch.fx.Node)}


def _env(examples: list[Any]) -> ShapeEnv | None:
    for each in examples:
        mode = getattr(each, "fake_mode", None)
        if mode is not None:
            return mode.shape_env
    return None
