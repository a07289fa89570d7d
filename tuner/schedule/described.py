"""Operators and search tasks as data, for people: what there is, which rule takes a workload and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tuner.program.catalogue import Op
from tuner.program.job.build import make_workload
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import FLOATS
from tuner.program.language.expr import text_of
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.cut.rule import Cut
from tuner.schedule.registry import explain, rules_for, rules_of, space_of
from tuner.schedule.rule import NoMatch, Rule
from tuner.schedule.serial import Serial

SMALL = 64
"""An extent at which every operator can be made."""


def op_described(op: Op, target: Target) -> dict[str, Any]:
    """An operator of the catalogue, and the rule that takes it on ``target``."""
    workload = make_workload(op, dict.fromkeys(op.args, SMALL) | {name: 3 for name in "rs" if name in op.args})
    inputs = " ".join(_read_text(workload, name) for name in workload.program.inputs)
    outputs = " ".join(f"{name}[{','.join(workload.program.stage[name].axes)}]" for name in workload.program.outputs)
    return {
        "name": op.name,
        "args": list(op.args),
        "settings": {name: setting.default for name, setting in op.settings.items()},
        "layouts": [f"{inputs} -> {outputs}"],
        "dtypes": sorted(FLOATS),
        "rule": rules_for(workload, target)[0].name,
        "program": str(workload.program),
        "constant": list(workload.constants),
        "doc": op.doc,
    }


def explained(task: SearchTask) -> dict[str, Any]:
    """How a task would be searched: the rules that take it, those that do not and why, the axes of its space.

    Its target is known. Raises InvalidInput where no rule takes it.
    """
    rules, space = rules_of(task), space_of(task)
    answers = explain(task.workload, task.known_target)
    answers |= {rule.name: rule.match(task.workload, task.known_target) for rule in rules}
    return {
        "workload": str(task.workload),
        "workload_key": task.workload.key,
        "program": str(task.workload.program),
        "symbols": {name: str(dim) for name, dim in task.workload.symbol_exprs.items()},
        "operands": [
            {"name": each.name, "dtype": each.dtype, "shape": list(map(str, each.dims)), "constant": each.constant}
            for each in task.workload.operands
        ],
        "target": task.known_target.fingerprint,
        "cache": task.cache.value,
        "rule": rules[0].name,
        "rule_version": rules[0].version,
        # A rule's module says in its first line which pattern it knows.
        "why": _pattern(rules[0], task.workload),
        "rules": [
            {
                "name": rule.name,
                "version": rule.version,
                "why": _pattern(rule, task.workload),
                "roles": _roles(answers[rule.name]),
            }
            for rule in rules
        ],
        "passed_over": {name: answer.reason for name, answer in answers.items() if isinstance(answer, NoMatch)},
        "axes": [
            {"name": axis.name, "shown": axis.shown, "doc": axis.doc, "choices": list(axis.choices), "rule": each.rule}
            for each in space.spaces
            for axis in each.axes
        ],
        "size": space.size,
    }


def _read_text(workload: Workload, tensor: str) -> str:
    """``x[m,k]``: how a program reads a tensor first."""
    read = next(read for read in workload.program.reads if read.tensor == tensor)
    return text_of(read).replace(", ", ",")


def _pattern(rule: Rule, workload: Workload) -> str:
    if isinstance(rule, Serial):
        return f"{_pattern(rule.rule, workload)}; on one thread"
    if isinstance(rule, Cut):
        return rule.described(workload)
    return (sys.modules[type(rule).__module__].__doc__ or rule.name).splitlines()[0].replace("`", "")


def _roles(answer: Mapping[str, str] | NoMatch) -> dict[str, str]:
    return dict(answer) if isinstance(answer, Mapping) else {}
