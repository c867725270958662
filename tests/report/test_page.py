"""Pages: what is rendered, escaped and drawn."""

import re
import xml.etree.ElementTree

import pytest

from mlti_jax import report
from mlti_jax.report._page import render
from mlti_jax.report._svg import COLORS, to_svg
from tests.support.browser import browser
from tests.support.html_page import HtmlPage

EVIL = (
    "<script>document.title = 'broken'</script><img src=x onerror=alert(1)> $a$ & \"b\""
)


def line(fig):
    axis = fig.subplots()
    axis.plot([0, 1], [0, 1], label=EVIL)
    axis.legend()


def page(text=EVIL):
    table = report.Table((text, "value"), ((text, "1.5"), ("b", "20")), caption=text)
    picture = report.Picture(line, text, text)
    folded = report.Folded(text, (text, picture))
    parts = (text, table, picture, report.Listing(text), folded)
    return report.Page(
        text,
        (report.Section(text, parts), report.Section("Second", ("Words.",))),
        subtitle=text,
        facts=((text, text),),
        links=((text, "other/report.html"),),
        fingerprint="abc",
    )


def test_all_text_is_escaped():
    found = HtmlPage(render(page()))
    assert "script" not in found.names()
    assert "img" not in found.names()
    assert not any("onerror" in attributes for _, attributes in found.tags)
    # Title, heading, subtitle, fact (2), link, section, text, table (3), 2 captions and
    # 2 legends, listing, folded (2).
    assert found.text.count(EVIL) == 18
    assert found.table(EVIL, "value") == [(EVIL, "1.5"), ("b", "20")]
    assert found.labels() == [EVIL, EVIL]


def test_page_needs_nothing_else_and_is_accessible():
    source = render(page("Words"))
    found = HtmlPage(source)
    addresses = [
        value
        for tag, attributes in found.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action") and tag != "a"
    ]
    assert [a for a in addresses if not a.startswith(("data:", "#"))] == []
    assert "@import" not in source
    assert "url(http" not in source
    assert [level for level, _ in found.headings] == [1, 2, 2]
    assert ("html", {"lang": "en"}) in found.tags
    scopes = {a.get("scope") for tag, a in found.tags if tag == "th"}
    assert scopes == {"col", "row"}
    assert [a for tag, a in found.tags if tag == "td"] == [{"class": "number"}] * 2
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', source))
    assert used <= set(ids)


def test_figures_take_their_color_from_the_page():
    svg = to_svg(line, (4.2, 2.8), "p7-")
    root = xml.etree.ElementTree.fromstring(svg)
    assert root.get("viewBox") == "0 0 302.4 201.6"
    assert root.get("width") is None
    text = [e for e in root.iter() if e.tag.endswith("}text")]
    assert EVIL in [e.text for e in text]
    assert all("fill: currentColor" in e.get("style") for e in text)
    colors = set(re.findall(r"(?:fill|stroke): (#\w+)", svg))
    assert colors == {COLORS[0]}
    assert to_svg(line, (4.2, 2.8), "p7-") == svg  # nothing random, no date


def test_colors_are_legible_on_light_and_dark_pages():
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in channels
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = render(page("Words"))
    cards = re.findall(r"--card: (#\w{6})", style)
    assert len(cards) == 2
    for card in cards:
        for color in COLORS:
            bright, dark = sorted((luminance(card), luminance(color)), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 3, (card, color)


def test_interval_plot_has_a_row_per_name():
    picture = report.interval_plot(
        {"a": (1.0, 0.5), "b": (-2.0, 0.25)}, "gain", "c", 0.0
    )
    assert picture.alt == "gain: a 1 ± 0.5, b -2 ± 0.25."
    text = re.sub(r"<[^>]*>", " ", to_svg(picture.draw, picture.size, "p-")).split()
    assert {"a", "b", "gain"} <= set(text)


def test_a_page_is_written_completely_or_not_at_all(tmp_path):
    path = tmp_path / "page.html"
    report.write_page(page("Words"), path)
    before = path.read_text()
    assert before.startswith("<!DOCTYPE html>")

    def fail(fig):
        raise ZeroDivisionError

    broken = report.Section("x", (report.Picture(fail, "x"),))
    with pytest.raises(ZeroDivisionError):
        report.write_page(report.Page("x", (broken,)), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dark", [False, True])
def test_a_hostile_page_in_a_browser(tmp_path, dark):
    path = tmp_path / "page.html"
    report.write_page(page(), path)
    with browser() as chromium:
        chromium.open(path, 390, dark=dark)
        assert chromium.complaints() == []
        assert chromium.evaluate("document.title") == EVIL
        assert chromium.evaluate("document.querySelectorAll('script, img').length") == 0
        assert chromium.evaluate("document.documentElement.scrollWidth") == 390
        color = "getComputedStyle(document.querySelector('svg text')).fill"
        light = sum(map(int, re.findall(r"\d+", chromium.evaluate(color)))) > 380
        assert light == dark
