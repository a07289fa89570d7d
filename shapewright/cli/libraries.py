"""Commands about the results of searches: `best`, `promote`, `history`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.describe_libraries import described_history
from shapewright.cli.finding import ALIASES, DIGESTS, JOBS, WORKLOADS, client, job_named
from shapewright.cli.output import as_json, emit
from tuner.durations import format_duration
from tuner.errors import InvalidInput
from tuner.program.job.cache import CACHES, Cache
from tuner.program.language.shape_vars import format_shape

if TYPE_CHECKING:
    from tuner.program.job.task import SearchTask

workload = click.argument("workload", metavar="WORKLOAD", shell_complete=WORKLOADS)
target = click.option("--target", help="A target's fingerprint [default: the job file's, or the newest known].")
threads = click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", help="Of a kernel [default: the job file's; else 1]."
)


cache = click.option(
    "--cache",
    type=click.Choice(CACHES),
    help="How its calls find their operands [default: the job file's; else warm, or the only one there is].",
)


@click.command()
@workload
@click.option("--shape", required=True, help="Each shape variable (T=37,S=4) or, of a key, each symbol (m=592).")
@target
@click.option("--threads", type=click.IntRange(1, 1024), help="How many it runs on [default: the job file's, or 1].")
@click.option(
    "--cache", type=click.Choice(CACHES), help="How its calls find their operands [default: the job file's, or warm]."
)
@click.option("--job", metavar="ID", shell_complete=JOBS, help="Only what this job measured and built.")
@options.service
@as_json
def best(
    *,
    workload: str,
    shape: str,
    target: str | None,
    threads: int | None,
    cache: str | None,
    job: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Print the best recorded micro-kernel for one shape.

    WORKLOAD is a key or a job file. The library's dispatcher may serve another kernel there: it is printed too.
    """
    name, target = resolve(workload, target)
    with client(url, key) as service:
        answer = service.best(name, shape, target, threads, job_named(service, job), cache=cache)
    emit(answer, json_output, _best_text(answer))


def _best_text(answer: dict[str, Any]) -> str:
    kernel, served = answer["kernel"], answer.get("served_by")
    text = f"{answer['match']}  {_name(kernel)}  {_times(answer['latency_s'], answer['predicted_latency_s'])}"
    if answer.get("match") == "nearest" and answer.get("measured_shape"):
        text += f"  nearest measured at {format_shape(answer['measured_shape'])}"
    text += Cache(answer["cache"]).note.replace(", ", "  ")
    if answer.get("job_id"):
        text += f"  by {answer['job_id']}"
    if served and served.get("id") != kernel.get("id"):
        its = _times(answer.get("served_latency_s"), answer.get("served_predicted_latency_s"))
        text += f"\nserved  {_name(served)}  {its}  by library {str(answer.get('digest'))[:12]}"
    return text


def _times(measured_s: float | None, predicted_s: float | None) -> str:
    """Of one kernel: ``measured 23.6 µs``, ``not measured  predicted 113 µs``."""
    measured = "not measured" if measured_s is None else f"measured {format_duration(measured_s)}"
    return measured if predicted_s is None else f"{measured}  predicted {format_duration(predicted_s)}"


@click.command()
@workload
@click.option("--alias", required=True, metavar="NAME", shell_complete=ALIASES, help="As in production.")
@click.option(
    "--digest",
    metavar="SHA256",
    shell_complete=DIGESTS,
    help="The library that gets the name; its first digits are enough [default: the one that is served now].",
)
@click.option("--roll-back", is_flag=True, help="Give the name back to the library that had it before.")
@click.option("--at-least", type=click.FloatRange(0, 10_000), metavar="PERCENT", help="See below.")
@click.option("--reason", default="", metavar="TEXT", help="Kept in the history.")
@target
@threads
@cache
@options.service
@as_json
def promote(
    *,
    workload: str,
    alias: str,
    digest: str | None,
    roll_back: bool,
    at_least: float | None,
    reason: str,
    target: str | None,
    threads: int | None,
    cache: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Give a name to a library, for `pull --alias`.

    WORKLOAD is a key or a job file. Without --digest it is the library that `pull` would give now, for the target, the
    threads and the caches. With --at-least a later library that is verified and so much faster takes the name
    by itself; that ends with --roll-back.
    """
    if roll_back and digest is not None:
        raise click.UsageError("give either --digest or --roll-back")
    if roll_back and at_least is not None:
        raise click.UsageError("--at-least goes with --digest: a roll-back ends the rule")
    name, target = resolve(workload, target)
    with client(url, key) as service:
        if roll_back:
            given = service.roll_back(name, alias, target, threads, cache=cache, reason=reason)
        else:
            given = service.promote(
                name, digest, alias, target=target, threads=threads, cache=cache, reason=reason,
                at_least_percent=at_least,
            )  # fmt: skip
    library = given["library"]
    emit(given, json_output, f"{alias} is library {library['digest']} of job {library['job_id']}")


@click.command()
@workload
@target
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N")
@options.service
@as_json
def history(
    *, workload: str, target: str | None, limit: int, url: str | None, key: str | None, json_output: bool
) -> None:
    """List the libraries of a workload and the names they had.

    Newest first. STATE says of each library what became of it: it is served for its range, it is kept beside the one
    that is (never timed with that one, or for other ranges), another took its place, or it was withdrawn.

    WORKLOAD is a key or a job file.
    """
    name, target = resolve(workload, target)
    with client(url, key) as service:
        libraries = service.libraries(name, target, limit)
        promotions = service.promotions(name, target=target, limit=limit)
        served: dict[tuple[object, ...], object] = {}
        for each in libraries:
            # What is served for the range of each, asked once for each range.
            place = each["target_fingerprint"], each["threads"], each["made_for"], each["cache"]
            is_candidate = not each["superseded_by"] and not each["wrong_kernel"]
            if is_candidate and place not in served:
                found = service.served(
                    each["workload_key"], target=place[0], threads=place[1], ranges=place[2] or None, cache=place[3]
                )
                served[place] = found["digest"]
            each["served"] = is_candidate and served[place] == each["digest"]
    document = {"libraries": libraries, "promotions": promotions}
    emit(document, json_output, described_history(libraries, promotions))


def resolve(workload: str, target: str | None) -> tuple[str | SearchTask, str | None]:
    """A workload's key, or the search task of a job file, and the target's fingerprint. Raises InvalidInput."""
    path = Path(workload)
    if not path.exists():
        if "/" in workload or path.suffix in (".yaml", ".yml", ".json"):
            raise InvalidInput("workload", f"there is no file {workload}", "a workload's key, or a job file")
        return workload, target
    spec, _ = options.read_job(path)
    task = _only(spec.tasks)
    return task, target or (task.target.fingerprint if task.target else None)


def _only(tasks: tuple[SearchTask, ...]) -> SearchTask:
    keys = sorted({task.workload.key for task in tasks})
    if len(keys) > 1:
        raise InvalidInput("workload", f"the job file has {len(keys)} workloads", f"name one: {', '.join(keys)}")
    return tasks[0]


def _name(kernel: dict[str, Any]) -> str:
    return str(kernel.get("name", kernel.get("id", "")))


COMMANDS = (best, promote, history)
