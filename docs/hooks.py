"""MkDocs hook: converts LaTeX to MathML, which browsers display without scripts."""

import html
import re

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Replaces the formulas that the arithmatex extension has marked."""
    content = _INLINE.sub(lambda match: _mathml(match[1], "inline"), content)
    return _DISPLAY.sub(lambda match: _mathml(match[1], "block"), content)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex), display=display)
