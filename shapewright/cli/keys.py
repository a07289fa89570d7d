"""The options of `keys create`, checked."""

from __future__ import annotations

import getpass
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.storage import NewKey, Quota

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_S = 100 * 365 * 86400.0


def actor() -> str:
    """Who the audit trail names for a command that has the database itself."""
    try:
        return f"cli {getpass.getuser()}"
    except (KeyError, OSError):
        return "cli"


def new_key(name: str, scopes: Sequence[str], owner: str, expires_in: str | None, quotas: Sequence[str]) -> NewKey:
    """Raises InvalidInput on the option that is wrong."""
    from tuner.storage.access import NewKey, check_names, parse_scopes  # noqa: PLC0415  (keeps --help fast)

    check_names(name, owner)
    return NewKey(parse_scopes(scopes), owner, seconds_of(expires_in), quota_of(quotas))


def seconds_of(text: str | None) -> float | None:
    """``90d`` in seconds. Raises InvalidInput on field ``expires-in``."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text.strip(), re.ASCII)
    seconds = float(match[1]) * UNITS_S[match[2]] if match else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise InvalidInput("expires-in", f"{text[:40]!r} is not a time from now", "as in 90d, 12h, 30m or 60s")
    return seconds


def quota_of(texts: Sequence[str]) -> Quota:
    """``open_jobs=10`` and the like. Raises InvalidInput on field ``quota``."""
    from tuner.storage.access import QUOTAS, Quota  # noqa: PLC0415  (keeps --help fast)

    form = f"as in open_jobs=10; one of: {', '.join(QUOTAS)}"
    limits: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in QUOTAS or not (number.isascii() and number.isdecimal() and len(number) <= 12):
            raise InvalidInput("quota", f"{text[:40]!r} is not a quota", form)
        if name in limits:
            raise InvalidInput("quota", f"{name} is given twice", form)
        limits[name] = int(number)
    return Quota(**limits)
