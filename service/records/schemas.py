"""Responses of the record routes."""

from __future__ import annotations

from service.schemas import FromAttributes


class ImportOut(FromAttributes):
    """What became of the lines of an import: ``added``, and ``known``, which the database had already."""

    added: int
    known: int
