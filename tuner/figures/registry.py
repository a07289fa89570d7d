"""The figures of a search by name: for pages, the HTTP interface, reports and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import plotly.graph_objects as go

from tuner.errors import ShapewrightError
from tuner.figures.axes import axis_importance, slices
from tuner.figures.dispatch import dispatch
from tuner.figures.kernels import kernels_by_shape
from tuner.figures.latencies import latency_by_shape, latency_of
from tuner.figures.model import calibration
from tuner.figures.ratios import speedup_by_shape
from tuner.figures.roofline import roofline
from tuner.figures.searching import best_over, best_over_time, best_over_trials, elapsed_s, failures, trials
from tuner.figures.tiles import tile_parameters
from tuner.figures.view import SearchView

Entry = TypeVar("Entry")


class UnknownFigure(ShapewrightError, KeyError):
    """There is no figure of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure: its name, its title, one sentence on how to read it, and the function that makes it.

    Figures carry no title of their own: pages and reports have the title and the caption in their own type.
    """

    name: str
    title: str
    caption: str
    make: Callable[[SearchView], go.Figure]


_SPECS = (
    FigureSpec(
        "best_over_time",
        "Best so far over time",
        "The weighted time of all instances with the best kernels so far, from what earlier searches had found, if "
        "anything; the dashed and dotted lines are the default (the library that the analytic model chooses before any "
        "measurement) and other libraries.",
        best_over_time,
    ),
    FigureSpec(
        "best_over_trials",
        "Best so far over trials",
        "The same over the number of trials, which does not depend on how fast this machine builds and measures.",
        best_over_trials,
    ),
    FigureSpec(
        "latency_by_shape",
        "Latency by shape",
        "The line is the predicted latency of the library at every shape, the dots are measured; below, how much "
        "slower it is than the fastest kernel measured at the same shape (its regret).",
        latency_by_shape,
    ),
    FigureSpec(
        "kernels_by_shape",
        "Kernels by shape",
        "Each row is a kernel and each column an instance; 1 means that no kernel was faster there, 2 that one took "
        "half the time.",
        kernels_by_shape,
    ),
    FigureSpec(
        "dispatch",
        "Which kernel serves which shape",
        "A shape is served by the kernel in whose band or area it lies.",
        dispatch,
    ),
    FigureSpec(
        "calibration",
        "Calibration of the cost model",
        "Each dot is a trial: on the dashed line the prediction was exact; below, the rank correlation of predicted "
        "and measured latencies by round: 1 is the same order, 0 no better than chance.",
        calibration,
    ),
    FigureSpec(
        "tile_parameters",
        "Tile parameters",
        "Each line is a kernel and crosses every axis at its value, faster kernels higher within a value; blue and "
        "thick lines are kernels near the best at the shapes that they were measured at.",
        tile_parameters,
    ),
    FigureSpec(
        "axis_importance",
        "Importance of the axes",
        "How much each choice of a schedule changes the time: SHAP values of a boosted model of all that was measured, "
        "in the mean, as a share of all axes; in each bar, by how much the time changes on average.",
        axis_importance,
    ),
    FigureSpec(
        "slices",
        "Slices",
        "Each dot is a kernel at its choice on one axis, the most important axes first; the line follows the best of "
        "each choice.",
        slices,
    ),
    FigureSpec(
        "failures",
        "Failed trials",
        "How many trials failed in each round of the search, and why.",
        failures,
    ),
    FigureSpec(
        "roofline",
        "Roofline",
        "Each dot is an instance: the nearer it is to the dashed roof, the less is left to gain; under the slope "
        "memory bandwidth is the limit, under the flat part the arithmetic units are. Of a device that is calibrated "
        "there is a line for each cache, too.",
        roofline,
    ),
)
FIGURES: Mapping[str, FigureSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})

Compare = Callable[[Mapping[str, SearchView]], go.Figure]
COMPARABLE: Mapping[str, Compare] = MappingProxyType(
    {
        "best_over_time": partial(best_over, against=elapsed_s, title="Time of the search (s)"),
        "best_over_trials": partial(best_over, against=trials, title="Trials (count)"),
        "latency_by_shape": latency_of,
        "speedup_by_shape": speedup_by_shape,
    }
)
"""The figures that can show several searches over each other."""


def figure(name: str, view: SearchView) -> go.Figure:
    """The figure of that name. Raises UnknownFigure; a search with nothing to show gives a figure that says so."""
    return _named(FIGURES, name).make(view)


def compare(views: Mapping[str, SearchView], name: str) -> go.Figure:
    """Several searches, by what they are to be called, in one figure of COMPARABLE. Raises UnknownFigure."""
    return _named(COMPARABLE, name)(views)


def _named(known: Mapping[str, Entry], name: str) -> Entry:
    try:
        return known[name]
    except KeyError:
        raise UnknownFigure(f"there is no figure {name!r}; there are: {', '.join(known)}") from None
