"""The pages' colours: WCAG AA contrast of every text on its ground, in both themes."""

from __future__ import annotations

import re

import pytest

from service.dashboard.lanes import COLOURS
from service.dashboard.templating import FOLDER

TEXTS = (
    ("text", "page"), ("text", "surface"), ("text", "ground"), ("quiet", "page"), ("quiet", "surface"),
    ("quiet", "ground"), ("link", "page"), ("link", "surface"), ("link", "ground"), ("bad", "page"),
    ("tok-word", "surface"), ("tok-name", "surface"), ("tok-text", "surface"), ("tok-number", "surface"),
    ("on-link", "link"), ("good", "good-bg"), ("bad", "bad-bg"), ("busy", "busy-bg"), ("wait", "wait-bg"),
)  # fmt: skip
AA = 4.5
GRAPHICS = 3.0


def colours(theme: str) -> dict[str, str]:
    css = (FOLDER / "static" / "dashboard.css").read_text()
    light, dark = re.findall(r":root(?:\[[^]]*\])? \{(.*?)\}", css, re.S)[:2]
    result = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return result | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if theme == "dark" else result


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_text_can_be_read_on_its_ground(theme: str, text: str, ground: str) -> None:
    result = colours(theme)
    assert contrast(result[text], result[ground]) >= AA


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colour_of_a_job_stands_out_from_its_lane(theme: str) -> None:
    result = colours(theme)
    jobs = [value for name, value in result.items() if name.startswith("job-")]
    assert len(jobs) == len(set(jobs)) == COLOURS
    assert all(contrast(job, result["page"]) >= GRAPHICS for job in jobs)


def test_contrast_is_what_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
