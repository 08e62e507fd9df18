"""Links of pages that the site's own check does not see: README, change log, notebooks."""

import re
from urllib.parse import urlsplit

import pytest
from test_command_lines import PAGES, ROOT, text_of

PAGES = [ROOT / "CHANGELOG.md", *PAGES]
# [text](target) and ![text](target); code is taken out first.
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")
BARE = re.compile(r"https?://[^\s)>\]\"'`]*[^\s)>\]\"'`.,;]")
CODE = re.compile(r"```.*?```|`[^`\n]*`|^ {4}.*$", re.DOTALL | re.MULTILINE)


def prose(path):
    return CODE.sub("", text_of(path))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_point_to_files(path):
    relative = [target for target in LINK.findall(prose(path)) if not urlsplit(target).scheme]
    # The pages below api/ are made from the modules with their names.
    files = [re.sub(r"^api/(.+)\.md", r"../\1.py", t.partition("#")[0]) for t in relative]
    assert [name for name in files if not (path.parent / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_external_links_are_well_formed(path):
    named = [target for target in LINK.findall(prose(path)) if urlsplit(target).scheme]
    for url in {*named, *BARE.findall(prose(path))}:
        parts = urlsplit(url)
        assert parts.scheme in ("http", "https", "mailto"), url
        assert parts.scheme == "mailto" or re.fullmatch(r"[\w.-]+(:\d+)?", parts.netloc), url


def test_the_readme_shows_pictures_of_fair_size():
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(pictures) == 1
    for words, name in pictures:
        assert len(words) > 20
        picture = (ROOT / name).read_text(encoding="utf-8")
        assert len(picture) < 100_000
        assert "<script" not in picture and not re.search(r'href="(?!#)', picture)
