"""The fields beside ``program`` in a job file's ``workload``, each checked against the program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import MAX_SHOWN, InvalidInput, shown
from tuner.program.language.dims import MAX_SOURCE_LENGTH, DimExpr
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.program import MAX_SIZES, Program
from tuner.program.language.shape_vars import JsonObject
from tuner.program.language.shapes import Dims

MAX_EXTENTS = 2 * MAX_SIZES


@dataclass(frozen=True, slots=True)
class ProgramFields:
    """What stands beside a program, checked. ``source``: the same as JSON that can be read again."""

    extents: Mapping[str, DimExpr]
    shapes: Mapping[str, Dims]
    constants: tuple[str, ...]
    padded: Mapping[str, float]
    domain: Mapping[str, tuple[float, float]]
    source: JsonObject


def program_fields(program: Program, data: Mapping[str, Any]) -> ProgramFields:
    """Read them. Raises InvalidInput on the field that is wrong."""
    given = {
        name: _mapping(data, name, form, allowed)
        for name, form, allowed in (
            ("padded", "as in {x: 0}", program.tensors),
            ("domain", "as in {x: [0, 1]}", program.inputs),
            ("shapes", "as in {x: [b, h, 14]}", program.inputs),
        )
    }
    shapes = {name: _shape(program, name, shape) for name, shape in given["shapes"].items()}
    extents = _extents(program, data, {name for shape in shapes.values() for dim in shape for name in dim.variables})
    padded = {name: _padding(name, value) for name, value in given["padded"].items()}
    domain = {name: _interval(name, value) for name, value in given["domain"].items()}
    constants = _constants(program, data.get("constant"))
    named = _Sizes(extents)
    substituted = {
        name: tuple(_substituted(f"shapes.{name}", dim, named) for dim in shape) for name, shape in shapes.items()
    }
    source: JsonObject = {
        "extents": {name: plain(dim) for name, dim in extents.items()},
        "shapes": {name: [plain(dim) for dim in shape] for name, shape in shapes.items()},
        "constant": list(constants),
        "padded": {name: value if math.isfinite(value) else str(value) for name, value in padded.items()},
        "domain": {name: list(interval) for name, interval in domain.items()},
    }
    source = {name: value for name, value in source.items() if value or name == "extents"}
    return ProgramFields(extents, substituted, constants, padded, domain, source)


def dim_of(field: str, value: object) -> DimExpr:
    """``value`` as an expression whose text can be read again. Raises InvalidInput on ``field``."""
    try:
        dim = DimExpr.of(value)
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.remedy) from None
    if (length := len(str(dim))) > MAX_SOURCE_LENGTH:
        raise InvalidInput(field, f"is {length} characters long when multiplied out", f"at most {MAX_SOURCE_LENGTH}")
    return dim


def plain(dim: DimExpr) -> int | str:
    """A dim as JSON."""
    return dim.constant if dim.constant is not None else str(dim)


def padding_of(name: str, value: float, dtype: str) -> float:
    """What is read outside a tensor of ``dtype``: infinities are its least and largest value where it has none.

    Raises InvalidInput on field ``padded`` for a value that the dtype does not hold.
    """
    kind, bits = DTYPES[dtype].kind, DTYPES[dtype].bits
    if kind == "f":
        return value
    least = -(2 ** (bits - 1)) if kind == "i" else 0
    most = 1 if kind == "b" else 2 ** (bits - (kind == "i")) - 1
    if math.isinf(value):
        # The largest int64 is not a float64: the one below it is.
        largest = float(most) if float(most) <= most else math.nextafter(float(most), 0.0)
        return float(least) if value < 0 else largest
    if value != int(value) or not least <= value <= most:
        problem = f"{value:g} is no value of {dtype}"
        raise InvalidInput(f"padded.{name}", problem, f"a whole number from {least} to {most}, or -inf for the least")
    return value


def _mapping(data: Mapping[str, Any], field: str, form: str, allowed: tuple[str, ...] | None) -> Mapping[str, Any]:
    """A field that maps names to something; the names are of ``allowed``, if that is given."""
    value = data.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(field, f"{shown(value)} is not a mapping of names", form)
    for name in value:
        if not isinstance(name, str):
            raise InvalidInput(field, f"{shown(name)} is not a name", form)
        if allowed is not None and name not in allowed:
            _refuse_name(field, name, allowed)
    return value


def _refuse_name(field: str, name: object, allowed: tuple[str, ...]) -> None:
    what = "a tensor" if field == "padded" else "an input"
    known = f"{what.split()[1]}s: {', '.join(allowed)}"
    raise InvalidInput(_path(field, name), f"{shown(name)} is not {what} of the program", known)


def _path(field: str, name: object) -> str:
    """``extents.m``; the field alone where a name is too long to show."""
    fits = isinstance(name, str) and name.isprintable() and len(name) <= MAX_SHOWN
    return f"{field}.{name}" if fits else field


def _extents(program: Program, data: Mapping[str, Any], in_shapes: set[str]) -> dict[str, DimExpr]:
    """The extent of every axis; of no other names than those, the arguments of extent(...), and what shapes name."""
    given = _mapping(data, "extents", "as in {m: 16*T, n: 2304, k: 768}", None)
    if len(given) > MAX_EXTENTS:
        raise InvalidInput("extents", f"{len(given)} extents", f"at most {MAX_EXTENTS}")
    known = (*program.axes, *program.sizes)
    for name in given:
        if name not in known and name not in in_shapes:
            remedy = f"axes: {', '.join(known)}" if known else "the program has no axes"
            raise InvalidInput(_path("extents", name), "the program has no such axis", remedy)
    extents = {name: dim_of(f"extents.{name}", dim) for name, dim in given.items()}
    for name in known:
        if name not in extents:
            what = "the axis" if name in program.axes else "extent of"
            raise InvalidInput(f"extents.{name}", "is missing", f"the program has {what} {name}: give its extent")
    return extents


def _constants(program: Program, given: object) -> tuple[str, ...]:
    known = f"any of: {', '.join(program.inputs)}"
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise InvalidInput("constant", f"{shown(given)} is not a list of inputs", known)
    for name in given:
        if not isinstance(name, str) or name not in program.inputs:
            _refuse_name("constant", name, program.inputs)
        if list(given).count(name) > 1:
            raise InvalidInput(f"constant.{name}", f"{name} is given twice", "each input once")
    return tuple(given)


def _padding(name: str, value: object) -> float:
    """What is read outside of a tensor: a number, or ``-inf`` as text."""
    if isinstance(value, str) and value in ("-inf", "inf"):
        return float(value)
    return _number(f"padded.{name}", value, 'a number, or "-inf"')


def _number(field: str, value: object, remedy: str) -> float:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**63
    if not whole and (not isinstance(value, float) or math.isnan(value)):
        raise InvalidInput(field, f"{shown(value)} is not a number", remedy)
    return float(value)  # type: ignore[arg-type]


def _interval(name: str, value: object) -> tuple[float, float]:
    field, remedy = f"domain.{name}", "as in [0, 1]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidInput(field, f"{shown(value)} is not an interval", remedy)
    low, high = (_number(field, bound, remedy) for bound in value)
    if math.isinf(low) or math.isinf(high) or low > high:
        raise InvalidInput(field, f"{shown(value)} is not an interval", f"{remedy}: finite, the lesser end first")
    return low, high


def _shape(program: Program, name: str, shape: object) -> Dims:
    """A shape as it is given: its dims name axes and shape variables."""
    if not isinstance(shape, list | tuple):
        raise InvalidInput(f"shapes.{name}", f"{shown(shape)} is not a list of sizes", "as in [b, h, 14, 14]")
    if len(shape) != (rank := program.rank(name)):
        problem = f"{len(shape)} dims are given, the program reads it with {rank} indices"
        raise InvalidInput(f"shapes.{name}", problem, "one size for each index")
    return tuple(dim_of(f"shapes.{name}", dim) for dim in shape)


def _substituted(field: str, dim: DimExpr, sizes: Mapping[str, DimExpr]) -> DimExpr:
    try:
        return dim_of(field, dim.substituted(sizes))
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.remedy) from None


class _Sizes(dict[str, DimExpr]):
    """Names of axes stand for their extents, others for shape variables."""

    def __missing__(self, name: str) -> DimExpr:
        return DimExpr.var(name)
