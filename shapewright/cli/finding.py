"""The service that a command asks, and the job that its arguments name; what a shell offers to complete them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from shapewright import defaults
from shapewright.cli.output import CommandFailed, ExitCode
from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from shapewright.client import Client

COMPLETION_S = 2.0
"""The time after which a shell gets no completions: nobody waits longer for a key."""
OFFERED = 50
SHORT = 12
"""Characters of a digest that are offered, and that name a library."""


def client(url: str | None, key: str | None) -> Client:
    """A client of the service at ``url``. Raises InvalidInput if that cannot be a URL."""
    from shapewright.client import Client  # noqa: PLC0415  (keeps --help fast)

    address = url or defaults.service_url()
    if not address.startswith(("http://", "https://")):
        raise InvalidInput("url", f"{address!r} is not a service's address", "as in http://127.0.0.1:8321")
    return Client(address, key)


@contextmanager
def service_and_job(url: str | None, key: str | None, name: str) -> Iterator[tuple[Client, str]]:
    """The service, and the id of the job that ``name`` means there: `latest`, an id, its beginning or its end."""
    with client(url, key) as service, not_found_hint():
        yield service, service.find_job(name)


def job_named(service: Client, name: str | None) -> str | None:
    """The id of the job that an option names; None where it was not given."""
    if name is None:
        return None
    with not_found_hint():
        return service.find_job(name)


@contextmanager
def not_found_hint() -> Iterator[None]:
    """Turn ServiceNotFound into a failure that names the command which lists jobs."""
    from shapewright.errors import ServiceNotFound  # noqa: PLC0415

    try:
        yield
    except ServiceNotFound as error:
        remedy = "`shapewright jobs` lists them"
        message = f"{error}; {remedy}"
        raise CommandFailed(ExitCode.NOT_FOUND, message, field="job_id", problem=str(error), remedy=remedy) from error


# -- completion --------------------------------------------------------------------------------------------------------
Offers = Callable[["Client", dict[str, Any]], list[CompletionItem]]


def _completing(offers: Offers, *, files: bool = False) -> Callable[..., list[CompletionItem]]:
    """What click calls for a value that is typed; ``files``: it may be the name of one, too."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # Behind an option whose value is still missing, arguments are not yet taken for what they are.
        given = {**context.params, "workload": context.params.get("workload") or next(iter(context.args), "")}
        found = [each for each in _asked(offers, given) if each.value.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type="file")] if files else found

    return complete


def _asked(offers: Offers, given: dict[str, Any]) -> list[CompletionItem]:
    """Nothing where no service answers in time: a completion may not print, nor fail."""
    found: list[CompletionItem] = []

    def ask() -> None:
        try:
            with client(given.get("url"), given.get("key")) as service:
                found.extend(offers(service, given))
        except Exception:  # a shell shows no errors
            found.clear()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(COMPLETION_S)
    return list(found)


def _jobs(service: Client, _: dict[str, Any]) -> list[CompletionItem]:
    jobs = service.jobs(limit=OFFERED)
    latest = [CompletionItem("latest", help=f"{jobs[0]['id']} {jobs[0]['name']}")] if jobs else []
    return latest + [CompletionItem(job["id"], help=f"{job['state']} {job['name']}") for job in jobs]


def _workloads(service: Client, _: dict[str, Any]) -> list[CompletionItem]:
    return [CompletionItem(each["key"], help=each["label"]) for each in service.workloads(OFFERED)]


def _workloads_and_jobs(service: Client, given: dict[str, Any]) -> list[CompletionItem]:
    return _workloads(service, given) + _jobs(service, given)


def _libraries(service: Client, given: dict[str, Any]) -> list[dict[str, Any]]:
    from shapewright.cli.libraries import resolve  # noqa: PLC0415  (it offers these)

    workload, target = resolve(given["workload"], given.get("target"))
    return service.libraries(workload, target, OFFERED)


def _digests(service: Client, given: dict[str, Any]) -> list[CompletionItem]:
    return [
        CompletionItem(each["digest"][:SHORT], help=f"{each['created_at']} {each['job_id'] or ''}")
        for each in _libraries(service, given)
    ]


def _aliases(service: Client, given: dict[str, Any]) -> list[CompletionItem]:
    libraries = _libraries(service, given)
    return [CompletionItem(name, help=each["digest"][:SHORT]) for each in libraries for name in each["aliases"]]


def OPERATORS(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: N802
    """The operators of the catalogue, for which no service is asked."""
    from tuner.program.catalogue import OPS  # noqa: PLC0415  (keeps --help fast)

    return [CompletionItem(name, help=op.doc) for name, op in OPS.items() if name.startswith(incomplete)]


JOBS = _completing(_jobs)
JOBS_OR_FILES = _completing(_jobs, files=True)
WORKLOADS = _completing(_workloads, files=True)
WORKLOADS_AND_JOBS = _completing(_workloads_and_jobs, files=True)
DIGESTS = _completing(_digests)
ALIASES = _completing(_aliases)

job_id = click.argument("job_id", metavar="ID", shell_complete=JOBS)
