"""What the list of figures answers with."""

from __future__ import annotations

from pydantic import BaseModel

from tuner.figures import FigureSpec


class FigureOut(BaseModel):
    """A figure that every job has. ``name`` is the last part of its path."""

    name: str
    title: str
    caption: str

    @staticmethod
    def of(spec: FigureSpec) -> FigureOut:
        return FigureOut(name=spec.name, title=spec.title, caption=spec.caption)


class FigureList(BaseModel):
    """The figures of a job, in the order in which its page shows them."""

    items: list[FigureOut]
