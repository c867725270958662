"""What a report contains, read with the parser of the standard library."""

import html.parser


class HtmlPage(html.parser.HTMLParser):
    """Tags, text and tables of a page.

    Attributes:
      tags: names and attributes of all tags, in order.
      tables: rows of cells of each table, the first row its header.
      text: all text outside of styles.
      headings: level and text of each heading.
    """

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.tags, self.tables, self.headings = [], [], []
        self.text, self._inside = "", []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "path", "use", "image", "rect"):
            self._inside.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append([int(tag[1]), ""])

    def handle_endtag(self, tag):
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data):
        if "style" in self._inside:
            return
        self.text += data
        if self._inside and self._inside[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if self._inside and self._inside[-1] in ("h1", "h2", "h3"):
            self.headings[-1][1] += data

    def names(self):
        """Names of all tags."""
        return {tag for tag, _ in self.tags}

    def labels(self):
        """Descriptions of all figures."""
        return [a["aria-label"] for _, a in self.tags if a.get("role") == "img"]

    def table(self, *header):
        """Rows of the table that has this header, without it."""
        (found,) = (t for t in self.tables if tuple(t[0]) == header)
        return [tuple(row) for row in found[1:]]
