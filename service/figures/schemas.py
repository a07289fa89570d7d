"""The schema of the list of figures."""

from __future__ import annotations

from pydantic import BaseModel

from service.schemas import FromAttributes


class FigureOut(FromAttributes):
    """A figure that every job has. ``name`` is the last part of its path."""

    name: str
    title: str
    caption: str


class FigureList(BaseModel):
    """The figures of a job, in the order in which its page shows them."""

    items: list[FigureOut]
