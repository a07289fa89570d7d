"""Workloads from operators of the catalogue and from programs of one's own, checked whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput
from tuner.program.binding import solved_symbols
from tuner.program.catalogue import EPILOGUES, Epilogue, Op, op_named
from tuner.program.dims import MAX_SOURCE_LENGTH, DimExpr
from tuner.program.dtypes import INTEGERS
from tuner.program.notation import Stage, parse_stages
from tuner.program.program import Program
from tuner.program.shape_vars import JsonObject
from tuner.program.shapes import Dims, ElementTypes
from tuner.program.workload import Workload

OP_FIELDS = ("op", "args", "dtype", "epilogue")
PROGRAM_FIELDS = ("program", "extents", "constant", "padded", "outputs", "shapes", "dtype", "domain", "epilogue")
COMMON_FIELDS = ("count", "name")
MAX_EPILOGUES = 8


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """A program of one's own in place of an operator of the catalogue; its extents come as ``args``."""

    program: str
    constant: tuple[str, ...] = ()
    padded: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str, ...] | None = None
    shapes: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    domain: tuple[tuple[str, tuple[float, float]], ...] = ()

    def __str__(self) -> str:
        return "program"


def make_workload(
    op: Op | str | ProgramOp, args: Mapping[str, Any], dtype: object = "float32", epilogue: object = ()
) -> Workload:
    """Check and build a workload. Raises InvalidInput naming ``op``, ``args.X``, ``program``, ``dtype``, ``epilogue``."""
    if isinstance(op, ProgramOp):
        data: JsonObject = {"program": op.program, "extents": {name: _plain(dim) for name, dim in args.items()}}
        data |= {"constant": list(op.constant), "padded": dict(op.padded), "domain": {n: list(d) for n, d in op.domain}}
        data |= {"shapes": {name: [_plain(dim) for dim in shape] for name, shape in op.shapes}, "dtype": dtype}
        data |= {"outputs": list(op.outputs)} if op.outputs is not None else {}
        return _from_program({**data, "epilogue": _names(epilogue)})
    return _from_op(op_named(op), args, dtype, epilogue)


def workload_from_json(data: object) -> Workload:
    """Read a job file's ``workload``. Raises InvalidInput with fields relative to it."""
    if not isinstance(data, Mapping):
        raise InvalidInput("", f"{data!r} is not a mapping", "give op, args and dtype; or program and extents")
    if "program" in data and "op" in data:
        raise InvalidInput("program", "op and program are both given", "give one of them")
    known = (*(PROGRAM_FIELDS if "program" in data else OP_FIELDS), *COMMON_FIELDS)
    unknown = sorted(set(map(str, data)) - set(known))
    if unknown:
        raise InvalidInput(unknown[0], "is not a field of a workload", f"fields: {', '.join(known)}")
    if "program" in data:
        return _from_program(data)
    if "op" not in data:
        raise InvalidInput("op", "is missing", "name an operator of the catalogue, or give a program")
    return _from_op(op_named(data["op"]), data.get("args", {}), data.get("dtype", "float32"), data.get("epilogue"))


# -- operators of the catalogue -----------------------------------------------------------------------------------
def _from_op(op: Op, args: object, dtype: object, epilogue: object) -> Workload:
    if not isinstance(args, Mapping) or not set(op.args) <= set(args) <= {*op.args, *op.settings}:
        given = ", ".join(map(str, args)) if isinstance(args, Mapping) else repr(args)
        optional = f"; may have: {', '.join(op.settings)}" if op.settings else ""
        raise InvalidInput("args", f"{op.name} got {given or 'nothing'}", f"needs: {', '.join(op.args)}{optional}")
    dims = {name: _dim(f"args.{name}", args[name]) for name in op.args}
    settings = {name: _setting(name, op, args) for name in op.settings}
    values = {**settings, **(op.variant(dims, settings) if op.variant else {})}
    program = Program.parse(op.program.format(**values))
    extents = {name: dims[name] for name in op.args if name in program.axes or name in program.sizes}
    for name, text in op.sizes.items():
        extents[name] = _dim("args", text.format(**values)).substituted(dims)
    named = {**dims, **extents}
    shapes = {name: _shape(name, text.format(**values), named) for name, text in op.shapes.items()}
    names = _names(epilogue)
    args_json = {name: _plain(dims[name]) for name in op.args}
    args_json |= {name: args[name] for name in op.settings if name in args}
    shown = ", ".join(f"{name}={value}" for name, value in args_json.items())
    return _finished(
        program, extents, dtype, op.constant, op.padded, shapes, {}, names, op.channel,
        source={"op": op.name, "args": args_json, "dtype": dtype, "epilogue": list(names)},
        label=" + ".join([f"{op.name}({shown})", *names]),
    )  # fmt: skip


def _setting(name: str, op: Op, args: Mapping[str, Any]) -> object:
    setting = op.settings[name]
    try:
        return setting.check(args[name]) if name in args else setting.default
    except ValueError as error:
        raise InvalidInput(f"args.{name}", f"{args[name]!r} will not do", str(error)) from None


def _shape(tensor: str, text: str, sizes: Mapping[str, DimExpr]) -> Dims:
    """``[b, channels, h, w]`` of a catalogue entry."""
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    return tuple(_dim(f"shapes.{tensor}", part).substituted(_Sizes(sizes)) for part in parts)


# -- programs of one's own ----------------------------------------------------------------------------------------
def _from_program(data: Mapping[str, Any]) -> Workload:
    program = Program.parse(data["program"], data.get("outputs"))
    given = _mapping(data, "extents", "as in {m: 16*T, n: 2304, k: 768}")
    extents = {str(name): _dim(f"extents.{name}", dim) for name, dim in given.items()}
    for name in (*program.axes, *program.sizes):
        if name not in extents:
            raise InvalidInput(f"extents.{name}", "is missing", f"the program has the axis {name}: give its extent")
    inputs = ", ".join(program.inputs)
    constant = data.get("constant") or []
    if isinstance(constant, str) or not isinstance(constant, Sequence):
        raise InvalidInput("constant", f"{constant!r} is not a list of inputs", f"any of: {inputs}")
    padded = {name: _padding(name, value) for name, value in _mapping(data, "padded", "as in {x: 0}").items()}
    domain = {name: _interval(name, value) for name, value in _mapping(data, "domain", "as in {x: [0, 1]}").items()}
    shapes = {
        name: _explicit(name, shape, extents) for name, shape in _mapping(data, "shapes", "as in {x: [b, h, 14]}").items()
    }
    for field, names in (("constant", constant), ("padded", padded), ("domain", domain), ("shapes", shapes)):
        for name in names:
            allowed = program.tensors if field == "padded" else program.inputs
            if name not in allowed:
                raise InvalidInput(f"{field}.{name}", f"{name!r} is not an input of the program", f"inputs: {inputs}")
    used = {*program.axes, *program.sizes, *_names_in(_mapping(data, "shapes", ""))}
    for name in extents:
        if name not in used:
            raise InvalidInput(f"extents.{name}", "the program has no such axis", f"axes: {', '.join(program.axes)}")
    names = _names(data.get("epilogue"))
    source = {name: data[name] for name in PROGRAM_FIELDS if name in data}
    source["extents"] = {name: _plain(dim) for name, dim in extents.items()}
    return _finished(
        program, extents, data.get("dtype", "float32"), tuple(constant), padded, shapes, domain, names, None,
        source=source, label=_program_label(program, extents, names),
    )  # fmt: skip


def _program_label(program: Program, extents: Mapping[str, DimExpr], epilogue: Sequence[str]) -> str:
    """The text on one line, shortened, and its extents."""
    text = "; ".join(map(str, program.stages))
    text = text if len(text) <= 100 else f"{text[:97]}..."
    sizes = ", ".join(f"{name}={dim}" for name, dim in extents.items())
    return " + ".join([f"{text} ({sizes})", *epilogue])


def _mapping(data: Mapping[str, Any], field: str, form: str) -> Mapping[str, Any]:
    value = data.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(field, f"{value!r} is not a mapping of names", form)
    return value


def _padding(name: str, value: object) -> float:
    """What is read outside of a tensor: a number, or ``-inf`` as text."""
    if isinstance(value, str) and value in ("-inf", "inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidInput(f"padded.{name}", f"{value!r} is not a number", 'a number, or "-inf"')
    return float(value)


def _interval(name: str, value: object) -> tuple[float, float]:
    pair = list(value) if isinstance(value, list | tuple) else []
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int | float) for v in pair) or pair[0] > pair[1]:
        raise InvalidInput(f"domain.{name}", f"{value!r} is not an interval", "as in [0, 1]")
    return float(pair[0]), float(pair[1])


def _explicit(name: str, shape: object, extents: Mapping[str, DimExpr]) -> Dims:
    if not isinstance(shape, list | tuple):
        raise InvalidInput(f"shapes.{name}", f"{shape!r} is not a list of sizes", "as in [b, h, 14, 14]")
    return tuple(_dim(f"shapes.{name}", dim).substituted(_Sizes(extents)) for dim in shape)


def _names_in(shapes: Mapping[str, Any]) -> set[str]:
    return {name for shape in shapes.values() for dim in shape for name in _dim("shapes", dim).variables}


class _Sizes(dict[str, DimExpr]):
    """Names of axes stand for their extents, others for shape variables."""

    def __missing__(self, name: str) -> DimExpr:
        return DimExpr.var(name)


# -- both ---------------------------------------------------------------------------------------------------------
def _finished(
    program: Program, extents: Mapping[str, DimExpr], dtype: object, constants: Sequence[str],
    padded: Mapping[str, float], shapes: Mapping[str, Dims], domain: Mapping[str, tuple[float, float]],
    epilogue: Sequence[str], channel: str | None, source: JsonObject, label: str,
) -> Workload:  # fmt: skip
    if epilogue:
        program = _with_epilogue(program, epilogue, channel)
    types = ElementTypes(program, dtype).of
    workload = Workload(
        program,
        tuple((name, dim) for name, dim in extents.items()),
        tuple(types.items()),
        tuple(constants),
        tuple(padded.items()),
        tuple(shapes.items()),
        tuple(domain.items()),
        source=json.dumps(source),
        label=label,
    )
    for name in constants:
        if types[name] in INTEGERS and name in program.index_tensors:
            raise InvalidInput(f"constant.{name}", f"{name} is used as an index", "leave it out: indices are not packed")
    # Infers every shape: whatever is wrong with them is told now.
    _ = workload.tensors
    solved_symbols(workload)
    return workload


def _with_epilogue(program: Program, names: Sequence[str], channel: str | None) -> Program:
    """The program with stages appended; the last one writes what the program's output was called."""
    if len(program.outputs) != 1:
        raise InvalidInput("epilogue", f"the program has {len(program.outputs)} outputs", "append stages to the program")
    (out,) = program.outputs
    if any(read.tensor == out for read in program.reads):
        raise InvalidInput("epilogue", f"the output {out} is read by another stage", "append stages to the program")
    axes = program.stage[out].axes
    operands = [EPILOGUES[name].operand for name in names]
    for operand in filter(None, operands):
        if operand in program.tensors or operands.count(operand) > 1:
            raise InvalidInput("epilogue", f"the operand {operand} stands twice", "each operand once")
    if not axes and any(operands):
        raise InvalidInput("epilogue", f"the output {out} has no axes", "append stages to the program")
    results = [*(f"{out}_{number}" for number in range(len(names))), out]
    stages = list(program.renamed({}, {out: results[0]}).stages)
    for name, before, after in zip(names, results, results[1:], strict=False):
        stages.append(_epilogue_stage(EPILOGUES[name], before, after, axes, channel or (axes[-1] if axes else "")))
    return Program.of(stages)


def _epilogue_stage(epilogue: Epilogue, before: str, after: str, axes: Sequence[str], channel: str) -> Stage:
    every = ", ".join(axes)
    operand = f"{epilogue.operand}[{every if epilogue.whole else channel}]"
    text = epilogue.text.format(x=f"{before}[{every}]", operand=operand)
    (stage,) = parse_stages(f"{after}[{every}] = {text}")
    return stage


def _names(epilogue: object) -> tuple[str, ...]:
    listed = isinstance(epilogue, Sequence) and not isinstance(epilogue, str)
    if epilogue is None:
        return ()
    if not listed or not all(isinstance(name, str) for name in epilogue):  # type: ignore[union-attr]
        raise InvalidInput("epilogue", f"{epilogue!r} is not a list of names", f"any of: {', '.join(EPILOGUES)}")
    names = tuple(epilogue)  # type: ignore[arg-type]
    if len(names) > MAX_EPILOGUES:
        raise InvalidInput("epilogue", f"{len(names)} entries", f"at most {MAX_EPILOGUES}")
    for name in names:
        if name not in EPILOGUES:
            raise InvalidInput("epilogue", f"{name!r} is not known", f"any of: {', '.join(EPILOGUES)}")
    return names


def _dim(field: str, value: object) -> DimExpr:
    """``value`` as an expression whose text can be read again."""
    try:
        dim = DimExpr.of(value)
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.remedy) from None
    if (length := len(str(dim))) > MAX_SOURCE_LENGTH:
        raise InvalidInput(field, f"is {length} characters long when multiplied out", f"at most {MAX_SOURCE_LENGTH}")
    return dim


def _plain(value: Any) -> int | str:
    dim = _dim("args", value)
    return dim.constant if dim.constant is not None else str(dim)
