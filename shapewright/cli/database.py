"""Commands that maintain the database itself: `db upgrade`, `backup`, `restore`, `stale`, `remeasure`, `prune`."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.ages import Age
from shapewright.cli.keys import actor
from shapewright.cli.output import as_json, emit, say, table
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.storage import Prunable, StaleKnowledge

HEADER = ("WORKLOAD", "TARGET", "THREADS", "REASON", "COUNT", "DETAIL")


@click.group()
def db() -> None:
    """Maintain the database."""


@db.command()
@options.database_url
@options.data_dir
@as_json
def upgrade(database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Bring the database to this version's schema, or create it."""
    from tuner.storage.sql import upgrade as upgrade_schema  # noqa: PLC0415  (keeps --help fast)

    revision = upgrade_schema(options.database(database_url, data_dir))
    emit({"revision": revision}, json_output, f"the database is at revision {revision}")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@options.database_url
@options.data_dir
@as_json
def backup(file: Path, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Copy the database to FILE while it is in use."""
    from tuner.storage.sql.backup import backup as copy  # noqa: PLC0415  (keeps --help fast)

    copied = copy(options.database(database_url, data_dir), file)
    text = f"{copied.path}: {copied.bytes} bytes, schema {copied.revision}"
    emit({"file": str(copied.path), "bytes": copied.bytes, "revision": copied.revision}, json_output, text)


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Even if the database holds something, which is lost.")
@options.database_url
@options.data_dir
@as_json
def restore(file: Path, replace: bool, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Make the database from a copy that `backup` wrote.

    Nothing may use it meanwhile. A copy from an earlier version needs `db upgrade` afterwards.
    """
    from tuner.storage.sql.backup import restore as make  # noqa: PLC0415  (keeps --help fast)

    url = options.database(database_url, data_dir)
    with _unused(url):
        revision = make(file, url, replace=replace)
    emit({"file": str(file), "revision": revision}, json_output, f"restored from {file}, schema {revision}")


@db.command()
@click.option("--all", "show_all", is_flag=True, help="Also what has been measured again by now.")
@options.database_url
@options.data_dir
@as_json
def stale(show_all: bool, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """List what is not comparable with what is measured today.

    After an upgrade: records of another protocol or of another version of a rule, and libraries of another toolchain.
    Also records that were imported. `db remeasure` measures them again.
    """
    with closing(options.open_database(database_url, data_dir)) as storage:
        result = [each for each in storage.stale_knowledge() if show_all or not each.remeasured]
    text = table(HEADER, map(_stale_row, result)) if result else "nothing is stale"
    emit([asdict(each) for each in result], json_output, text)


@db.command()
@click.option("--workload", "keys", multiple=True, metavar="KEY", help="Only this workload; may be repeated.")
@click.option("--trials", type=click.IntRange(min=0), help="Trials of each job [default: as in the last one].")
@options.database_url
@options.data_dir
@as_json
def remeasure(
    *, keys: tuple[str, ...], trials: int | None, database_url: str | None, data_dir: Path | None, json_output: bool
) -> None:
    """Submit a job for everything that `stale` lists.

    It is the last search of the workload on that target. A second call submits nothing twice. What no device of its
    target can measure is named and left.
    """
    from shapewright.cli.remeasuring import submit_again  # noqa: PLC0415  (keeps --help fast)

    with closing(options.open_database(database_url, data_dir)) as storage:
        done = submit_again(storage, keys, trials)
    rows = ((each["workload_key"], each["target_fingerprint"], each["job_id"] or "-", each["note"]) for each in done)
    text = table(("WORKLOAD", "TARGET", "JOB", "NOTE"), rows) if done else "nothing is stale"
    emit(done, json_output, text)


@db.command()
@click.option("--events-older-than", type=Age(), help="Progress and log of jobs that ended before, as in 30d.")
@click.option("--failed-trials-older-than", type=Age(), help="Trials that failed in passing, of such jobs.")
@click.option("--superseded-artifacts", is_flag=True, help="Libraries that another one has replaced.")
@click.option("--yes", is_flag=True, help="Delete it, rather than only say what would go.")
@options.database_url
@options.data_dir
@as_json
def prune(
    *,
    events_older_than: float | None,
    failed_trials_older_than: float | None,
    superseded_artifacts: bool,
    yes: bool,
    database_url: str | None,
    data_dir: Path | None,
    json_output: bool,
) -> None:
    """Delete what is no longer wanted.

    Without --yes it only says what that would be. Successful records are never deleted, nor failures that tell that a
    kernel is wrong.
    """
    from tuner.storage import Retention  # noqa: PLC0415  (keeps --help fast)

    retention = Retention(events_older_than, failed_trials_older_than, superseded_artifacts)
    if retention == Retention():
        what = "--events-older-than 30d, --failed-trials-older-than 30d, --superseded-artifacts"
        raise InvalidInput("prune", "nothing is named that may go", f"one or more of {what}")
    with closing(options.open_database(database_url, data_dir)) as storage:
        result = storage.prunable(retention)
        deleted = 0
        while yes and (some := storage.prune(retention)):
            deleted += some
        if deleted:
            storage.note(actor(), "database.prune", "database", {"deleted_rows": deleted, **asdict(retention)})
    told = {"dry_run": not yes, "prunable": [asdict(each) for each in result], "deleted_rows": deleted}
    end = f"{deleted} rows deleted" if yes else "nothing was deleted: give --yes to do it"
    emit(told, json_output, "\n".join([*map(_prunable_text, result), end]))


def _unused(url: str) -> AbstractContextManager[Any]:
    """Holds off an `up` that would use the database, and refuses if one does."""
    from shapewright.cli.exclusive import exclusive  # noqa: PLC0415  (only this command needs it)
    from tuner.storage.sql.engine import parse_url  # noqa: PLC0415

    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        say("make sure that no service and no worker uses the database meanwhile")
        return nullcontext()
    return exclusive(Path(str(parsed.database)).absolute().parent)


def _stale_row(result: StaleKnowledge) -> tuple[object, ...]:
    key, target = result.workload_key, result.target_fingerprint
    return (
        key,
        target,
        result.threads,
        result.reason,
        result.count,
        f"{result.detail}{result.cache.note} ({result.label})",
    )


def _prunable_text(result: Prunable) -> str:
    return f"{result.what}: {result.rows} rows, {result.bytes / 2**20:.1f} MiB"


COMMANDS = (db,)
