"""Operators, epilogues and the fields of a job, from the code that checks them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from click.testing import CliRunner

from docs.tools.markdown import code, sentence, table
from shapewright.cli.main import cli
from tuner.program.catalogue import EPILOGUES, OPS, Op
from tuner.program.job import build, jobspec, layers, webhook
from tuner.program.job.build import make_workload
from tuner.program.job.instances import MAX_INSTANCES
from tuner.program.job.jobspec import parse_job
from tuner.program.job.policies import DEFAULT_POLICY, POLICIES
from tuner.program.job.schema import JOB_FIELDS, OPERATOR_FIELDS, PROGRAM_FIELDS
from tuner.program.job.shape_fields import MAX_VARIABLES
from tuner.program.job.task import MAX_KERNELS, MAX_THREADS
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Tensor, Workload
from tuner.program.target import Target
from tuner.schedule import rules_for

SMALL = 16
"""An extent at which every operator can be made."""
TARGET = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
"""The CPU whose rules are named."""
JOB: dict[str, Any] = {"workload": {"op": "dense", "args": {"m": "T", "n": 8, "k": 8}}, "budget": {"trials": 1}}
JOB["shape_vars"] = {"T": {"min": 1, "max": 2}}

LINKS = {
    "policy": " ([policies](policies.md))",
    "webhook": " ([webhooks](answers.md#webhooks))",
    "op": " ([operators](operators.md))",
    "epilogue": " ([epilogues](operators.md#epilogues))",
}
"""Where more is said of a field."""
BOUNDS = {
    "shape variables": MAX_VARIABLES,
    "search tasks of a job": jobspec.MAX_TASKS,
    "instances": MAX_INSTANCES,
    "`threads`": MAX_THREADS,
    "`max_kernels`": MAX_KERNELS,
    "values of a shape variable that are listed one by one (a range may have more)": jobspec.MAX_LISTED,
    "trials": jobspec.MAX_TRIALS,
    "seconds": jobspec.MAX_SECONDS,
    "a `count`": jobspec.MAX_COUNT,
    "names in `layers`": layers.MAX_LAYERS,
    "characters of a name in `layers`": layers.MAX_LAYER_NAME,
    "characters of a webhook's URL": webhook.MAX_URL,
    "characters that all search tasks of a job take when they are stored": jobspec.MAX_STORED,
}


def operators() -> str:
    rows = [_summary(op) for _, op in sorted(OPS.items())]
    head = table(("operator", "args", "operands in order", "settings"), rows)
    return "\n\n".join([head, *(_details(op) for _, op in sorted(OPS.items()))])


def _made(op: Op) -> Workload:
    return make_workload(op, dict.fromkeys(op.args, SMALL) | {name: 3 for name in "rst" if name in op.args})


def _summary(op: Op) -> tuple[str, ...]:
    operands = ", ".join(_operand(tensor, op) for tensor in _made(op).operands)
    return f"[{code(op.name)}](#{op.name})", code(" ".join(op.args)), operands, ", ".join(map(code, op.settings))


def _operand(tensor: Tensor, op: Op) -> str:
    kind = f" of {tensor.dtype}" if tensor.dtype != "float32" else ""
    return code(tensor.name) + ("\\*" if tensor.constant else "") + kind


def _details(op: Op) -> str:
    workload = _made(op)
    rows = [(code(name), code(setting.default), setting.doc) for name, setting in op.settings.items()]
    settings = [table(("setting", "default", "is"), rows)] if rows else []
    program = f"```text\n{workload.program}\n```"
    told = _listed()[op.name]
    layout = f"Reads and writes {code(' '.join(told['layouts']))}; computes in {', '.join(map(code, told['dtypes']))}."
    rules = ", ".join(code(rule.name) for rule in rules_for(workload, TARGET))
    return "\n\n".join([f"### {op.name}", f"{sentence(op.doc)}.", program, layout, *settings, f"Rules: {rules}."])


@cache
def _listed() -> Mapping[str, Any]:
    """What `shapewright ops --json` lists, by name."""
    answer = CliRunner().invoke(cli, ["ops", "--json"])
    return {row["name"]: row for row in json.loads(answer.stdout)}


def epilogues() -> str:
    rows = [(code(each.name), each.doc, code(each.operand) if each.operand else "none") for each in EPILOGUES.values()]
    return table(("epilogue", "is", "operand"), rows)


def job_fields() -> str:
    """Fields of a job with their defaults, as a job that leaves them out has them."""
    assert set(JOB_FIELDS) == set(jobspec.FIELDS), "a field of a job has no description, or the other way round"
    spec = parse_job(JOB)
    (task,) = spec.tasks
    defaults = {
        "target": "native", "threads": task.threads, "device": spec.device, "policy": spec.policy, "seed": spec.seed,
        "max_kernels": task.max_kernels, "priority": spec.priority,
    }  # fmt: skip
    rows = [
        (code(name), code(defaults[name]) if name in defaults else "", _linked(JOB_FIELDS, name))
        for name in jobspec.FIELDS
    ]
    return table(("field", "default", "is"), rows)


def policies() -> str:
    """What each measures after theory's set, and when it ends."""
    rows = [
        (code(each.name) + (", the default" if each.name == DEFAULT_POLICY else ""), each.measures, each.ends)
        for each in POLICIES.values()
    ]
    return table(("policy", "measures", "ends"), rows)


def operator_fields() -> str:
    assert set(OPERATOR_FIELDS) == set(build.OP_FIELDS)
    return _fields(OPERATOR_FIELDS) + f"\n\nDtypes: {', '.join(map(code, DTYPES))}; the default is `float32`."


def program_fields() -> str:
    assert set(PROGRAM_FIELDS) == set(build.PROGRAM_FIELDS)
    return _fields(PROGRAM_FIELDS)


def _fields(fields: dict[str, str]) -> str:
    return table(("field", "is"), [(code(name), _linked(fields, name)) for name in fields])


def _linked(fields: dict[str, str], name: str) -> str:
    return fields[name] + LINKS.get(name, "")


def job_bounds() -> str:
    return table(("of", "at most"), [(what, f"{most:,}") for what, most in BOUNDS.items()])
