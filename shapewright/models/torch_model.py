"""Models of PyTorch: modules, exported programs, and `.pt2` files of these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shapewright.models.aten import decomposed
from shapewright.models.fx import graph_of
from shapewright.models.model import Model, Place
from tuner.errors import InvalidInput
from tuner.program.language.shape_vars import MAX_POINTS


def from_module(module: Any, example_inputs: Any, dynamic_shapes: Any) -> Model:
    """A ``torch.nn.Module``, exported with these inputs, layers that PyTorch packed unpacked. Raises InvalidInput with
    the reason of ``torch.export``."""
    import torch  # noqa: PLC0415 - a second and hundreds of megabytes, for those who have a model of it

    if module.training:
        raise InvalidInput("model", "it is in training mode", "call model.eval() first")
    if example_inputs is None:
        raise InvalidInput("example_inputs", "are missing", "a tuple of tensors that the model can be called with")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    args, kwargs = ((), dict(example_inputs)) if isinstance(example_inputs, Mapping) else (tuple(example_inputs), {})
    module, kept = _unpacked(module)
    try:
        with torch.no_grad():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # torch.export has no common class for what it refuses
        named = "".join(f"; {name} ({kind}) has packed weights: {reason}" for name, (kind, reason) in kept.items())
        raise InvalidInput(
            "model", f"torch.export refuses it: {_first_line(error)}{named}", "see the error above it"
        ) from error
    return from_program(program)


def _unpacked(module: Any) -> tuple[Any, Mapping[str, tuple[str, str]]]:
    """The model with layers that ``torch.export`` reads, and what of it stays packed, and why."""
    from shapewright.models.copies import copied  # noqa: PLC0415 - they import torch
    from shapewright.models.quantised import unpacked_layers  # noqa: PLC0415

    made, kept = unpacked_layers(module)
    return (copied(module, lambda name, value, error: None, made) if made else module), kept


def from_file(path: Path) -> Model:
    """A `.pt2` file of ``torch.export.save``."""
    import torch  # noqa: PLC0415

    try:
        return from_program(torch.export.load(path))
    except Exception as error:  # nor has loading
        reason = f"{path} cannot be loaded: {_first_line(error)}"
        raise InvalidInput(
            "model", reason, "a file that torch.export.save wrote, of this version of PyTorch"
        ) from error


def from_program(program: Any) -> Model:
    """A ``torch.export.ExportedProgram``."""
    names = _names(program)
    program = decomposed(program)
    graph = graph_of(program.graph_module, constants_of(program))
    users = {spec.arg.name for spec in program.graph_signature.input_specs if spec.target is None}
    places: dict[str, list[Place]] = {}
    for node in graph:
        for axis, dim in enumerate(node.shape or () if node.name in users else ()):
            if str(dim) in graph.symbols:
                places.setdefault(str(dim), []).append((node.name, axis))
    ranges = {str(symbol): _range(limits) for symbol, limits in program.range_constraints.items()}
    known = {symbol: sizes for symbol, sizes in ranges.items() if sizes is not None}
    return Model(graph, places, known, names)


def constants_of(program: Any) -> set[str]:
    """The placeholders of an exported program that stay from call to call."""
    signature = program.graph_signature
    # A cache is a buffer, too, but none that stays.
    changed = set(signature.buffers_to_mutate.values())
    return {spec.arg.name for spec in signature.input_specs if spec.target is not None and spec.target not in changed}


def _range(limits: Any) -> range | None:
    """The sizes that a constraint allows; None where it has no end. Sizes of 0 are not searched for."""
    lower, upper = limits.lower, limits.upper
    if not (lower.is_Integer and upper.is_Integer) or upper - lower >= MAX_POINTS:
        return None
    return range(max(int(lower), 1), int(upper) + 1)


def _names(program: Any) -> dict[str, str]:
    """What ``torch.export.Dim`` called the symbols, as long as the program was not saved."""
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if hasattr(size, "node"):
                environment = size.node.shape_env
                given = getattr(environment, "source_name_to_debug_name", {})
                symbols = getattr(environment, "source_to_var", {})
                return {str(symbols[source]): name for source, name in given.items() if _is_name(source, name, symbols)}
    return {}


def _is_name(source: str, name: str, symbols: Mapping[str, Any]) -> bool:
    return source in symbols and name.isidentifier()


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
