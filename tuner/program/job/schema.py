"""The JSON schema of job files, for editors; ``job.schema.json`` beside this module is what it gives.

An editor completes and explains with it, and marks what is plainly wrong. What a job may hold in full is checked by
``tuner.program.job.jobspec``: every job file that it takes is valid here. The form is that of SchemaStore (draft 7;
``$id``, ``title``).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from tuner.program.catalogue import EPILOGUES, OPS, Op
from tuner.program.job.cache import CACHES, Cache
from tuner.program.job.instances import MAX_INSTANCES
from tuner.program.job.jobspec import MAX_COUNT, MAX_NAME, MAX_TASKS, MAX_TRIALS
from tuner.program.job.policies import DEFAULT_POLICY, POLICIES
from tuner.program.job.task import MAX_KERNELS, MAX_THREADS
from tuner.program.job.webhook import MAX_PRIORITY, MAX_URL
from tuner.program.language.dtypes import DTYPES
from tuner.program.target import READERS

JsonObject = dict[str, Any]

ID = "https://www.schemastore.org/shapewright-job.json"
FILE_MATCH = ("*.shapewright.yaml", "*.shapewright.yml", "*.shapewright.json", "shapewright.yaml", "shapewright.yml")
"""The names of files that are jobs, for an entry of SchemaStore's catalogue and the settings of editors."""
FILE = "job.schema.json"

JOB_FIELDS = {
    "name": f"1 to {MAX_NAME} printable characters; the workload's label if left out",
    "workload": "an operator or a program",
    "workloads": "several of them in place of `workload`. Each may carry a `count`, how often the model holds it, and "
    "`layers`, names of what it stands for, which change nothing of the search",
    "shape_vars": "the sizes that a name takes: `{min: 1, max: 128}`, with `step: 8`, with `powers_of: 2`, or "
    "`{values: [5, 24]}`",
    "instances": "the shapes that matter and how much: `[{T: 5, weight: 1.0}]`; spread over the range with weight 1 if "
    "left out",
    "target": "`native`, or a CPU by LLVM's name: `{kind: llvm, mcpu: sapphirerapids, num-cores: 2}`; or "
    "a GPU by its instruction set or product: `{kind: cuda, arch: sm_90}`, `{kind: cuda, product: h100}`",
    "targets": "several in place of `target`",
    "cache": "how a timed call finds its operands: `warm`, as the call before it left them; `cold`, in memory; "
    "`streamed`, packed constants in memory and the rest in the caches, as in a model",
    "threads": "of a kernel",
    "device": "a key of the tracker",
    "policy": f"one of {', '.join(f'`{name}`' for name in POLICIES)}",
    "budget": "`trials`, `seconds`, or both: the search ends with whichever comes first",
    "max_kernels": "of a library",
    "seed": "of the search",
    "priority": "-10 to 10: higher ones are leased first; above 0 needs a key of scope admin",
    "webhook": "`{url: ...}`: told when the job has ended",
}
OPERATOR_FIELDS = {
    "op": "the name of an operator",
    "args": "its extents, as integer expressions over shape variables, and its settings",
    "dtype": "one name for all inputs and outputs, or one for each tensor: `{x: bfloat16, w: int8, out: float32}`",
    "epilogue": "stages that are appended, in order; they are fused where the rule can",
    "tf32": "true: what is multiplied in float32 may be rounded to TF32, 11 bits in place of 24, which tensor cores of "
    "GPUs take; kernels that do not are right as well",
}
PROGRAM_FIELDS = {
    "program": "the stages, separated by new lines or `;`",
    "extents": "the size of every axis",
    "constant": "inputs that do not change between calls: packed once by `library.pack(w)`, or by name where there are "
    "several",
    "padded": 'tensors that are read outside their bounds, and the value that is read there: `{x: 0}`, `{x: "-inf"}`',
    "outputs": "the stages that a call returns, in place of those that no other stage reads",
    "shapes": "shapes of inputs that do not follow from the axes, or exceed what is read: `{w: [8, n, k]}`",
    "dtype": "as for an operator",
    "domain": "the interval that test inputs are drawn from: `{x: [0, 1]}`",
    "epilogue": "as for an operator",
    "tf32": "as for an operator",
}

_NUMBER: JsonObject = {"type": ["number", "string"]}


def job_schema() -> JsonObject:
    """The schema of a job file, JSON or YAML."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": ID,
        "title": "Shapewright job",
        "description": "A tuning job of Shapewright: tensor programs with dynamic shapes, and a budget.",
        **job_object("#/definitions/"),
        "definitions": definitions("#/definitions/"),
    }


def job_object(parts: str) -> JsonObject:
    """A job without what names the schema; ``parts`` is where the definitions stand in the document."""
    return {
        "type": "object",
        "required": ["budget"],
        "oneOf": [{"required": ["workload"]}, {"required": ["workloads"]}],
        "not": {"required": ["target", "targets"]},
        "additionalProperties": False,
        "properties": {name: value | {"description": JOB_FIELDS[name]} for name, value in _properties(parts).items()},
    }


def definitions(parts: str) -> dict[str, JsonObject]:
    """What several places of a job refer to, by name."""
    return {
        "JobSize": {
            "type": ["integer", "string"],
            "description": "a size, or an integer expression over shape variables: 16*T, T+128, T//2",
        },
        "JobDtype": {"type": "string", "enum": list(DTYPES)},
        "JobShapeVar": {"description": "the sizes of a shape variable", **_shape_var()},
        "JobTarget": {"description": JOB_FIELDS["target"], **_target()},
        "JobWorkload": {
            "description": "an operator of the catalogue (`op`, `args`), or a program (`program`, `extents`)",
            "type": "object",
            "oneOf": [_operator(parts), _program(parts)],
        },
    }


def schema_text() -> str:
    """The file in the package, as an editor reads it."""
    return files(__package__).joinpath(FILE).read_text(encoding="utf-8")


def _properties(parts: str) -> dict[str, JsonObject]:
    workload, target = {"$ref": parts + "JobWorkload"}, {"$ref": parts + "JobTarget"}
    shape_var = {"$ref": parts + "JobShapeVar"}
    many = {"type": "array", "minItems": 1, "maxItems": MAX_TASKS}
    return {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "workload": {"allOf": [workload]},
        "workloads": many | {"items": workload},
        "shape_vars": {"type": ["object", "null"], "additionalProperties": shape_var},
        "instances": {"type": ["array", "null"], "maxItems": MAX_INSTANCES, "items": _instance()},
        "target": {"allOf": [target]},
        "targets": many | {"items": target},
        "cache": {"type": "string", "enum": list(CACHES), "default": Cache.WARM.value},
        "threads": {"type": "integer", "minimum": 1, "maximum": MAX_THREADS, "default": 1},
        "device": {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "default": "local"},
        "policy": {"type": "string", "enum": list(POLICIES), "default": DEFAULT_POLICY},
        "budget": _budget(),
        "max_kernels": {"type": "integer", "minimum": 1, "maximum": MAX_KERNELS, "default": 8},
        "seed": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1, "default": 0},
        "priority": {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY, "default": 0},
        "webhook": {
            "type": ["object", "null"],
            "required": ["url"],
            "additionalProperties": False,
            "properties": {"url": {"type": "string", "format": "uri", "maxLength": MAX_URL}},
        },
    }


def _common() -> dict[str, JsonObject]:
    return {
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_COUNT, "description": "how often the model holds it"},
        "layers": {"type": "array", "items": {"type": "string"}, "description": "names of what it stands for"},
        "name": {"type": "string"},
    }


def _described(fields: dict[str, JsonObject], texts: dict[str, str]) -> dict[str, JsonObject]:
    return {name: value | {"description": texts[name]} for name, value in fields.items()}


def _operator(parts: str) -> JsonObject:
    fields: dict[str, JsonObject] = {
        "op": {"type": "string", "enum": sorted(OPS)},
        "args": {"type": "object"},
        **_computed(parts),
    }
    return {
        "required": ["op", "args"],
        "additionalProperties": False,
        "properties": _described(fields, OPERATOR_FIELDS) | _common(),
        "allOf": [
            {"if": {"properties": {"op": {"const": name}}}, "then": {"properties": {"args": _args(OPS[name], parts)}}}
            for name in sorted(OPS)
        ],
    }


def _args(op: Op, parts: str) -> JsonObject:
    settings = {name: {"description": each.doc, "default": each.default} for name, each in op.settings.items()}
    properties = {name: {"$ref": parts + "JobSize"} for name in op.args} | settings
    return {"required": list(op.args), "additionalProperties": False, "properties": properties}


def _program(parts: str) -> JsonObject:
    size = {"$ref": parts + "JobSize"}
    names = {"type": ["array", "null"], "items": {"type": "string"}}
    fields: dict[str, JsonObject] = {
        "program": {"type": "string"},
        "extents": {"type": ["object", "null"], "additionalProperties": size},
        "constant": names,
        "padded": {"type": ["object", "null"], "additionalProperties": _NUMBER},
        "outputs": names,
        "shapes": {"type": ["object", "null"], "additionalProperties": {"type": "array", "items": size}},
        "domain": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        },
        **_computed(parts),
    }
    return {
        "required": ["program"],
        "additionalProperties": False,
        "properties": _described(fields, PROGRAM_FIELDS) | _common(),
    }


def _computed(parts: str) -> dict[str, JsonObject]:
    """What operators and programs share."""
    name: JsonObject = {"$ref": parts + "JobDtype"}
    return {
        "dtype": {"anyOf": [name, {"type": "object", "additionalProperties": name}]},
        "epilogue": {"type": ["array", "null"], "items": {"type": "string", "enum": sorted(EPILOGUES)}},
        "tf32": {"type": "boolean"},
    }


def _shape_var() -> JsonObject:
    whole = {"type": "integer"}

    def form(*names: str, optional: tuple[str, ...] = ()) -> JsonObject:
        properties = dict.fromkeys((*names, *optional), whole)
        return {"required": list(names), "additionalProperties": False, "properties": properties}

    listed = {"type": "array", "items": whole, "minItems": 1}
    values = {"required": ["values"], "additionalProperties": False, "properties": {"values": listed}}
    return {
        "type": "object",
        "anyOf": [form("min", "max", optional=("step",)), form("min", "max", "powers_of"), values],
    }


def _instance() -> JsonObject:
    weight = {"type": "number", "minimum": 0, "description": "how much the shape matters; 1 if left out"}
    return {"type": "object", "properties": {"weight": weight}, "additionalProperties": {"type": "integer"}}


def _target() -> JsonObject:
    described = {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": list(READERS)}}}
    return {"anyOf": [{"const": "native"}, {"type": "null"}, described], "default": "native"}


def _budget() -> JsonObject:
    return {
        "type": "object",
        "anyOf": [{"required": ["trials"]}, {"required": ["seconds"]}],
        "additionalProperties": False,
        "properties": {
            "trials": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_TRIALS},
            "seconds": {"type": ["number", "null"], "exclusiveMinimum": 0},
        },
    }


if __name__ == "__main__":
    print(schema_text(), end="")
