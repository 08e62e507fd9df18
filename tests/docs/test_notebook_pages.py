"""Notebooks as pages: outputs, out-of-date copies, figures without a network."""

import re
import subprocess
import sys

import nbformat
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.figures.style import styled

FIGURE = "application/vnd.plotly.v1+json"
TABLE = (
    "<div>\n<style scoped>\n  .dataframe {x: y}\n\n</style>\n"
    '<table border="1" class="dataframe">\n  <tr><td>7 &lt; 8</td></tr>\n</table>\n</div>'
)


def figure():
    drawn = go.Figure(go.Scatter(x=[1, 2], y=[3, 1], name="</script><b>&amp;"))
    return styled(drawn, 300).to_plotly_json()


def outputs():
    return [
        new_output("stream", name="stdout", text="a <b> c\n\nd"),
        new_output("execute_result", {"text/html": TABLE, "text/plain": "7"}),
        new_output("display_data", {FIGURE: figure(), "text/html": "<p>no</p>"}),
        new_output("execute_result", {"text/plain": "'<i>'"}),
    ]


def notebook(code, results=()):
    head = new_markdown_cell("# Title\n\nSee [alarm](../docs/index.md).")
    return new_notebook(cells=[head, new_code_cell(code, outputs=list(results))])


@pytest.fixture
def folder(tmp_path):
    """A docs project of its own with one notebook and its executed copy."""
    for name in ("docs", "notebooks", "build/notebooks"):
        (tmp_path / name).mkdir(parents=True)
    nbformat.write(notebook("1 + 1"), tmp_path / "notebooks" / "one.ipynb")
    nbformat.write(notebook("1 + 1", outputs()), tmp_path / "build" / "notebooks" / "one.ipynb")
    return tmp_path


def page(tool, folder):
    parts = folder / "notebooks" / "one.ipynb", folder / "build" / "notebooks" / "one.ipynb"
    return tool("notebooks").page(*parts)


def test_outputs_follow_their_code(tool, folder):
    text = page(tool, folder)
    assert text.startswith("# Title\n\n!!! note") and "[alarm](../index.md)" in text
    assert "```python\n1 + 1\n```" in text
    assert '<pre class="nb-output">a &lt;b&gt; c\n\nd</pre>' in text
    assert '<div class="nb-table"><div><table><tr><td>7 &lt; 8</td></tr></table></div>' in text
    assert '<pre class="nb-output">&#x27;&lt;i&gt;&#x27;</pre>' in text


def test_a_figure_cannot_end_its_script(tool, folder):
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page(tool, folder))
    assert "<" not in data and "\\u003c/script\\u003e" in data
    assert "<p>no</p>" not in page(tool, folder)


def test_without_a_copy_of_the_same_code_the_code_stands_alone(tool, folder):
    nbformat.write(notebook("1 + 2"), folder / "notebooks" / "one.ipynb")
    other = page(tool, folder)
    (folder / "build" / "notebooks" / "one.ipynb").unlink()
    assert page(tool, folder) == other
    assert "1 + 2" in other and "nb-output" not in other and "make docs" in other


def test_an_error_in_a_copy_is_an_error(tool, folder):
    failed = new_output("error", ename="KeyError", evalue="x", traceback=[])
    nbformat.write(notebook("1 + 1", [failed]), folder / "build" / "notebooks" / "one.ipynb")
    with pytest.raises(ValueError, match="KeyError: x"):
        page(tool, folder)


def test_figures_are_drawn_without_a_network(folder, browser, pytestconfig):
    docs = pytestconfig.rootpath / "docs"
    for name in ("notebook.js", "docs.css"):
        (folder / "docs" / name).write_text((docs / "assets" / name).read_text())
    (folder / "docs" / "index.md").write_text("# Home\n")
    (folder / "mkdocs.yml").write_text(
        "site_name: x\nstrict: true\ntheme: {name: material, font: false}\n"
        f"hooks: [{docs / 'tools' / 'notebooks.py'}]\n"
        "markdown_extensions: [admonition]\n"
        "extra_css: [docs.css]\nextra_javascript: [notebook.js]\n"
        "nav: [index.md, notebooks/one.md]\n"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "-q"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((folder / "site" / "notebooks" / "one" / "index.html").as_uri())
    opened.wait_for_selector(".nb-figure .js-plotly-plot .scatterlayer")
    assert opened.locator(".nb-table td").inner_text() == "7 < 8"
    assert not errors and all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.evaluate(wide) <= 0
    opened.close()
