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


class CoordinateAxis(BaseModel):
    """An axis in which kernels differ: the name that people are shown, what a choice means, the choices made."""

    name: str
    doc: str
    choices: list[int]


class CoordinateKernel(BaseModel):
    """A kernel: its speed where the best's is 1, and for each axis the index of its choice."""

    id: str
    label: str
    speed: float
    choices: list[int]


class CoordinatesOut(BaseModel):
    """Kernels of the commonest rule over their axes. ``kernels`` are some of ``measured`` where these are very many."""

    rule: str
    axes: list[CoordinateAxis]
    kernels: list[CoordinateKernel]
    measured: int
