"""The names of the functions that a device serves over TVM RPC. Both sides import them; this module loads no TVM."""

from __future__ import annotations

from urllib.parse import quote

OPEN = "shapewright.open"
PREPARE = "shapewright.prepare"
TRIAL = "shapewright.trial"
VERIFY = "shapewright.verify"
BASELINES = "shapewright.baselines"
LEVELS = "shapewright.levels"
TAKE_TURNS = "shapewright.turns"
DESCRIBE = "shapewright.describe"
JOIN = "shapewright.join"
LAST_ANSWER = "last_answer"
"""The key of an answer after which its session has to be given up: a GPU's context does not outlive what broke it."""

ID_SEPARATOR = "@"


def device_key(key: str, device_id: str) -> str:
    """The tracker's key for one device of a key, which lets a worker choose."""
    # TVM splits what is said between client and server at blanks.
    return f"{key}{ID_SEPARATOR}{quote(device_id, safe='')}"
