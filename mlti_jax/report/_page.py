"""A page of sections, rendered to one HTML file without scripts or network access."""

from __future__ import annotations

import dataclasses
import importlib.resources
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlti_jax._internal.extras import require
from mlti_jax._internal.storage import write_text
from mlti_jax.report._svg import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATE = "template.html"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; numbers are aligned on the right.

    Attributes:
      header: names of the columns.
      rows: cells; the first of each row is its heading.
      caption: a sentence on what the table shows.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure, drawn with Matplotlib when the page is rendered.

    Attributes:
      draw: draws into an empty figure, whose text and axes have the color of the page,
        light or dark. Use colors of medium lightness, such as the default ones here.
      alt: description for readers who do not see the figure.
      caption: a sentence on what the figure shows.
      size: width and height in inches. A figure about 4.2 inches wide is legible on a
        phone, and has room beside another one on a larger screen.
    """

    draw: Callable[[Figure], object]
    alt: str
    caption: str = ""
    size: tuple[float, float] = (4.2, 2.8)


@dataclasses.dataclass(frozen=True)
class Listing:
    """Text in which spaces and line breaks matter, such as a command."""

    text: str


@dataclasses.dataclass(frozen=True)
class Folded:
    """Parts that are hidden until the reader opens them.

    Attributes:
      title: what the reader sees first.
      parts: what it hides.
    """

    title: str
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
      title: its heading.
      parts: paragraphs as `str`, and tables, figures, listings and folded parts.
        Figures that follow each other are put side by side if there is room.
    """

    title: str
    parts: tuple[Part, ...]


Part = str | Table | Picture | Listing | Folded


@dataclasses.dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
      title: the title of the page.
      sections: its sections.
      subtitle: a line below the title.
      facts: the most important numbers by name, shown first.
      links: paths of other pages, relative to this one, by name.
      fingerprint: identifies the content, so a page that is up to date is not written
        again.
    """

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    fingerprint: str = ""


def write_page(page: Page, path: str | pathlib.Path) -> None:
    """Render a page and write it completely or not at all.

    All text is escaped, so names from data cannot add markup.

    Args:
      page: the page.
      path: the HTML file.

    Raises:
      InputError: if Matplotlib or Jinja is not installed.
      OSError: if the file cannot be written.
    """
    write_text(pathlib.Path(path), render(page))


def render(page: Page) -> str:
    """Return the HTML of a page."""
    jinja2 = require("jinja2", "plot")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text()
    numbers = iter(range(10**6))
    sections = [
        {"title": section.title, "blocks": _blocks(section.parts, numbers)}
        for section in page.sections
    ]
    html = environment.from_string(template).render(page=page, sections=sections)
    return html.lstrip()


def _blocks(parts: tuple[Part, ...], numbers: Any) -> list[dict[str, Any]]:
    """Convert parts to what the template shows; adjacent pictures are one block."""
    from markupsafe import Markup  # a part of Jinja

    blocks: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Picture):
            svg = to_svg(part.draw, part.size, prefix=f"p{next(numbers)}-")
            picture = {"svg": Markup(svg), "alt": part.alt, "caption": part.caption}
            if not blocks or blocks[-1]["kind"] != "pictures":
                blocks.append({"kind": "pictures", "pictures": []})
            blocks[-1]["pictures"].append(picture)
        elif isinstance(part, Table):
            blocks.append(
                {
                    "kind": "table",
                    "table": part,
                    "numeric": [_is_numeric(part, i) for i in range(len(part.header))],
                }
            )
        elif isinstance(part, Listing):
            blocks.append({"kind": "listing", "text": part.text})
        elif isinstance(part, Folded):
            inner = _blocks(part.parts, numbers)
            blocks.append({"kind": "folded", "title": part.title, "blocks": inner})
        else:
            blocks.append({"kind": "text", "text": part})
    return blocks


def _is_numeric(table: Table, column: int) -> bool:
    """Whether all cells of a column, apart from empty ones, begin with a number."""
    cells = [row[column] for row in table.rows if row[column]]
    return bool(cells) and all(cell.lstrip("+-−")[:1].isdigit() for cell in cells)
