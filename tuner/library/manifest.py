"""What a library's manifest may say, field by field. Anyone may have written it: nothing is taken on trust."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import MAX_SHOWN, InvalidInput, ShapewrightError, shown
from tuner.program.job.build import workload_from_stored
from tuner.program.job.cache import CACHES
from tuner.program.job.task import MAX_THREADS
from tuner.program.language.workload import JsonObject, Workload
from tuner.program.target.cpu import MAX_CORES
from tuner.schedule.layout import layout_from_json

AGAIN = "pull the library again"
DIGEST = re.compile("[0-9a-f]{64}")
NAME = re.compile(r"[\w.+-]{1,200}", re.ASCII)
MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Errors that reading parsed JSON of another form may raise; InvalidInput is a ValueError."""


@dataclass(frozen=True, slots=True)
class Field:
    """What a field holds, in words, and whether a value is that. Earlier releases wrote some fields not at all."""

    wanted: str
    is_right: Callable[[Any], bool]
    is_required: bool = True


def is_count(value: object, most: int) -> bool:
    """Whether it is an integer from 1 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_like(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _maps_to(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _is_digests(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_like(NAME), value)) and _maps_to(_is_like(DIGEST))(value)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_like(NAME), value))


def _or_null(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(isinstance(end, int) and not isinstance(end, bool) for end in value) and value[0] <= value[1]


def _is_target(value: object) -> bool:
    """Whether it has the form of a target. Features are any text: a later release may know more than this one."""
    if not isinstance(value, dict) or not isinstance(hardware := value.get("hardware"), dict):
        return False
    if value.get("kind") == "cuda":
        return _is_like(NAME)(value.get("arch"))
    features = hardware.get("features")
    has_features = isinstance(features, list) and all(map(_is_like(NAME), features))
    return has_features and _is_like(NAME)(value.get("mcpu")) and is_count(hardware.get("cores"), MAX_CORES)


def is_kernel(value: object) -> bool:
    """Whether it is a micro-kernel in public form, of any rule."""
    kernel = value.get("kernel") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kernel, dict) or not isinstance(kernel.get("values"), dict):
        return False
    texts = value.get("id"), value.get("name"), kernel.get("rule")
    numbers = kernel.get("rule_version"), *kernel["values"].values()
    return all(map(_is_text, texts)) and all(type(number) is int for number in numbers)


def _is_layout(value: Any) -> bool:
    try:
        return bool(layout_from_json(value))
    except MALFORMED:
        return False


FIELDS: Mapping[str, Field] = {
    "digest": Field("a SHA-256 in hex", _is_like(DIGEST)),
    "files": Field("the SHA-256 of each file", _is_digests),
    "workload": Field("a workload", lambda value: isinstance(value, dict)),
    "workload_key": Field("a workload's key", _is_like(NAME)),
    "target": Field("a target with its hardware's features and cores, or a GPU's", _is_target),
    "target_fingerprint": Field("a target's fingerprint", _is_like(NAME)),
    "threads": Field(f"an integer from 1 to {MAX_THREADS}", lambda value: is_count(value, MAX_THREADS)),
    "kernels": Field("a list of kernels", lambda value: isinstance(value, list) and all(map(is_kernel, value))),
    "ranges": Field("the range of each symbol, as in {m: [1, 32]}", _maps_to(_is_range), False),
    "made_for": Field("ranges as text", _is_text, False),
    "cache": Field(f"one of {', '.join(CACHES)}", lambda value: isinstance(value, str) and value in CACHES, False),
    "protocol": Field("text", _or_null(_is_text), False),
    "toolchain": Field("versions by name", _or_null(_maps_to(_is_text)), False),
    "shapewright": Field("the version of what packaged it", _is_text, False),
    "job_id": Field("a job's id, or null", _or_null(_is_text), False),
    "code_for": Field("a list of instruction sets of a GPU", _is_names, False),
    "packed_layouts": Field("the layout of each packed constant", _maps_to(_is_layout), False),
    "packed_layout": Field("a layout, or null", _or_null(_is_layout), False),
}
"""Fields by name; others are passed over, so that a later release may add some."""


def check_fields(manifest: JsonObject, name: str) -> None:
    """Raise InvalidInput, its field ``NAME: FIELD``, for the first field that is not what FIELDS says."""
    for field, expected in FIELDS.items():
        if field not in manifest:
            if expected.is_required:
                raise InvalidInput(f"{name}: {field}", "is missing", AGAIN)
        elif not expected.is_right(manifest[field]):
            raise InvalidInput(f"{name}: {field}", f"{shown(manifest[field])} is not {expected.wanted}", AGAIN)
    try:
        workload_of(manifest).canonical  # noqa: B018 - shapes of a stored workload are inferred when they are needed
    except MALFORMED as error:
        raise InvalidInput(f"{name}: workload", f"cannot be read ({reason(error)})", AGAIN) from None


def workload_of(manifest: JsonObject) -> Workload:
    """The workload that a checked manifest names."""
    return workload_from_stored(json.dumps(manifest["workload"]))


def reason(error: Exception) -> str:
    """Why something could not be read, in a few words."""
    if isinstance(error, InvalidInput):
        return f"{error.field}: {error.problem}" if error.field else error.problem
    told = str(error)[:MAX_SHOWN]
    return told if isinstance(error, ValueError | ShapewrightError) else f"{type(error).__name__}: {told}"
