"""`tune-model`: one job for all workloads of a model. The model is read here; its file does not travel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.finding import client
from shapewright.cli.jobs import hand_in, timeout
from shapewright.cli.output import as_json, say
from tuner.errors import InvalidInput, shown
from tuner.program.job.cache import CACHES, Cache

if TYPE_CHECKING:
    from shapewright.models.model import Named
    from shapewright.models.tasks import ModelTasks

RANGE_FORM = "as in seq=1..128, seq=8..512:8, seq=1|2|4 or seq@INPUT:AXIS=1..128"
WEIGHTS_FORM = "as in seq=1:0.2,64:0.8"
_NAMED = re.compile(r"\s*(?P<name>\w+)\s*(?:@(?P<input>.+):(?P<axis>-?\d+)\s*)?", re.ASCII)


@click.command("tune-model")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--shape-var", "shape_vars", multiple=True, metavar="NAME=RANGE",
    help="Sizes of a dynamic dim: seq=1..128, or seq@INPUT:AXIS=1..128 for one by its place. May be repeated.",
)  # fmt: skip
@click.option(
    "--weights", multiple=True, metavar="NAME=SIZE:WEIGHT,...", help="How often sizes occur: seq=1:0.2,64:0.8."
)
@click.option(
    "--seconds", type=options.Budgeted(), metavar="S|auto", help="The job's budget of wall time; auto: as recommended."
)
@click.option("--trials", type=click.IntRange(0), metavar="N", help="The job's budget of trials.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each library.")
@click.option(
    "--cache", type=click.Choice(CACHES), default=Cache.STREAMED.value, show_default=True,
    help="How timed calls find their operands. streamed: weights in memory, since other layers run between.",
)  # fmt: skip
@click.option("--target", default="native", show_default=True, help="native, or as in {kind: llvm, mcpu: skylake}.")
@click.option("--device", default="local", show_default=True, help="A key of the tracker.")
@click.option("--policy", help="What chooses the trials [default: evolutionary].")
@click.option("--wait", is_flag=True, help="Wait until the job has ended, and show its progress.")
@timeout
@options.service
@as_json
def tune_model(
    *,
    model: Path,
    shape_vars: Sequence[str],
    weights: Sequence[str],
    seconds: float | str | None,
    trials: int | None,
    threads: int,
    cache: str,
    target: str,
    device: str,
    policy: str | None,
    wait: bool,
    timeout: float | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> int:
    """Submit one job for all workloads of a model.

    MODEL is an .onnx file, or a .pt2 file of torch.export. It stays here: the job has the programs and how often each
    occurs. What cannot be tuned is told with the reason, and stays with the framework. So is what the budget buys,
    before the job is submitted.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout only makes sense together with --wait")
    if seconds is None and trials is None:
        raise click.UsageError("give --seconds, --trials, or both")
    from shapewright import extract  # noqa: PLC0415  (keeps --help fast)

    on = _target(target)
    tasks = extract(
        model, shape_vars=[_named(text) for text in shape_vars], weights=_weights(weights), target=on, threads=threads,
        cache=cache,
    )  # fmt: skip
    budget = _budget(tasks, seconds, trials)
    fields = {"target": on, "threads": threads, "device": device, **({"policy": policy} if policy else {})}
    document = tasks.job(budget, **fields)
    plan = tasks.plan(**budget)
    say(f"{_told(tasks)}\nbudget: {plan}")
    left = [{"node": one.node, "op": one.op, "reason": one.reason} for one in tasks.left]
    with client(url, key) as service:
        return hand_in(service, document, wait, timeout, json_output, more={"left": left, "plan": plan.to_json()})


def _budget(tasks: ModelTasks, seconds: float | str | None, trials: int | None) -> dict[str, Any]:
    """The budget as a job file has it."""
    if seconds == options.AUTO:
        seconds = tasks.plan(seconds=1).recommended.seconds
    return {name: value for name, value in (("trials", trials), ("seconds", seconds)) if value is not None}


def _told(tasks: ModelTasks) -> str:
    """What was found, for people."""
    return repr(tasks).removeprefix("<").removesuffix(">")


def _target(text: str) -> Any:
    from tuner.program.job.documents import read_yaml  # noqa: PLC0415

    return text if text == "native" else read_yaml(text, "target")


def _named(text: str) -> Named:
    """``seq=1..128``, or ``seq@ids:1=1..128``. Raises InvalidInput on field ``shape-var``."""
    from shapewright.models.model import Named  # noqa: PLC0415
    from tuner.program.job.range_text import parse_ranges  # noqa: PLC0415
    from tuner.program.language.shape_vars import ShapeVar  # noqa: PLC0415

    left, _, sizes = text.rpartition("=")
    match = _NAMED.fullmatch(left)
    if match is None:
        raise InvalidInput("shape-var", f"{shown(text)} does not give one dim its sizes", RANGE_FORM)
    name = match["name"]
    try:
        span = parse_ranges(f"{name}={sizes}")[name]
    except (InvalidInput, KeyError):
        raise InvalidInput("shape-var", f"{shown(sizes)} is no range of sizes", RANGE_FORM) from None
    values = range(span[0], span[1] + 1) if isinstance(span, tuple) else span
    place = None if match["input"] is None else (match["input"].strip(), int(match["axis"]))
    return Named(ShapeVar(name, values), place)


def _weights(texts: Sequence[str]) -> dict[str, dict[int, float]] | None:
    """``seq=1:0.2,64:0.8`` by variable. Raises InvalidInput on field ``weights``."""
    result: dict[str, dict[int, float]] = {}
    for text in texts:
        name, _, listed = (part.strip() for part in text.partition("="))
        try:
            pairs = [part.split(":") for part in listed.split(",")]
            weights = {int(size): float(weight) for size, weight in pairs}
        except ValueError:
            weights = {}
        if not name.isidentifier() or not weights or name in result:
            raise InvalidInput("weights", f"{shown(text)} does not weigh the sizes of one variable", WEIGHTS_FORM)
        result[name] = weights
    return result or None


COMMANDS = (tune_model,)
