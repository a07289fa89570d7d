"""`shapewright init`: a job file with comments, to begin with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapewright.cli.finding import OPERATORS
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.program.catalogue import Op

DEFAULT_OP = "dense"
VARIABLE, SIZE, MOST = "T", 64, 128
"""The variable of what varies, the size of every other axis of a program, and the largest size of a variable."""
TEMPLATE = """\
# A job of Shapewright: what is tuned, for which sizes, and how long that may take.
# Say what would be searched with `shapewright explain {file}`, start it with `shapewright submit {file} --wait`.
name: {name}
{workload}
# The sizes that vary. They may stand in the expressions above: 16*T, T+128, T//2.
shape_vars:
{shape_vars}

# The shapes that matter, and how much; spread over the ranges if left out.
# instances:
#   - {{{instance}, weight: 1.0}}

target: native          # the CPU of the device; or as in {{kind: llvm, mcpu: sapphirerapids, num-cores: 2}}
threads: 1              # of a kernel
# cache: warm           # what timed calls find in the caches; cold: nothing; streamed: no weights, as in a model
# device: local         # the key that the device registered with
# policy: evolutionary  # what chooses the trials: {policies}

# The search ends with whichever comes first. A trial is one kernel, measured at one shape.
budget:
  trials: 256
  seconds: 180
max_kernels: 8          # of the library, which chooses one at each call
seed: 0
"""


@click.command()
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path, dir_okay=False), default="job.yaml")
@click.option("--op", metavar="NAME", shell_complete=OPERATORS, help="An operator of the catalogue [default: dense].")
@click.option("--program", metavar="TEXT", help='A program of your own, as in "out[m, n] = sum(k) x[m, k] * w[n, k]".')
@as_json
def init(*, file: Path, op: str | None, program: str | None, json_output: bool) -> None:
    """Write a commented job file to begin with.

    It is job.yaml unless FILE names another, and its sizes are examples: put in those of your model. A file that exists
    is left as it is.
    """
    from tuner.program.job.documents import read_yaml  # noqa: PLC0415  (keeps --help fast)
    from tuner.program.job.jobspec import parse_job  # noqa: PLC0415

    if op is not None and program is not None:
        raise click.UsageError("give either --op or --program")
    text = _of_program(file, program) if program is not None else _of_op(file, op or DEFAULT_OP)
    try:
        spec = parse_job(read_yaml(text.encode()))
    except InvalidInput as error:
        raise InvalidInput("--program" if program is not None else error.field, error.problem, error.remedy) from None
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        message = f"{file} exists, and is left as it is; name another FILE"
        raise CommandFailed(ExitCode.REFUSED, message, field="FILE") from None
    keys = [task.workload.key for task in spec.tasks]
    told = f"{file}: {spec.tasks[0].workload}\nnext: shapewright explain {file}; shapewright submit {file} --wait"
    emit({"file": str(file), "workload_keys": keys}, json_output, told)


def _of_op(file: Path, name: str) -> str:
    from tuner.program.catalogue import EPILOGUES, op_named  # noqa: PLC0415  (keeps --help fast)
    from tuner.program.job.build import make_workload  # noqa: PLC0415

    op = op_named(name)
    args = "\n".join(f"    {line}" for line in _args(op))
    workload = f"""
# {op.doc}
workload:
  op: {op.name}
  args:
{args}
  dtype: float32        # of every tensor; or as in {{x: bfloat16}}
  # epilogue: [bias, gelu]   # computed with it: {", ".join(EPILOGUES)}
"""
    return _filled(file, f"my {op.name}", workload, make_workload(op, op.example).variables)


def _args(op: Op) -> list[str]:
    """The args of the operator with the sizes of its example, and its settings with their defaults as comments."""
    given = [f"{name}: {op.example[name]}" for name in op.args]
    settings = [
        f"{name}: {_yaml(op.example[name])}  # {setting.doc}"
        if name in op.example
        else f"# {name}: {_yaml(setting.default)}  # {setting.doc}"
        for name, setting in op.settings.items()
    ]
    return given + settings


def _of_program(file: Path, text: str) -> str:
    from tuner.program.language.program import Program  # noqa: PLC0415  (keeps --help fast)

    program = Program.parse(text)
    names = list(dict.fromkeys((*program.axes, *program.sizes)))
    extents = {name: VARIABLE if name == names[0] else SIZE for name in names}
    listed = "\n".join(f"    {name}: {size}" for name, size in extents.items())
    stages = "\n".join(f"    {stage}" for stage in program.stages)
    workload = f"""
workload:
  program: |
{stages}
  extents:              # of each axis; at least one varies
{listed}
  # constant: [{program.inputs[-1]}]   # inputs that do not change between calls: packed once, by library.pack
  dtype: float32        # of every tensor; or as in {{{program.inputs[0]}: bfloat16}}
"""
    return _filled(file, "my program", workload, {VARIABLE})


def _filled(file: Path, name: str, workload: str, variables: Collection[str]) -> str:
    from tuner.program.job.policies import POLICIES  # noqa: PLC0415  (keeps --help fast)

    ranges = "\n".join(f"  {each}: {{min: 1, max: {MOST}}}" for each in sorted(variables))
    instance = ", ".join(f"{each}: {MOST}" for each in sorted(variables))
    shown = shlex.quote(str(file)).replace("\n", " ")
    return TEMPLATE.format(
        file=shown, name=name, workload=workload, shape_vars=ranges, instance=instance, policies=", ".join(POLICIES)
    )


def _yaml(value: object) -> str:
    """``0.00001`` rather than 1e-05, which YAML takes for a text."""
    return f"{value:f}".rstrip("0") if isinstance(value, float) else json.dumps(value).strip('"')


COMMANDS = (init,)
