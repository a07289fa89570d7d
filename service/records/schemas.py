"""Responses of the record routes."""

from __future__ import annotations

from pydantic import BaseModel

from tuner.storage import Imported


class ImportOut(BaseModel):
    """What became of the lines of an import: ``added``, and ``known``, which the database had already."""

    added: int
    known: int

    @staticmethod
    def of(imported: Imported) -> ImportOut:
        return ImportOut(added=imported.added, known=imported.known)
