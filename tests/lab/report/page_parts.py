"""The parts of a page: its outline, its text, the data of its figures."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

PER_WORLD = ("fates", "paired", "progress", "window", "lost", "scissor", "guard")
"""Sections with a figure of each comparison."""


class Outline(HTMLParser):
    """Elements, headings and links of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.headings, self.ids, self.links, self.sources = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        self.sources += [values["src"]] if "src" in values else []
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


def outline(content):
    found = Outline()
    found.feed(content)
    return found


def without_scripts(content):
    return re.sub(r"<(script|style)\b.*?</\1>", "", content, flags=re.DOTALL)


def figures_of(content):
    found = re.findall(r'<script type="text/plain" id="([^"]+-data)">(.*?)</script>', content)
    return {name: json.loads(zlib.decompress(base64.b64decode(data))) for name, data in found}
