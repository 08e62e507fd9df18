"""Text is escaped unless a function of `lab.report.html` made it."""

from lab.report.html import Html, definitions, join, table, tag, text


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "a < b & c", tag("b", "<i>")) == "<p>a &lt; b &amp; c<b>&lt;i&gt;</b></p>"
    assert text(3.5) == "3.5"
    assert isinstance(text("<"), Html)


def test_attributes_cannot_be_left():
    assert tag("p", class_='" onclick="x') == '<p class="&quot; onclick=&quot;x"></p>'
    assert tag("p", hidden=True, title=None, data_figure="a") == '<p hidden data-figure="a"></p>'


def test_empty_elements_have_no_end():
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_nothing_is_left_out_but_none():
    assert join(["a", None, 0]) == "a0"


def test_table_names_rows_and_columns():
    found = table(("", "<A>"), [("row", 1)])
    assert '<th scope="col">&lt;A&gt;</th>' in found
    assert '<th scope="row">row</th><td>1</td>' in found


def test_definitions():
    assert definitions([("k", "<v>")]) == "<dl><dt>k</dt><dd>&lt;v&gt;</dd></dl>"
