"""Programs run as a user without a name, a home or privileges, as in a container that was given a user's number."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

UID = "54321"
ROOT = Path(__file__).resolve().parents[2]
AS_NOBODY = ("unshare", "--user", f"--map-user={UID}", f"--map-group={UID}")
"""In a user namespace: the files of whoever runs the tests are this user's, and permissions stop it."""


def run_unprivileged(
    argv: Sequence[str], own: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a program left that ran in the folder ``own``, with no more than this environment."""
    if not _has_namespaces():
        pytest.skip("this machine allows no user namespaces: unshare --user fails")
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(own), **(environment or {})}
    return subprocess.run(
        [*AS_NOBODY, *argv], cwd=own, env=given, capture_output=True, text=True, timeout=120, check=False
    )


@cache
def _has_namespaces() -> bool:
    found = shutil.which("unshare")
    return found is not None and subprocess.run([*AS_NOBODY, "true"], capture_output=True, check=False).returncode == 0
