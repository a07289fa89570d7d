"""Dispatch tables, each parsed once: that of a digest never changes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select

from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher
from tuner.program.language.workload import JsonObject
from tuner.storage.sql.library_rows import Known
from tuner.storage.sql.schema import dispatchers

MAX_KEPT = 128

_log = logging.getLogger(__name__)
_CONTENT = select(dispatchers).where(dispatchers.c.artifact_id.in_(bindparam("numbers", expanding=True)))


class Tables:
    """A cache of the dispatchers that were read last. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Dispatcher | None] = OrderedDict()

    def get(self, connection: Connection, rows: Sequence[Known]) -> Mapping[str, Dispatcher]:
        """Dispatchers by digest; those that this version cannot read are left out."""
        digests = {row.library.digest: row.number for row in rows}
        with self._lock:
            result = {digest: self._kept[digest] for digest in digests if digest in self._kept}
        missing = {number: digest for digest, number in digests.items() if digest not in result}
        if missing:
            for row in connection.execute(_CONTENT, {"numbers": list(missing)}):
                result[missing[row.artifact_id]] = _parsed(row.dispatch, missing[row.artifact_id])
        self._keep(result)
        return {digest: dispatcher for digest, dispatcher in result.items() if dispatcher is not None}

    def _keep(self, result: Mapping[str, Dispatcher | None]) -> None:
        with self._lock:
            for digest, dispatcher in result.items():
                self._kept[digest] = dispatcher
                self._kept.move_to_end(digest)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


def _parsed(dispatch: JsonObject, digest: str) -> Dispatcher | None:
    try:
        return Dispatcher.from_json(dispatch)
    except (ShapewrightError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        _log.warning("library %s: its dispatch table cannot be read: %r", digest, error)
        return None
