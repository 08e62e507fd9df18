"""Text is escaped unless a function of `lab.report.html` made it."""

import pytest

from lab.report.html import Html, definitions, join, table, tag, text


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tag("p", "a < b & c", tag("b", "<i>")), "<p>a &lt; b &amp; c<b>&lt;i&gt;</b></p>"),
        (tag("p", class_='" onclick="x'), '<p class="&quot; onclick=&quot;x"></p>'),
        (tag("p", hidden=True, title=None, data_figure="a"), '<p hidden data-figure="a"></p>'),
        (tag("meta", charset="utf-8"), '<meta charset="utf-8">'),
        (join(["a", None, 0, text(3.5)]), "a03.5"),
        (definitions([("k", "<v>")]), "<dl><dt>k</dt><dd>&lt;v&gt;</dd></dl>"),
    ],
)
def test_text_is_escaped_and_markup_is_not(made, expected):
    assert made == expected and isinstance(made, Html)


def test_table_names_rows_and_columns():
    found = table(("", "<A>"), [("row", 1)])
    assert '<th scope="col">&lt;A&gt;</th>' in found
    assert '<th scope="row">row</th><td>1</td>' in found
