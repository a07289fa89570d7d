"""The defaults of four settings: an environment variable each, and a value where it is not set."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_PORT = 8321


def service_url() -> str:
    """``SHAPEWRIGHT_URL``, or the address of `shapewright up`."""
    return os.environ.get("SHAPEWRIGHT_URL") or f"http://127.0.0.1:{DEFAULT_PORT}"


def data_dir() -> Path:
    """``SHAPEWRIGHT_DATA_DIR``, or ``~/.shapewright``: independent of the working directory."""
    return Path(os.environ.get("SHAPEWRIGHT_DATA_DIR") or Path.home() / ".shapewright")


def key_file(directory: Path | None = None) -> Path:
    """Where `shapewright up` leaves its first key."""
    return (directory or data_dir()) / "client.key"


def api_key(directory: Path | None = None) -> str | None:
    """``SHAPEWRIGHT_API_KEY``, or the content of the key file; None if there is neither."""
    if key := os.environ.get("SHAPEWRIGHT_API_KEY"):
        return key
    try:
        return key_file(directory).read_text().strip() or None
    except FileNotFoundError:
        return None


def database_url(directory: Path | None = None) -> str:
    """``SHAPEWRIGHT_DATABASE_URL``, or the SQLite file of the data directory."""
    if url := os.environ.get("SHAPEWRIGHT_DATABASE_URL"):
        return url
    return f"sqlite:///{((directory or data_dir()) / 'tuning.db').resolve()}"
