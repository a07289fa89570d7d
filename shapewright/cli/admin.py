"""Commands for the administrator of a service: `devices`, `keys`, `login-url`, `db`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from shapewright import defaults
from shapewright.cli import options
from shapewright.cli.jobs import client
from shapewright.cli.logins import LOGIN_TTL_S, login_link
from shapewright.cli.output import as_json, emit, table
from tuner.errors import InvalidInput


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
@options.database_url
@options.data_dir
@as_json
def create_key(name: str, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Create an API key, and print its secret, which is shown only once.

    Only a hash of the secret is stored.
    """
    if not name.strip():
        raise InvalidInput("name", "is empty", "a name that identifies this key, as in: shapewright keys create ci")
    with closing(options.open_database(database_url, data_dir)) as storage:
        key, secret = storage.create_key(name)
    emit({**asdict(key), "secret": secret}, json_output, secret)


@keys.command("list")
@options.database_url
@options.data_dir
@as_json
def list_keys(database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """List API keys, revoked ones included."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        stored = storage.list_keys()
    rows = ((key.id, key.name, key.created_at, key.revoked_at or "") for key in stored)
    emit([asdict(key) for key in stored], json_output, table(("ID", "NAME", "CREATED", "REVOKED"), rows))


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@options.database_url
@options.data_dir
@as_json
def revoke_key(key_id: str, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Revoke an API key: it is refused from now on."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        key = storage.revoke_key(key_id)
    emit(asdict(key), json_output, f"{key.id} revoked")


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


@click.group()
def db() -> None:
    """Maintain the database."""


@db.command()
@options.database_url
@options.data_dir
@as_json
def upgrade(database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Bring the database to the schema of this version, or create one."""
    from tuner.storage.sql import upgrade as upgrade_schema  # noqa: PLC0415  (keeps --help fast)

    revision = upgrade_schema(options.database(database_url, data_dir))
    emit({"revision": revision}, json_output, f"the database is at revision {revision}")


COMMANDS = (devices, keys, login_url, db)
