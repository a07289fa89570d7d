"""Join tokens of devices: made, listed and revoked in the database itself; and what a device is given of one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from shapewright.cli import options
from shapewright.cli.keys import actor, seconds_of
from shapewright.cli.output import as_json, emit, say, table
from tuner.errors import InvalidInput

OPTION = "--token"


@click.group("device-tokens")
def device_tokens() -> None:
    """Create, list and revoke the tokens that devices join by."""


@device_tokens.command("create")
@click.argument("key")
@click.option("--expires-in", default="90d", show_default=True, metavar="TIME", help="As in 90d or 12h, up to 366d.")
@click.option("--note", default="", help="What it is for, shown in the list.")
@options.database_url
@options.data_dir
@as_json
def create_token(
    *, key: str, expires_in: str, note: str, database_url: str | None, data_dir: Path | None, json_output: bool
) -> None:
    """Create a token for devices of a tracker key, and print it, which is done only once.

    From then on devices of that key need one. Those that have none get no more work.
    """
    from tuner.storage.device_tokens import checked_token  # noqa: PLC0415  (keeps --help fast)

    checked_token(key, ttl_s := seconds_of(expires_in) or 0.0, note)
    with closing(options.open_database(database_url, data_dir)) as storage:
        without = [each.id for each in storage.list_devices() if each.key == key and each.joined is None]
        token, text = storage.create_device_token(key, ttl_s, note, actor())
    if without:
        say(f"devices of key {key!r} need a token from now on; {len(without)} have joined without: {_some(without)}")
    emit({**asdict(token), "token": text}, json_output, text)


@device_tokens.command("list")
@options.database_url
@options.data_dir
@as_json
def list_tokens(database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """List the tokens of devices, newest first, expired and revoked ones included."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        stored = storage.list_device_tokens()
    rows = (
        (each.id, each.key, each.state.value, each.note, each.created_at, each.expires_at, each.last_used_at or "")
        for each in stored
    )
    head = ("ID", "KEY", "STATE", "NOTE", "CREATED", "EXPIRES", "LAST USED")
    emit([asdict(each) for each in stored], json_output, table(head, rows))


@device_tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@options.database_url
@options.data_dir
@as_json
def revoke_token(token_id: str, database_url: str | None, data_dir: Path | None, json_output: bool) -> None:
    """Revoke a token: devices that joined by it get no more work."""
    with closing(options.open_database(database_url, data_dir)) as storage:
        token = storage.revoke_device_token(token_id, actor())
    emit(asdict(token), json_output, f"{token.id} revoked")


def token_of(token: str | None, file: Path | None) -> str | None:
    """What `device serve` was given. Raises InvalidInput."""
    if file is None:
        # As an unset variable gives it.
        return token or None
    if token:
        raise InvalidInput("--token-file", "a token is given twice", "leave out --token and SHAPEWRIGHT_DEVICE_TOKEN")
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise InvalidInput("--token-file", problem, "a file that holds a join token") from None


def without_token(argv: Sequence[str]) -> list[str]:
    """A command line without the token: every user of the machine, and every candidate, can read it."""
    kept, words = [], iter(argv)
    for word in words:
        if word == OPTION:
            next(words, None)
        elif not word.startswith(f"{OPTION}="):
            kept.append(word)
    return kept


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


COMMANDS = (device_tokens,)
