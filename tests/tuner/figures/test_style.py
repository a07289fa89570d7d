"""That figures can be read on light and dark ground, and cannot be written to by names."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tuner.figures import DARK, LIGHT, PAGE_CONFIG, document, script, style, themed


def rgb(colour: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = rgb(colour)
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_the_one_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("ground", style.BACKGROUNDS.values())
@pytest.mark.parametrize("colour", [*style.SERIES, style.NEUTRAL, style.OURS, style.DEFAULT, *style.RIVALS])
def test_lines_stand_out_on_both_grounds(colour: str, ground: str) -> None:
    assert contrast(colour, ground) >= 3


@pytest.mark.parametrize("ground", style.BACKGROUNDS.values())
def test_every_colour_of_the_scale_of_lines_stands_out(ground: str) -> None:
    for share in np.linspace(0, 1, 21):
        assert contrast(style.line_colour(float(share)), ground) >= 3
    assert style.line_colour(0.25) == "#967c45"


@pytest.mark.parametrize(("theme", "update"), [("light", LIGHT), ("dark", DARK)])
def test_text_is_readable_on_the_ground_that_it_is_for(theme: str, update: dict[str, str]) -> None:
    ground = style.BACKGROUNDS[theme]
    assert contrast(update["font.color"], ground) >= 4.5
    assert contrast(update["hoverlabel.font.color"], update["hoverlabel.bgcolor"]) >= 4.5
    assert contrast(update["modebar.color"], ground) >= 3
    assert contrast(update["modebar.activecolor"], ground) >= 3


def test_both_themes_set_the_same() -> None:
    assert set(LIGHT) == set(DARK)
    json.dumps([dict(LIGHT), dict(DARK), dict(PAGE_CONFIG)])


def test_a_theme_is_laid_over_a_copy() -> None:
    plain = document(style.message("Nothing."))
    before = json.dumps(plain)
    dark = themed(plain, "dark")
    assert dark["layout"]["font"]["color"] == DARK["font.color"]
    assert dark["layout"]["hoverlabel"]["font"]["color"] == DARK["hoverlabel.font.color"]
    assert json.dumps(plain) == before
    assert "color" not in plain["layout"].get("font", {})


def test_no_ground_is_painted() -> None:
    layout = style.blank().layout.template.layout
    assert (layout.paper_bgcolor, layout.plot_bgcolor) == ("rgba(0, 0, 0, 0)", "rgba(0, 0, 0, 0)")
    assert layout.font.color is None


def test_numbers_are_short_and_gaps_are_none() -> None:
    assert style.rounded([0.123456789, 123456.789, np.nan, np.inf, 0.0]) == [0.12346, 123460.0, None, None, 0.0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, 100], "log"), ([1, 20], "linear"), ([0, 100], "linear"), ([], "linear"), ([np.nan, 1, 1e3], "log")],
)
def test_an_axis_is_logarithmic_where_values_are_far_apart(values: list[float], kind: str) -> None:
    assert style.axis(values)["type"] == kind


def test_names_are_text() -> None:
    assert style.plain("<script>&'\"") == "&lt;script&gt;&amp;&#x27;&quot;"


def test_the_script_is_plotlys_and_whole() -> None:
    text = script()
    assert "plotly.js v" in text[:200]
    assert "</script" not in text.lower()


def test_nothing_is_offered_to_be_sent_anywhere() -> None:
    assert PAGE_CONFIG["showSendToCloud"] is False
    assert PAGE_CONFIG["plotlyServerURL"] == ""
