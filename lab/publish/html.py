"""A page of tables and pictures in one HTML file that loads nothing from elsewhere: its parts, and as text.

Curves are SVG in the colours of the page's text and ground.
"""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import matplotlib
import matplotlib.pyplot as plt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lab.files import MARK
from lab.publish.plots import Panel, figure_of_panels

HERE = Path(__file__).parent
GENERATOR = "scripts/report.sh"  # identifies a page of ours
BLACK = "#000000"
GRID = "#ebebeb"
SETTINGS = {"svg.hashsalt": "report", "svg.fonttype": "none", "font.family": "sans-serif"}
NO_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Link:
    """A cell that leads to a file, whose `path` is relative to the page."""

    text: str
    path: str

    @property
    def href(self) -> str:
        """The path as an address."""
        return quote(self.path)


CellContent = str | Link


@dataclass(frozen=True)
class Table:
    """Rows that the reader sorts by a click on the header; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[CellContent]]
    caption: str = ""

    @property
    def kinds(self) -> list[str]:
        """For each column "number" if most of its cells are numbers, else "text"; decides its alignment."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return ["number" if 2 * sum(map(_is_number, cells)) > len(cells) else "text" for cells in columns]


@dataclass(frozen=True)
class EmbeddedPicture:
    """An SVG, or a PNG as a data address, with the text below it."""

    markup: Markup
    caption: str = ""


@dataclass(frozen=True)
class Heading:
    """A title inside a section; `level` 1 is the title of a whole document."""

    text: str
    level: int


Part = str | Table | EmbeddedPicture | Heading


@dataclass(frozen=True)
class Section:
    """A heading, and sentences, tables and pictures in their order."""

    title: str
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Page:
    """The whole document."""

    title: str
    summary: str
    sections: Sequence[Section]


def _is_number(cell: CellContent) -> bool:
    return isinstance(cell, str) and (cell == "–" or re.match(r"[-−]?\d", cell) is not None)


def png(path: Path, description: str, caption: str = "") -> EmbeddedPicture:
    """A PNG from a file, inside the page."""
    content = base64.b64encode(path.read_bytes()).decode()
    image = Markup('<img alt="{}" src="data:image/png;base64,{}">').format(description, content)
    return EmbeddedPicture(image, caption)


def svg_of(panels: Sequence[Panel]) -> EmbeddedPicture:
    """The panels `(title, x label, y unit, curves)` side by side; the same panels give the same text.

    Everything black (axes, text, curves) takes the colour of the page's text.
    """
    return EmbeddedPicture(Markup("\n").join(_panel(panel) for panel in panels))


def _panel(panel: Panel) -> Markup:
    """A panel as its own SVG, so that a narrow page can show panels below each other."""
    with matplotlib.rc_context(SETTINGS):
        figure = figure_of_panels([panel], 1, log=False, markers=False)
        figure.tight_layout()
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, bbox_inches="tight", metadata=NO_DATE)
        plt.close(figure)
    return Markup(_inline(content.getvalue(), panel[0]))


def _inline(document: str, description: str) -> str:
    """The `svg` element of a file of matplotlib's, without the parts that only a separate file needs."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every figure
    svg = svg.replace(BLACK, "currentColor").replace(GRID, "rgb(128 128 128 / 25%)")
    # Text without a colour is black.
    opening = f'<svg role="img" aria-label="{escape(description)}" fill="currentColor" '
    svg = svg.replace("<svg ", opening, 1)
    return "\n".join(line.rstrip() for line in svg.splitlines())


HEADING = re.compile(r"(#+) (.*)")
IMAGE = re.compile(r"!\[(.*)\]\((.*)\)")
MARKS = (
    (r"\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"\*\*(.*?)\*\*", r"\1"),
    (r"`([^`]*)`", r"\1"),
    (r"\\([*|])", r"\1"),
)
"""Links, bold text, code and escaped characters, each with the part that is shown."""


def markdown_parts(text: str, folder: Path | None = None) -> list[Part]:
    """The parts of a document that this project wrote in Markdown; its pictures lie in `folder`."""
    parts: list[Part] = []
    for block in re.split(r"\n\s*\n", text.removeprefix(MARK)):
        for kind, group in groupby(block.strip().splitlines(), _kind):
            lines = list(group)
            if kind == "row":
                header, _rules, *rows = map(_cells, lines)
                is_caption = parts and isinstance(parts[-1], str) and parts[-1].endswith(":")
                parts.append(Table(header, rows, str(parts.pop()) if is_caption else ""))
            elif kind == "heading":
                found = [HEADING.fullmatch(line) for line in lines]
                parts += [Heading(_shown(match[2]), len(match[1])) for match in found]
            elif kind == "image":
                found = [IMAGE.fullmatch(line) for line in lines]
                pictures = [(folder / match[2], match[1]) for match in found if folder]
                parts += [png(path, _shown(name)) for path, name in pictures if path.is_file()]
            elif kind == "item":
                parts += [_shown(line[2:]) for line in lines]
            elif kind == "text":
                parts.append(_shown(" ".join(lines)))
    return parts


def _kind(line: str) -> str:
    """The kind of a line of Markdown."""
    if line.startswith("|"):
        return "row"
    if HEADING.fullmatch(line):
        return "heading"
    if IMAGE.fullmatch(line):
        return "image"
    if line.startswith("<!--"):
        return "comment"
    return "item" if line.startswith(("- ", "* ")) else "text"


def _shown(text: str) -> str:
    """Text without its marks of Markdown."""
    for pattern, shown in MARKS:
        text = re.sub(pattern, shown, text)
    return text


def _cells(row: str) -> list[str]:
    """The cells of a line of a Markdown table, in which `\\|` is a bar."""
    inner = row.strip().removeprefix("|").removesuffix("|").replace(r"\|", "\0")
    return [_shown(cell.strip().replace("\0", "|")) for cell in inner.split("|")]


def render(page: Page) -> str:
    """The page as HTML; the same page gives the same text."""
    loader = FileSystemLoader(HERE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        generator=GENERATOR,
        is_table=lambda part: isinstance(part, Table),
        is_text=lambda part: isinstance(part, str),
        is_heading=lambda part: isinstance(part, Heading),
        is_link=lambda cell: isinstance(cell, Link),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
    )
