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
      remarks: sentences before them.
      sections: the tables.
    """

    title: str
    remarks: tuple[str, ...]
    sections: tuple[Section, ...]


def counted(number: int, noun: str) -> str:
    """`1 seed`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def markdown(reports: list[Report]) -> str:
    """All as Markdown."""
    blocks = []
    for report in reports:
        blocks += [f"## {report.title}", *report.remarks]
        for section in report.sections:
            blocks.append(f"### {section.title}")
            blocks.append(markdown_table(section))
    return "\n\n".join(blocks) + "\n"


def markdown_table(section: Section) -> str:
    """Its lines as Markdown."""
    rule = ("---",) * len(section.header)
    lines = (section.header, rule, *section.lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(reports: list[Report]) -> str:
    """All as LaTeX for a document with the package `booktabs`."""
    blocks = []
    for report in reports:
        blocks.append(rf"\section*{{{_escaped(report.title)}}}")
        blocks += [_escaped(remark) for remark in report.remarks]
        blocks += [_latex_table(section) for section in report.sections]
    return "\n\n".join(blocks) + "\n"


def _latex_table(section: Section) -> str:
    header, *lines = (
        rf"{' & '.join(map(_escaped, line))} \\"
        for line in (section.header, *section.lines)
    )
    return "\n".join(
        [
            r"\begin{table}[h]",
            r"\centering\small",
            rf"\caption{{{_escaped(section.title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(section.header)}}}",
            r"\toprule",
            header,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escaped(text: str) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in text)
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", text)  # a minus, and no hyphen


FORMATS = {"markdown": markdown, "latex": latex}
