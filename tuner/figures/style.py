"""The style of all figures: colours for colour-blind readers on light and dark pages, axes, layouts that fit phones.

Lines and markers have a contrast of 3:1 or more on both backgrounds. Text cannot have that; its colours are in
``LIGHT`` and ``DARK``: updates of a figure's layout that a page applies with ``Plotly.relayout``.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from tuner.program.language.workload import JsonObject

BACKGROUNDS = {"light": "#ffffff", "dark": "#14171c"}
"""The backgrounds of the pages that figures are shown on."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#3590cc")
"""Okabe and Ito's colours, those that are too pale for a white background darkened."""
NEUTRAL = "#7d818a"
FAINT = "rgba(125, 129, 138, 0.3)"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon", "star", "hexagon")
PATTERNS = ("", "/", "x", ".", "-", "\\")
SCALE = "Cividis"
"""Colours of areas, even in lightness, also for colour-blind readers."""
LINE_SCALE = ((0.0, "#b07800"), (0.5, NEUTRAL), (1.0, "#0072b2"))
"""Colours of lines and dots, from slow and early to fast and late: from ochre to blue, of one lightness."""
LOG_TICKS = 4
"""Ticks of a logarithmic axis: so few that between powers of ten there are 2 and 5, and not every digit."""

OURS, DEFAULT, RIVALS = SERIES[0], SERIES[1], SERIES[2:5]

LINE_PX = 16
"""The height of a line of a figure's title."""
ROW_PX = 300
"""The height of one row of panels."""

LOG: Mapping[str, Any] = {"type": "log", "nticks": LOG_TICKS, "tickformat": "~g"}
"""A logarithmic axis. With a format of ticks those between powers of ten are whole numbers, 20, and not digits, 2."""
Theme = Literal["light", "dark"]
LIGHT: Mapping[str, str] = {
    "font.color": "#24292f",
    "hoverlabel.bgcolor": "#ffffff",
    "hoverlabel.bordercolor": NEUTRAL,
    "hoverlabel.font.color": "#24292f",
    "modebar.color": "#5f6671",
    "modebar.activecolor": "#24292f",
}
DARK: Mapping[str, str] = {
    "font.color": "#e4e7eb",
    "hoverlabel.bgcolor": "#23272e",
    "hoverlabel.bordercolor": NEUTRAL,
    "hoverlabel.font.color": "#e4e7eb",
    "modebar.color": "#a5acb8",
    "modebar.activecolor": "#e4e7eb",
}
PAGE_CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}
"""What pages hand to ``Plotly.newPlot`` as its last argument: no figure offers to send itself anywhere. Where there is
no pointer that hovers, ``displayModeBar: false`` and the layout's ``dragmode: false`` leave room and let pages scroll.
"""

_AXIS = {
    "automargin": True,
    "gridcolor": FAINT,
    "zeroline": False,
    "showline": True,
    "linecolor": NEUTRAL,
    "ticks": "outside",
    "tickcolor": NEUTRAL,
    "ticklen": 4,
    "title": {"standoff": 8},
}
_LEGEND = {"orientation": "h", "traceorder": "normal", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "colorway": SERIES,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": _LEGEND,
        "hoverlabel": {"align": "left", "namelength": -1},
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    },
)


def blank(rows: int = 1, height_px: int | None = None, **panels: Any) -> go.Figure:
    """A figure without traces: ``rows`` of panels below each other over one x axis, unless ``panels`` (the arguments of
    plotly.subplots.make_subplots) say otherwise."""
    given = {"shared_xaxes": True, "vertical_spacing": 0.08} | panels
    figure = make_subplots(rows=rows, **given) if rows > 1 or panels else go.Figure()
    return figure.update_layout(template=TEMPLATE, height=height_px or ROW_PX + 200 * (rows - 1))


def message(text: str) -> go.Figure:
    """A figure without data that gives the reason. ``text`` is Plotly's markup: names in it must be escaped.

    ``layout.meta.nothing`` is the reason as plain text, for pages that show a line of it in place of a figure.
    """
    figure = blank(height_px=160).update_xaxes(visible=False).update_yaxes(visible=False)
    figure.update_layout(meta={"nothing": html.unescape(text)})
    return figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")


def line_colour(share: float) -> str:
    """The colour of LINE_SCALE at a share of its length, 0 to 1."""
    stops = [position for position, _ in LINE_SCALE]
    parts = [[int(colour[at : at + 2], 16) for _, colour in LINE_SCALE] for at in (1, 3, 5)]
    return "#" + "".join(f"{round(float(np.interp(share, stops, part))):02x}" for part in parts)


def scale_above(height_px: int) -> dict[str, Any]:
    """A colour bar over the panels of a figure, where it takes no width; ``titled`` makes room for it and says what it
    shows. Room and title of its own would be placed wrongly: Plotly then leaves the titles of axes where they were."""
    layout = {"orientation": "h", "x": 0.5, "yref": "container", "y": 1 - 22 / height_px, "yanchor": "top", "ypad": 0}
    return layout | {"thickness": 10, "outlinewidth": 0}


def titled(figure: go.Figure, text: str, top_px: int = 68) -> go.Figure:
    """The figure with lines of text above everything else, in the margin of ``top_px``."""
    # Plotly places the last line at the anchor, and those before it above.
    pad = {"t": 4 + LINE_PX * text.count("<br>")}
    position = {"x": 0.5, "xanchor": "center", "yref": "container", "y": 1, "yanchor": "top", "pad": pad}
    return figure.update_layout(title={"text": text, "font": {"size": 12}} | position, margin={"t": top_px})


def plain(name: object) -> str:
    """A name as text of a figure, where Plotly would otherwise take some of HTML."""
    return html.escape(str(name))


def rounded(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Values rounded to ``digits`` significant digits; None, a gap, for what is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def spans_decades(values: Iterable[float], ratio: float) -> bool:
    """Whether an axis over these values should be logarithmic: they are all positive and far apart."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > ratio


def axis(values: Iterable[float], ratio: float = 30.0) -> JsonObject:
    """The type of an axis over these values."""
    return dict(LOG) if spans_decades(values, ratio) else {"type": "linear"}


def whole(most: int) -> JsonObject:
    """The ticks of an axis that counts up to ``most``: none between two whole numbers."""
    return {"tickformat": "d"} | ({"dtick": 1} if most <= 6 else {})


def document(figure: go.Figure) -> JsonObject:
    """``{"data", "layout"}``, what Plotly's script draws."""
    plotly: JsonObject = figure.to_plotly_json()
    return plotly


def themed(figure: JsonObject, theme: Theme) -> JsonObject:
    """A copy of a figure's document with the text colours of one theme, for pages that have no other."""
    copy = deepcopy(figure)
    for path, value in (DARK if theme == "dark" else LIGHT).items():
        *outer, last = path.split(".")
        member = copy.setdefault("layout", {})
        for name in outer:
            member = member.setdefault(name, {})
        member[last] = value
    return copy


def script() -> str:
    """Plotly's script, whole, from the installed package."""
    text: str = get_plotlyjs()
    return text
