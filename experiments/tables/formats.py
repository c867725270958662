"""Tables of text as Markdown or LaTeX."""

from __future__ import annotations

import dataclasses
import re

LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
}


@dataclasses.dataclass(frozen=True)
class Section:
    """One table of text.

    Attributes:
      title: above it.
      header: the titles of its columns.
      lines: its cells, line by line.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """Tables that belong together.

    Attributes:
      title: their name.
      caption: what they show.
      sections: the tables.
    """

    title: str
    caption: str
    sections: tuple[Section, ...]


def counted(number: int, noun: str) -> str:
    """`1 seed`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def markdown(reports: list[Report], how: str) -> str:
    """All as Markdown.

    Args:
      reports: one for each table of the paper.
      how: to read them.
    """
    blocks = [how]
    for report in reports:
        blocks += [f"## {report.title}", report.caption]
        for section in report.sections:
            blocks.append(f"### {section.title}")
            blocks.append(markdown_table(section))
    return "\n\n".join(blocks) + "\n"


def markdown_table(section: Section) -> str:
    """Its lines as Markdown."""
    rule = ("---",) * len(section.header)
    lines = (section.header, rule, *section.lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(reports: list[Report], how: str) -> str:
    """All as LaTeX, to be put into a document; its first line says what that needs."""
    blocks = [r"% Needs \usepackage{booktabs,graphicx}.", _escaped(how)]
    for report in reports:
        blocks += [rf"\section*{{{_escaped(report.title)}}}", _escaped(report.caption)]
        blocks += [_latex_table(section) for section in report.sections]
    return "\n\n".join(blocks) + "\n"


def _latex_table(section: Section) -> str:
    """Where it stands, and made smaller if it is wider than the text."""
    lines, group = [], None
    for line in section.lines:
        if group not in (None, line[0]):
            lines.append(r"\midrule")
        group = line[0]
        lines.append(_latex_line(line))
    return "\n".join(
        [
            r"\begin{center}",
            rf"\textbf{{{_escaped(section.title)}}}\par\smallskip",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{'l' * len(section.header)}}}",
            r"\toprule",
            _latex_line(section.header),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{center}",
        ]
    )


def _latex_line(cells: tuple[str, ...]) -> str:
    return rf"{' & '.join(map(_escaped, cells))} \\"


def _escaped(text: str) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in text)
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a minus, and no hyphen


FORMATS = {"markdown": markdown, "latex": latex}
