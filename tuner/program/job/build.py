"""Workloads from operators of the catalogue and from programs of one's own, checked whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tuner.errors import MAX_SHOWN, InvalidInput, did_you_mean, shown
from tuner.program.catalogue import Op, op_named
from tuner.program.catalogue.epilogues import epilogue_names, with_epilogue
from tuner.program.job.fields import dim_of, padding_of, plain, program_fields
from tuner.program.language.binding import solved_symbols
from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import INTEGERS
from tuner.program.language.notation import MAX_TEXT
from tuner.program.language.program import Program
from tuner.program.language.rounding import tf32_products
from tuner.program.language.shape_vars import JsonObject
from tuner.program.language.shapes import Dims, ElementTypes
from tuner.program.language.workload import Workload

OP_FIELDS = ("op", "args", "dtype", "epilogue", "tf32")
PROGRAM_FIELDS = (
    "program", "extents", "constant", "padded", "outputs", "shapes", "dtype", "domain", "epilogue", "tf32",
)  # fmt: skip
MAX_MEANT_ARGS = 8
COMMON_FIELDS = ("count", "layers", "name")


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """A program of one's own in place of an operator of the catalogue; its extents come as ``args``.

    In ``shapes`` a text names axes, and a DimExpr is over shape variables."""

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
    """Check and build a workload. Raises InvalidInput on ``op``, ``args.X``, ``program``, ``dtype`` or ``epilogue``."""
    if isinstance(op, ProgramOp):
        data = {name: getattr(op, name) for name in ("program", "constant", "outputs")}
        data |= {name: dict(getattr(op, name)) for name in ("padded", "domain")}
        shapes, sizes = _with_names(op, args)
        data |= {"shapes": shapes, "extents": {**args, **sizes}}
        return _from_program({**data, "dtype": dtype, "epilogue": epilogue})
    return _from_op(op_named(op), args, dtype, epilogue)


def _with_names(op: ProgramOp, args: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The shapes with names in the place of expressions over a shape variable that is called as an axis is; what they
    name."""
    sizes = {
        f"size_of_{tensor}_{at}": str(dim)
        for tensor, shape in op.shapes for at, dim in enumerate(shape)
        if isinstance(dim, DimExpr) and dim.variables & args.keys()
    }  # fmt: skip
    shapes = {
        tensor: [name if (name := f"size_of_{tensor}_{at}") in sizes else dim for at, dim in enumerate(shape)]
        for tensor, shape in op.shapes
    }
    return shapes, sizes


def workload_from_json(data: object, *, is_stored: bool = False) -> Workload:
    """Read a job file's ``workload``. Raises InvalidInput with fields relative to it.

    ``is_stored``: it was checked when it came; shapes are inferred when they are needed.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput("", f"{shown(data)} is not a mapping", "give op, args and dtype; or program and extents")
    if "program" in data and "op" in data:
        raise InvalidInput("program", "op and program are both given", "give one of them")
    known = (*(PROGRAM_FIELDS if "program" in data else OP_FIELDS), *COMMON_FIELDS)
    unknown = min((str(name) for name in data if name not in known), default=None)
    if unknown is not None:
        remedy = f"{did_you_mean(unknown, known)}fields: {', '.join(known)}"
        raise InvalidInput(
            unknown if len(unknown) <= MAX_SHOWN else shown(unknown), "is not a field of a workload", remedy
        )
    if "program" not in data and "op" not in data:
        raise InvalidInput("op", "is missing", "name an operator of the catalogue, or give a program")
    if not isinstance(tf32 := data.get("tf32", False), bool):
        raise InvalidInput("tf32", f"{shown(tf32)} is neither true nor false", "true, where products may be in TF32")
    if "program" in data:
        workload = _from_program(data, is_stored=is_stored)
    else:
        dtype, epilogue = data.get("dtype", "float32"), data.get("epilogue")
        workload = _from_op(op_named(data["op"]), data.get("args", {}), dtype, epilogue, is_stored=is_stored)
    return in_tf32(workload) if tf32 else workload


def has_tf32(workload: Workload) -> bool:
    """Whether something of a workload may be computed in TF32, if that is allowed: a product of float32."""
    return bool(tf32_products(workload.program, workload.element_types))


def in_tf32(workload: Workload) -> Workload:
    """The same with products of float32 in TF32. Raises InvalidInput on ``tf32`` where it has none."""
    if not has_tf32(workload):
        remedy = "leave it out, or give a sum of products of float32"
        raise InvalidInput("tf32", "nothing of the workload is a product of float32", remedy)
    source = json.dumps({**workload.to_json(), "tf32": True})
    return replace(workload, tf32=True, source=source, label=f"{workload}, tf32")


@lru_cache(maxsize=2048)
def workload_from_stored(text: str) -> Workload:
    """A workload from the JSON text of what was stored; each is parsed once, whatever it is part of."""
    return workload_from_json(json.loads(text), is_stored=True)


# -- operators of the catalogue -----------------------------------------------------------------------------------
def _from_op(op: Op, args: object, dtype: object, epilogue: object, *, is_stored: bool = False) -> Workload:
    if not isinstance(args, Mapping) or not set(op.args) <= set(args) <= {*op.args, *op.settings}:
        given = _given(args)
        optional = f"; may have: {', '.join(op.settings)}" if op.settings else ""
        remedy = f"{_meant_args(op, args)}needs: {', '.join(op.args)}{optional}"
        raise InvalidInput("args", f"{op.name} got {given or 'nothing'}", remedy)
    dims = {name: dim_of(f"args.{name}", args[name]) for name in op.args}
    settings = {name: _setting(name, op, args) for name in op.settings}
    names = epilogue_names(epilogue)
    args_json: JsonObject = {name: plain(dims[name]) for name in op.args}
    args_json |= {name: args[name] for name in op.settings if name in args}
    listed = ", ".join(f"{name}={value}" for name, value in args_json.items())
    try:
        parts = _op_parts(op, dims, settings)
        return _finished(
            parts, dtype, names,
            source={"op": op.name, "args": args_json, "dtype": _dtype_json(dtype), "epilogue": list(names)},
            label=" + ".join([f"{op.name}({listed})", *names]), is_stored=is_stored,
        )  # fmt: skip
    except InvalidInput as error:
        # An error in sizes would be reported as of a program, which the user has not written.
        part, _, name = error.field.partition(".")
        field = "args" if part in ("", "program", "extents", "shapes") else error.field
        field = f"args.{name}" if part == "extents" and name in op.args else field
        raise InvalidInput(field, error.problem, error.remedy) from None


def _meant_args(op: Op, args: object) -> str:
    """``did you mean m for M, k for kk? ``, of args that the operator does not have; empty if none is near."""
    own = (*op.args, *op.settings)
    given = [name for name in args if name not in own] if isinstance(args, Mapping) else []
    left = [name for name in own if isinstance(args, Mapping) and name not in args]
    near = ((name, did_you_mean(name, left)) for name in given[:MAX_MEANT_ARGS])
    meant = [f"{text.removeprefix('did you mean ').rstrip('? ')} for {name}" for name, text in near if text]
    return f"did you mean {', '.join(meant)}? " if meant else ""


def _given(args: object) -> str:
    """What stands in the place of args, in short."""
    return (
        shown(args) if not isinstance(args, Mapping) else ", ".join(str(name)[:MAX_SHOWN] for name in list(args)[:16])
    )


def _setting(name: str, op: Op, args: Mapping[str, Any]) -> object:
    setting = op.settings[name]
    try:
        return setting.check(args[name]) if name in args else setting.default
    except ValueError as error:
        raise InvalidInput(f"args.{name}", f"{shown(args[name])} is not allowed", str(error)) from None


@dataclass(frozen=True, slots=True)
class _Parts:
    """A program and its fields, from either source."""

    program: Program
    extents: Mapping[str, DimExpr]
    constants: tuple[str, ...]
    padded: Mapping[str, float]
    shapes: Mapping[str, Dims]
    domain: Mapping[str, tuple[float, float]]
    channel: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)


def _op_parts(op: Op, dims: Mapping[str, DimExpr], settings: Mapping[str, object]) -> _Parts:
    """An operator's templates, filled in."""
    values = {**settings, **(op.variant(dims, settings) if op.variant else {})}
    program = _op_program(op.program.format(**values))
    extents = {name: dims[name] for name in op.args if name in program.axes or name in program.sizes}
    for name, text in op.sizes.items():
        extents[name] = dim_of("args", text.format(**values)).substituted(dims)
    padded = op.padded if op.padded and op.reads_outside(settings) else {}
    shapes = {name: _shape(text.format(**values), {**dims, **extents}) for name, text in op.shapes.items()}
    return _Parts(program, extents, op.constant, padded, shapes, {}, op.channel, op.dtypes)


@lru_cache(maxsize=256)
def _op_program(text: str) -> Program:
    """The program, its indices in their normal form: p + r for 1*p + 1*r - 0. Workloads of one operator share it."""
    return Program.of(Program.parse(text).renamed({}, {}).stages)


@lru_cache(maxsize=64)
def _with_epilogue(program: Program, epilogue: tuple[str, ...], channel: str | None) -> Program:
    return with_epilogue(program, epilogue, channel)


def _shape(text: str, sizes: Mapping[str, DimExpr]) -> Dims:
    """``[b, channels, h, w]`` of a catalogue entry."""
    return tuple(dim_of("args", part).substituted(sizes) for part in text.strip("[]").split(", "))


# -- programs of one's own ----------------------------------------------------------------------------------------
def _from_program(data: Mapping[str, Any], *, is_stored: bool = False) -> Workload:
    program = Program.parse(data["program"], data.get("outputs"))
    fields = program_fields(program, data)
    names, dtype = epilogue_names(data.get("epilogue")), data.get("dtype", "float32")
    source = {"program": data["program"], **fields.source, "dtype": _dtype_json(dtype), "epilogue": list(names)}
    source |= {"outputs": list(program.outputs)} if data.get("outputs") is not None else {}
    parts = _Parts(program, fields.extents, fields.constants, fields.padded, fields.shapes, fields.domain)
    label = _program_label(program, fields.extents, names)
    return _finished(parts, dtype, names, source, label, is_stored=is_stored)


def _program_label(program: Program, extents: Mapping[str, DimExpr], epilogue: tuple[str, ...]) -> str:
    """The text on one line, shortened, and its extents."""
    text = "; ".join(map(str, program.stages))
    text = text if len(text) <= 100 else f"{text[:97]}..."
    sizes = ", ".join(f"{name}={dim}" for name, dim in extents.items())
    return " + ".join([f"{text} ({sizes})", *epilogue])


def _dtype_json(dtype: object) -> object:
    return dict(dtype) if isinstance(dtype, Mapping) else dtype


# -- both ---------------------------------------------------------------------------------------------------------
def _finished(
    parts: _Parts, dtype: object, epilogue: tuple[str, ...], source: JsonObject, label: str, *, is_stored: bool
) -> Workload:
    program = _with_epilogue(parts.program, epilogue, parts.channel) if epilogue else parts.program
    for name, dim in parts.extents.items():
        if dim.constant is not None and dim.constant < 0:
            raise InvalidInput(f"extents.{name}", f"the extent of {name} is {dim.constant}", "0 or more")
    types = ElementTypes(program, dtype, parts.dtypes).of
    for name in parts.constants:
        if types[name] in INTEGERS and name in program.index_tensors:
            remedy = "leave it out: indices are not packed"
            raise InvalidInput(f"constant.{name}", f"{name} is used as an index", remedy)
    padded = {name: padding_of(name, value, types[name]) for name, value in parts.padded.items() if name in types}
    workload = Workload(
        program,
        tuple(parts.extents.items()),
        tuple(types.items()),
        parts.constants,
        tuple(padded.items()),
        tuple(parts.shapes.items()),
        tuple(parts.domain.items()),
        source=json.dumps(source),
        label=label,
    )
    if is_stored and not workload.padding:
        return workload
    # Infers every shape and checks every read: errors in them are raised now.
    _ = workload.tensors, workload.inference.unproved
    solved_symbols(workload)
    workload = _without_idle_padding(workload)
    if (length := len(str(workload.canonical["program"]))) > MAX_TEXT:
        raise InvalidInput("program", f"is {length} characters long in its canonical form", f"at most {MAX_TEXT}")
    return workload


def _without_idle_padding(workload: Workload) -> Workload:
    """Padding of tensors that are never read outside their bounds decides nothing: it is no part of a workload."""
    shapes = workload.inference
    needed = tuple((name, value) for name, value in workload.padding if not shapes.stays_inside(name))
    return workload if needed == workload.padding else replace(workload, padding=needed)
