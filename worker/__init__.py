"""The worker: takes jobs from the database, builds candidates on Ray, measures them on devices over TVM RPC."""

from __future__ import annotations

import os
import secrets

from tuner import without_torch

# Ray reads these when it is imported, which modules of this package do. A cluster that a worker starts for itself takes
# calls only with a token, which its processes inherit; left to itself Ray would write one to the home directory. Who
# brings a cluster sets RAY_AUTH_MODE to what that cluster wants.
if "RAY_AUTH_MODE" not in os.environ:
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A call to Ray in between two clusters is an error, and starts none of its own.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
without_torch.install()
