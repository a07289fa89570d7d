"""Epilogues: stages that are appended to a program, one for each entry of a job file's ``epilogue``."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.errors import InvalidInput, did_you_mean, shown
from tuner.program.catalogue import EPILOGUES, Epilogue
from tuner.program.language.notation import MAX_NAME, Stage, parse_stages
from tuner.program.language.program import Program

MAX_EPILOGUES = 8
_APPEND = "append stages to the program"


def epilogue_names(epilogue: object) -> tuple[str, ...]:
    """Check a job file's ``epilogue``. Raises InvalidInput on that field."""
    known = f"any of: {', '.join(EPILOGUES)}"
    if epilogue is None:
        return ()
    if not isinstance(epilogue, list | tuple) or not all(isinstance(name, str) for name in epilogue):
        raise InvalidInput("epilogue", f"{shown(epilogue)} is not a list of names", known)
    if len(epilogue) > MAX_EPILOGUES:
        raise InvalidInput("epilogue", f"{len(epilogue)} entries", f"at most {MAX_EPILOGUES}")
    for name in epilogue:
        if name not in EPILOGUES:
            raise InvalidInput("epilogue", f"{shown(name)} is not known", did_you_mean(name, EPILOGUES) + known)
    return tuple(epilogue)


def with_epilogue(program: Program, names: Sequence[str], channel: str | None) -> Program:
    """The program with stages appended; the last one writes what the program's output was called.

    ``channel``: the axis of the output that ``bias`` runs over, the last one if None. Raises InvalidInput on field
    ``epilogue``.
    """
    if len(program.outputs) != 1:
        raise InvalidInput("epilogue", f"the program has {len(program.outputs)} outputs", _APPEND)
    (out,) = program.outputs
    if any(read.tensor == out for read in program.reads):
        raise InvalidInput("epilogue", f"the output {out} is read by another stage", _APPEND)
    axes = program.stage[out].axes
    _check_operands(program, names, out)
    results = [*_fresh(program, out, len(names)), out]
    stages = list(program.renamed({}, {out: results[0]}).stages)
    for name, before, after in zip(names, results, results[1:], strict=False):
        stages.append(_stage(EPILOGUES[name], before, after, axes, channel or (axes[-1] if axes else "")))
    try:
        return Program.of(stages)
    except InvalidInput as error:
        # Appended stages are well-formed; with them there may be too many.
        raise InvalidInput("epilogue", error.problem, error.remedy) from None


def _check_operands(program: Program, names: Sequence[str], out: str) -> None:
    operands = [operand for name in names if (operand := EPILOGUES[name].operand)]
    for operand in operands:
        if operand in program.tensors:
            raise InvalidInput("epilogue", f"the program has a tensor {operand} of its own", f"rename it, or {_APPEND}")
        if operands.count(operand) > 1:
            raise InvalidInput("epilogue", f"the operand {operand} stands twice", "each operand once")
    if operands and not program.stage[out].axes:
        raise InvalidInput("epilogue", f"the output {out} has no axes", _APPEND)


def _fresh(program: Program, out: str, count: int) -> list[str]:
    """Names for results before the last one: ``out_0``, ``out_1``, ..., none of which the program has."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"{out[: MAX_NAME - 4]}_{number}"
        names += [name] if name not in program.tensors else []
        number += 1
    return names


def _stage(epilogue: Epilogue, before: str, after: str, axes: Sequence[str], channel: str) -> Stage:
    every = ", ".join(axes)
    operand = f"{epilogue.operand}[{every if epilogue.whole else channel}]"
    text = epilogue.text.format(x=f"{before}[{every}]", operand=operand)
    (stage,) = parse_stages(f"{after}[{every}] = {text}")
    return stage
