"""Commands for the administrator of a service: `devices`, `keys`, `login-url`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapewright import defaults
from shapewright.cli import options
from shapewright.cli.finding import client
from shapewright.cli.keys import actor, new_key
from shapewright.cli.logins import LOGIN_TTL_S, login_link
from shapewright.cli.output import as_json, emit, table

if TYPE_CHECKING:
    from tuner.storage import ApiKey


@click.command()
@options.service
@as_json
def devices(url: str | None, key: str | None, json_output: bool) -> None:
    """List the devices that have registered with the service."""
    with client(url, key) as service:
        registered = service.devices()
    rows = ((row["id"], row["key"], row["state"], row["target_fingerprint"], row["seen_at"]) for row in registered)
    emit(registered, json_output, table(("ID", "KEY", "STATE", "TARGET", "SEEN"), rows))


@click.group()
def keys() -> None:
    """Create, list and revoke API keys, in the database itself."""


@keys.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("submit",),
    show_default=True,
    help="What it allows: read, submit, promote or admin, each including the ones before it; may be repeated.",
)
@click.option("--owner", default="", help="Whose jobs it submits; several keys may share one [default: the key's id].")
@click.option("--expires-in", metavar="TIME", help="As in 90d, 12h or 30m [default: it does not expire].")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=N",
    help="What the owner's jobs may use: open_jobs, and trials and seconds in 24 hours; may be repeated.",
)
@options.database_url
@options.data_dir
@as_json
def create_key(
    *,
    name: str,
    scopes: tuple[str, ...],
    owner: str,
    expires_in: str | None,
    quotas: tuple[str, ...],
    database_url: str | None,
    data_dir: Path | None,
    json_output: bool,
) -> None:
    """Create an API key, and print its secret, which is shown only once.

    Only a hash of the secret is stored.
    """
    from tuner.storage.webhooks import webhook_secret  # noqa: PLC0415  (keeps --help fast)

    made = new_key(name, scopes, owner, expires_in, quotas)
    with closing(options.open_database(database_url, data_dir)) as storage:
        key, secret = storage.create_key(name, made=made, actor=actor())
    facts = {**_facts(key), "secret": secret, "webhook_secret": webhook_secret(secret)}
    emit(facts, json_output, secret)


@keys.command("list")
@options.database_url
@options.data_dir
@as_json
def list_keys(database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """List API keys, revoked ones included."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        stored = storage.list_keys()
    rows = (
        (
            *(key.id, key.name, key.owner, ",".join(key.scopes), key.created_at),
            *(key.expires_at or "", key.last_used_at or "", key.revoked_at or ""),
        )
        for key in stored
    )
    head = ("ID", "NAME", "OWNER", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
    emit([_facts(key) for key in stored], json_output, table(head, rows))


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@options.database_url
@options.data_dir
@as_json
def revoke_key(key_id: str, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Revoke an API key: it is refused from two seconds later on."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        key = storage.revoke_key(key_id, actor())
    emit(_facts(key), json_output, f"{key.id} revoked")


def _facts(key: ApiKey) -> dict[str, Any]:
    return {**asdict(key), "scopes": list(key.scopes), "quota": key.quota.to_json() or {}}


@click.command("login-url")
@options.service_url
@options.database_url
@options.data_dir
@as_json
def login_url(url: str | None, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Print a link that signs a browser in, once.

    It needs the service's database, and makes an API key named browser when it is opened.
    """
    base = url or defaults.service_url()
    with closing(options.open_database(database_url, data_dir)) as storage:
        link = login_link(storage, base)
    emit({"url": base, "dashboard_url": link, "ttl_s": LOGIN_TTL_S}, json_output, link)


COMMANDS = (devices, keys, login_url)
