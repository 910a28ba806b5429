"""Colours can be read: on a terminal's black or white, and on the page, by WCAG's own formulas."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest

from flowvm.profiler.grammar import CAUSES, STYLES

AA, GRAPHIC = 4.5, 3.0  # the least contrast of text, and of what is no text
BACKGROUNDS = {"host"}  # fills of the page that mean "nothing": text stands on them


def linear(colour):
    """Red, green and blue as light, from "#rrggbb"."""
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2's contrast ratio."""
    light = [float(linear(c) @ (0.2126, 0.7152, 0.0722)) + 0.05 for c in (one, other)]
    return max(light) / min(light)


def without_red(colour):
    """The light that reaches who has no long cones: Viénot, Brettel and Mollon 1999."""
    return np.array([[0.29, 0.71, 0], [0.29, 0.71, 0], [0.02, -0.02, 1]]) @ linear(colour)


def colour_of(style):
    """The "#rrggbb" in a style of rich, "" for none."""
    return next((word for word in style.split() if word.startswith("#")), "")


def test_the_formula():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", [name for name, style in STYLES.items() if colour_of(style)])
def test_a_terminal_shows_it_on_black_and_on_white(name):
    for back in ("#ffffff", "#000000"):
        assert contrast(colour_of(STYLES[name]), back) >= AA, (name, back)


def test_every_cause_has_a_style_and_a_glyph_of_its_own():
    assert all(style in STYLES for _, style, _ in CAUSES.values())
    assert len({glyph for glyph, _, _ in CAUSES.values()}) == len(CAUSES)


def page():
    """The page's colours by name: those of light, those of dark."""
    css = resources.files("flowvm.profiler.export").joinpath("assets/report.css").read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    own = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text)) for text in (light, dark)]
    return own[0], own[0] | own[1]


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_shows_every_cause(dark):
    colours = page()[dark]
    back = colours["back"]
    for name in ("text", "dim", "link", "critical", "const", "mut", "mut2"):
        assert contrast(colours[name], back) >= AA, name
    for name in CAUSES:
        if name in BACKGROUNDS:
            assert contrast(colours["text"], colours[name]) >= AA, name
        else:
            assert contrast(colours[name], back) >= GRAPHIC, name


@pytest.mark.parametrize("colours", [
    {name: colour_of(style) for name, style in STYLES.items()}, page()[0], page()[1]
])  # fmt: skip
def test_what_is_critical_is_told_from_the_gil_without_red(colours):
    one, other = (without_red(colours[name]) for name in ("critical", "gil"))
    blue = [light[2] / light.sum() for light in (one, other)]
    assert abs(blue[0] - blue[1]) > 0.2, blue


def test_causes_differ_in_colour():
    """None of two is the other, but for what stands for nothing."""
    shown = {c: colour_of(STYLES[CAUSES[c][1]]) for c in CAUSES if c not in ("host", "sched")}
    for one, other in itertools.combinations(shown, 2):
        assert shown[one] != shown[other], (one, other)
