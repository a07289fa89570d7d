"""`shapewright snapshot`: libraries for many workloads and targets as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapewright.cli import options
from shapewright.cli.finding import client
from shapewright.cli.libraries import resolve
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit
from tuner.program.job.cache import CACHES

if TYPE_CHECKING:
    from shapewright.snapshot import Offer


@click.command()
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@click.option("-o", "--output", "file", required=True, type=options.OutputFile(), metavar="FILE", help="The snapshot.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR_OR_FILE",
    help="A directory of `pull` or `tune -o`, or a snapshot; may be given several times.",
)
@click.option(
    "--keep",
    type=click.Choice(("best", "newest", "all")),
    default="best",
    show_default=True,
    help="Of several libraries for the same workload, target, threads, caches and range.",
)
@click.option("--target", help="A target's fingerprint, of the service's libraries [default: all].")
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="The same for a number of threads.")
@click.option("--cache", type=click.Choice(CACHES), help="The same for a state of the caches.")
@options.service
@as_json
def snapshot(
    *,
    workloads: tuple[str, ...],
    file: Path,
    sources: tuple[Path, ...],
    keep: str,
    target: str | None,
    threads: int | None,
    cache: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
) -> None:
    """Write libraries for many workloads and targets to one FILE.

    Those that the service serves, of every WORKLOAD (a key or a job file) or of all; with --from those of directories
    and of other snapshots, and of the service only if a WORKLOAD is named. A build reads the file without a service:
    `sw.load(FILE, workload)`. The same libraries give the same bytes.
    """
    from shapewright.snapshot import offers_of, write_snapshot  # noqa: PLC0415  (keeps --help fast)
    from shapewright.snapshot.writing import chosen  # noqa: PLC0415

    named = [resolve(workload, None)[0] for workload in workloads]
    offers: list[Offer] = [offer for source in sources for offer in offers_of(source)]
    with options.writing(file.parent, "--output"):
        if not named and sources:
            written = write_snapshot(file, chosen(offers, keep))
        else:
            from shapewright.snapshot.service import served_offers  # noqa: PLC0415

            with client(url, key) as service:
                offers += served_offers(service, named, target, threads, cache)
                if not offers:
                    raise CommandFailed(ExitCode.NOT_FOUND, "the service serves no such library; nothing was written")
                written = write_snapshot(file, chosen(offers, keep))
    libraries = [{**entry.to_json(), "made_for": entry.place[3]} for entry in written.entries]
    document = {"file": str(file), "digest": written.digest, "bytes": file.stat().st_size, "libraries": libraries}
    emit(document, json_output, "\n".join([*map(str, written.entries), f"{file}: {len(written)} libraries"]))


COMMANDS = (snapshot,)
