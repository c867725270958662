"""Write tables as Markdown or LaTeX."""

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
    """A table of text.

    Attributes:
      title: heading.
      header: titles of the columns.
      lines: cells of each row.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """A table of the paper, as one `Section` per dataset.

    Attributes:
      title: name of the table.
      caption: caption of the table.
      sections: the parts.
    """

    title: str
    caption: str
    sections: tuple[Section, ...]


def pluralize(number: int, noun: str) -> str:
    """Format a count: `1 seed`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def markdown(reports: list[Report], legend: str) -> str:
    """Return tables as Markdown.

    Args:
      reports: one per table of the paper.
      legend: explanation of the columns, printed first.
    """
    blocks = [legend]
    for report in reports:
        blocks += [f"## {report.title}", report.caption]
        for section in report.sections:
            blocks.append(f"### {section.title}")
            blocks.append(markdown_table(section))
    return "\n\n".join(blocks) + "\n"


def markdown_table(section: Section) -> str:
    """Return one table as Markdown."""
    rule = ("---",) * len(section.header)
    lines = (section.header, rule, *section.lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(reports: list[Report], legend: str) -> str:
    """Return tables as LaTeX; the first line names the packages that it needs."""
    blocks = [r"% Needs \usepackage{booktabs,graphicx}.", _escape(legend)]
    for report in reports:
        blocks += [rf"\section*{{{_escape(report.title)}}}", _escape(report.caption)]
        blocks += [_latex_table(section) for section in report.sections]
    return "\n\n".join(blocks) + "\n"


def _latex_table(section: Section) -> str:
    """Return one table, scaled down if it is wider than the text."""
    lines, group = [], None
    for line in section.lines:
        if group not in (None, line[0]):
            lines.append(r"\midrule")
        group = line[0]
        lines.append(_latex_line(line))
    return "\n".join(
        [
            r"\begin{center}",
            rf"\textbf{{{_escape(section.title)}}}\par\smallskip",
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
    return rf"{' & '.join(map(_escape, cells))} \\"


def _escape(text: str) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in text)
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # minus signs


FORMATS = {"markdown": markdown, "latex": latex}
