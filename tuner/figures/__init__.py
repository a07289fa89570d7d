"""Plotly figures of searches: pure functions from what was recorded to figures.

``figure(name, view)`` makes one of FIGURES for a ``SearchView``, which ``view_of`` puts together from what is stored.
In a notebook: ``figure("latency_by_shape", view).show()``.
"""

from tuner.figures.devices import Reading, Span, device_drift, device_use
from tuner.figures.latencies import kernel_times
from tuner.figures.registry import COMPARABLE, FIGURES, FigureSpec, UnknownFigure, compare, figure
from tuner.figures.style import DARK, LIGHT, PAGE_CONFIG, document, script, themed
from tuner.figures.view import SearchView, view_of

__all__ = [
    "COMPARABLE",
    "DARK",
    "FIGURES",
    "LIGHT",
    "PAGE_CONFIG",
    "FigureSpec",
    "Reading",
    "SearchView",
    "Span",
    "UnknownFigure",
    "compare",
    "device_drift",
    "device_use",
    "document",
    "figure",
    "kernel_times",
    "script",
    "themed",
    "view_of",
]
