"""What is said of job files and operators before anything is submitted."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class CheckedTask(BaseModel):
    """A search task as it would be submitted. ``shapes`` counts those of its range, ``size`` the points of its space
    before the hardware's limits."""

    workload: str
    workload_key: str
    target: str
    threads: int
    cache: str
    rule: str
    axes: int
    size: int
    shapes: int
    instances: int
    count: int


class CheckedJob(BaseModel):
    """A job file that would be taken. ``tasks`` are the first of ``task_count``."""

    valid: bool
    name: str
    device: str
    policy: str
    budget: dict[str, float]
    tasks: list[CheckedTask]
    task_count: int


class OperandOut(BaseModel):
    """A tensor of a workload; dims are expressions over its symbols."""

    name: str
    dtype: str
    shape: list[str]
    constant: bool


class RuleOut(BaseModel):
    """A rule that takes a workload: why, and which role it gives each axis."""

    name: str
    version: int
    why: str
    roles: dict[str, str]


class AxisOut(BaseModel):
    """An axis of a space: ``shown`` is the name that people read, ``doc`` what a choice means."""

    name: str
    shown: str
    doc: str
    choices: list[int]
    rule: str


class ExplainedTask(BaseModel):
    """How a workload would be searched. ``rule`` comes first of ``rules``; ``passed_over`` says why others do not take
    it; ``size`` is of the points before the hardware's limits."""

    workload: str
    workload_key: str
    program: str
    symbols: dict[str, str]
    operands: list[OperandOut]
    target: str
    cache: str
    rule: str
    rule_version: int
    why: str
    rules: list[RuleOut]
    passed_over: dict[str, str]
    axes: list[AxisOut]
    size: int


class ExplainedJob(BaseModel):
    """A job file, explained. ``tasks`` are the first of ``task_count``."""

    name: str
    tasks: list[ExplainedTask]
    task_count: int


class OpOut(BaseModel):
    """An operator of the catalogue. ``layouts`` says how tensors are read and written, ``rule`` which rule takes it,
    ``settings`` are constants with their defaults."""

    name: str
    args: list[str]
    settings: dict[str, Any]
    layouts: list[str]
    dtypes: list[str]
    rule: str
    program: str
    constant: list[str]
    doc: str
