"""Curves as SVG inside a page, in the colours of its text and ground."""

import io
import re
from collections.abc import Sequence

import matplotlib
import matplotlib.pyplot as plt
from markupsafe import Markup, escape

from pipeline.reports.html.page import Picture
from pipeline.reports.plots import Panel, draw_curves

BLACK = "#000000"
GRID = "#ebebeb"
SETTINGS = {"svg.hashsalt": "report", "svg.fonttype": "none", "font.family": "sans-serif"}
NO_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}


def curves(panels: Sequence[Panel]) -> Picture:
    """The panels `(title, x label, y unit, curves)` side by side; the same panels give the same text.

    Whatever is black, axes and text and black curves, takes the colour of the page's text.
    """
    return Picture(Markup("\n").join(_panel(panel) for panel in panels))


def _panel(panel: Panel) -> Markup:
    """A panel as an SVG of its own, so that a narrow page can show them below each other."""
    with matplotlib.rc_context(SETTINGS):
        figure = draw_curves([panel], 1, log=False, markers=False)
        figure.tight_layout()
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, bbox_inches="tight", metadata=NO_DATE)
        plt.close(figure)
    return Markup(_inline(content.getvalue(), panel[0]))


def _inline(document: str, description: str) -> str:
    """The `svg` element of a file of matplotlib's, without what only a file of its own needs."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every figure
    svg = svg.replace(BLACK, "currentColor").replace(GRID, "rgb(128 128 128 / 25%)")
    # Text without a colour of its own is black.
    opening = f'<svg role="img" aria-label="{escape(description)}" fill="currentColor" '
    svg = svg.replace("<svg ", opening, 1)
    return "\n".join(line.rstrip() for line in svg.splitlines())
