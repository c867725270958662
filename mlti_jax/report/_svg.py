"""Matplotlib figures as inline SVG that takes its text color from the page.

One drawing serves light and dark pages: what is neither data nor background is drawn in
a marker color, which becomes `currentColor`. Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlti_jax._internal.extras import require
from mlti_jax._internal.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"  # becomes currentColor
# Medium lightness: a contrast of at least 3 with a white and with a dark page.
COLORS = ("#3b82c4", "#d9622b", "#2a9d6f", "#a468c9", "#b5892b", "#c94f7c")
_STYLE: dict[str, Any] = {
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "legend.labelcolor",
        ),
        INK,
    ),
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.5,
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "image.interpolation": "none",  # embeds images as they are
}


def to_svg(
    draw: Callable[[Figure], object], size: tuple[float, float], prefix: str
) -> str:
    """Draw a figure and return it as an SVG element.

    Args:
      draw: draws into an empty figure.
      size: width and height in inches.
      prefix: of all ids, which must differ between the figures of a page.
    """
    matplotlib = require("matplotlib", "plot")
    cycler = require("cycler", "plot")
    style = {**_STYLE, "axes.prop_cycle": cycler.cycler(color=COLORS)}
    buffer = io.StringIO()
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The browser has fonts for letters that Matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        fig = new_figure(*size, layout="constrained")
        draw(fig)
        # Without these, the file would contain the time and links.
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        fig.savefig(buffer, format="svg", metadata=metadata)
    return _embeddable(buffer.getvalue(), prefix)


def _embeddable(document: str, prefix: str) -> str:
    """Turn an SVG document into an element for a page that has others."""
    svg = document[document.index("<svg") :]
    for element in ("metadata", "style"):  # a style would apply to the whole page
        svg = re.sub(rf"<{element}\b.*?</{element}>", "", svg, flags=re.DOTALL)
    first, rest = svg[: svg.index(">")], svg[svg.index(">") :]
    # The page sets the size, with the proportions of the viewBox.
    first = re.sub(r' (width|height)="[^"]*"', "", first)
    svg = first.replace("<svg", '<svg aria-hidden="true"', 1) + rest

    def change_tag(match: re.Match[str]) -> str:
        tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", match[0])
        # The page's font: that of the layout is wider than most.
        tag = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
        tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
        return tag.replace(INK, "currentColor")

    # Tags only: text is the user's.
    return re.sub(r"<[^>]*>", change_tag, svg)
