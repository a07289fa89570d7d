"""`shapewright pull`: libraries of a service, as directories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from shapewright.cli import options
from shapewright.cli.describe import standing
from shapewright.cli.describe_libraries import described_library
from shapewright.cli.finding import ALIASES, DIGESTS, JOBS, WORKLOADS_AND_JOBS, client, job_named
from shapewright.cli.libraries import cache, resolve, target, threads
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, quiet_stdout, say
from shapewright.errors import ServiceError, ServiceNotFound
from tuner.errors import InvalidInput
from tuner.library.package import read_manifest
from tuner.search.summary import JobSummary, SearchSummary

if TYPE_CHECKING:
    from shapewright.client import Client
    from shapewright.lock import Locked

Pulled = tuple[dict[str, Any], Sequence[Path], str]
"""What a command prints as JSON, the folders of the libraries, and what it prints as text."""
JOB_ID = "job-"
"""The prefix of job ids, which keys of workloads do not have."""
LATEST = "latest"
UNENDED = ("WAITING", "RUNNING", "CANCELLING")
FLAGS = {"ranges": "--range", "workload": "WORKLOAD"}
"""How parameters are called on the command line, where that is not ``--`` and their name."""


@click.command()
@click.argument("workload", metavar="WORKLOAD", required=False, shell_complete=WORKLOADS_AND_JOBS)
@options.output
@target
@threads
@cache
@click.option("--range", "ranges", metavar="T=1..512", help="What it must cover [default: the job file's; the widest].")
@click.option("--job", metavar="ID", shell_complete=JOBS, help="The library that this job built.")
@click.option(
    "--digest", metavar="SHA256", shell_complete=DIGESTS, help="The library with this digest, or one that begins so."
)
@click.option("--alias", metavar="NAME", shell_complete=ALIASES, help="The library of this name, as in production.")
@click.option("--lock", type=options.OutputFile(), metavar="FILE", help="Add what was pulled to a lock file.")
@click.option(
    "--locked",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Pull exactly what this lock file names, into the folders that it names below DIR.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR_OR_FILE",
    help="From a snapshot or a directory of libraries, in place of the service.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("directory", "c")),
    default="directory",
    show_default=True,
    help="c: a shared library, a header, files for CMake and pkg-config, an example.",
)
@click.option("--name", metavar="NAME", help="With --format c: of the functions, shapewright_NAME [default: DIR's].")
@options.service
@as_json
def pull(
    *,
    workload: str | None,
    directory: Path,
    lock: Path | None,
    locked: Path | None,
    source: Path | None,
    output_format: str,
    name: str | None,
    url: str | None,
    key: str | None,
    json_output: bool,
    **chosen: Any,
) -> None:
    """Download the best library of a workload for a range.

    WORKLOAD is a key or a job file, which brings its own target, threads, caches, range and instances; or the id of a
    job, of which every library is written to a folder of its own. With --locked there is no WORKLOAD: every library of
    the lock file is written, and any that differs from what was locked is refused. With --from it is the best library
    there, of this machine's target unless another is named. --format c needs a C compiler; what it writes needs neither
    Python nor TVM.
    """
    line = {**chosen, "workload": workload, "locked": locked, "source": source, "url": url, "key": key}
    if output_format == "c":
        _refuse({"lock": lock}, "locks the files of directories")
        with TemporaryDirectory(prefix="shapewright-") as folder:
            _, folders, _ = _pulled(Path(folder), lock=None, **line)
            return _emit_c(Path(folder), folders, directory, name, json_output)
    _refuse({"name": name}, "goes with --format c")
    document, _, text = _pulled(directory, lock=lock, **line)
    return emit(document, json_output, text)


def _pulled(
    directory: Path,
    *,
    workload: str | None,
    lock: Path | None,
    locked: Path | None,
    source: Path | None,
    url: str | None,
    key: str | None,
    **chosen: Any,
) -> Pulled:
    """Write the requested libraries below ``directory``."""
    if locked is not None:
        _refuse({**chosen, "workload": workload, "lock": lock}, "the lock file says which libraries")
        return _pull_locked(locked, directory, source, url, key)
    if workload is None:
        raise click.UsageError("give a WORKLOAD, or --locked")
    with options.writing(directory, "--output"):
        if source is not None:
            document, folders, text = _pull_from(source, workload, directory, chosen)
        else:
            with client(url, key) as service:
                document, folders, text = _pull_served(service, workload, directory, chosen)
    if lock is not None:
        from shapewright.lock import write_lock  # noqa: PLC0415  (keeps --help fast)

        with options.writing(lock.parent, "--lock"):
            write_lock(lock, folders)
        document, text = {**document, "lock": str(lock)}, f"{text}\nlocked in {lock}"
    return document, folders, text


def _pull_served(service: Client, workload: str, directory: Path, chosen: Mapping[str, Any]) -> Pulled:
    if (workload.startswith(JOB_ID) or workload == LATEST) and not Path(workload).exists():
        _refuse(chosen, "a job's libraries are written all together")
        return _pull_job(service, workload, directory)
    name, fingerprint = resolve(workload, chosen["target"])
    try:
        asked = {**chosen, "target": fingerprint, "job": job_named(service, chosen["job"])}
        served = service.served(name, **asked)
    except ServiceNotFound as error:
        searching = _searching(service, name)
        if not searching:
            raise
        told = "; ".join(f"{text}: shapewright watch {job_id}" for job_id, text in searching.items())
        raise CommandFailed(ExitCode.NOT_FOUND, f"{error}; {told}", running=list(searching)) from error
    manifest = service.download_library(name, directory, digest=served["digest"], target=served["target_fingerprint"])
    searching = _searching(service, name)
    for text in searching.values():
        say(f"{text}: a later `pull` may give a better library")
    document = {"directory": str(directory), **manifest, "served": served, "running": list(searching)}
    return document, [directory], described_library(directory, served)


def _searching(service: Client, workload: Any) -> dict[str, str]:
    """How far the jobs are that search a workload and have not ended; a service of an earlier release knows none."""
    try:
        found = service.jobs_of(workload)
    except ServiceError:
        return {}
    return {
        each["id"]: standing(each, [SearchSummary.from_json(each["progress"])] if each["progress"] else [])
        for each in found
        if each["state"] in UNENDED
    }


def _pull_from(source: Path, workload: str, directory: Path, chosen: Mapping[str, Any]) -> Pulled:
    """Write the best library of a snapshot or a directory."""
    _refuse({name: chosen[name] for name in ("job", "alias")}, "only a service knows jobs and names")
    from shapewright.snapshot import Missing, offers_of, write_snapshot  # noqa: PLC0415  (keeps --help fast)

    name, fingerprint = resolve(workload, chosen["target"])
    offers = [offer for offer in offers_of(source) if offer.entry.digest.startswith(chosen["digest"] or "")]
    with TemporaryDirectory(prefix="shapewright-") as folder:
        snapshot = write_snapshot(Path(folder, "of.snapshot"), offers)
        entry = snapshot.entry_for(name, fingerprint, chosen["threads"], chosen["ranges"], chosen["cache"])
        if isinstance(entry, Missing):
            digest = f" with a digest that begins with {chosen['digest']}" if chosen["digest"] else ""
            reason = entry.reason.replace(str(snapshot.file), str(source))
            raise CommandFailed(ExitCode.NOT_FOUND, f"{reason}{digest}")
        snapshot.extract(entry, directory)
    document = {"directory": str(directory), **read_manifest(directory), "from": str(source)}
    return document, [directory], f"{directory}: {entry}, from {source}"


def _pull_job(service: Client, name: str, directory: Path) -> Pulled:
    job_id = job_named(service, name) or name
    libraries = service.download_job(job_id, directory)
    job = service.job(job_id)
    missing = len(job["tasks"]) - len(libraries)
    if not libraries:
        raise CommandFailed(ExitCode.NOT_FOUND, f"{_standing_of(job)}; it has built no library")
    if missing:
        say(f"{missing} of {len(job['tasks'])} search tasks have no library; {_standing_of(job)}")
    text = "\n".join(f"{each['directory']}: library {each['digest']}" for each in libraries)
    folders = [Path(each["directory"]) for each in libraries]
    return {"job_id": job_id, "libraries": libraries}, folders, text


def _standing_of(job: Mapping[str, Any]) -> str:
    return standing(job, list(JobSummary.from_json(job["summary"]).tasks.values()))


def _pull_locked(locked: Path, directory: Path, source: Path | None, url: str | None, key: str | None) -> Pulled:
    from shapewright.lock import read_lock, restore  # noqa: PLC0415  (keeps --help fast)

    wanted = read_lock(locked)
    if source is not None:
        with options.writing(directory, "--output"):
            folders = restore(wanted, _kept_in(source), directory)
    else:
        with client(url, key) as service, options.writing(directory, "--output"):
            folders = restore(wanted, lambda each: service.library_files(each.workload_key, each.digest), directory)
    libraries = [
        {"directory": str(folder), "workload_key": each.workload_key, "digest": each.digest}
        for each, folder in zip(wanted, folders, strict=True)
    ]
    text = "\n".join(f"{each['directory']}: library {each['digest']}" for each in libraries)
    return {"locked": str(locked), "libraries": libraries}, folders, text


def _emit_c(pulled: Path, folders: Sequence[Path], directory: Path, name: str | None, json_output: bool) -> None:
    """Make the C form of each library that was pulled, in a folder of the same name below ``directory``."""
    from shapewright.c_library.project import write_project  # noqa: PLC0415  (keeps --help fast)
    from tuner.library.package import read_files  # noqa: PLC0415

    if name is not None and len(folders) > 1:
        raise InvalidInput("--name", f"{len(folders)} libraries were asked for", "leave it out, or pull one by one")
    made = []
    with quiet_stdout(), options.writing(directory, "--output"):
        for folder in folders:
            target = directory / folder.relative_to(pulled)
            called = name or re.sub(r"\W", "_", target.resolve().name, flags=re.ASCII)
            library = write_project(read_files(folder), target, called)
            made.append({"directory": str(target), "name": called, "library": str(library)})
    text = "\n".join(f"{each['library']}: shapewright_{each['name']}" for each in made)
    emit({"libraries": made}, json_output, text)


def _kept_in(source: Path) -> Any:
    """Finds locked libraries in a snapshot, or in directories, by digest."""
    from shapewright.snapshot import offers_of  # noqa: PLC0415  (keeps --help fast)

    offers = {offer.entry.digest: offer for offer in offers_of(source)}

    def fetch(locked: Locked) -> Mapping[str, bytes]:
        if locked.digest not in offers:
            problem = f"{source} does not hold library {locked.digest[:12]} of {locked.workload_key}"
            raise CommandFailed(ExitCode.NOT_FOUND, f"{problem}, which {locked.directory} is locked to")
        return offers[locked.digest].read()

    return fetch


def _refuse(given: Mapping[str, Any], problem: str) -> None:
    """Raise InvalidInput if any of these was given."""
    for name, value in given.items():
        if value is not None:
            flag = FLAGS.get(name, f"--{name}")
            raise InvalidInput(flag, problem, f"leave {flag} out, or give a workload's key or a job file")


COMMANDS = (pull,)
