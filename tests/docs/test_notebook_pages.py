"""Notebooks as pages of the site: outputs, links, figures without a network."""

import os
import subprocess
import sys

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

CODE = """
import pandas as pd, plotly.graph_objects as go
go.Figure(go.Scatter(x=[1, 2], y=[3, 1], name="</script><b>&amp;")).show()
pd.DataFrame({"a < b": [7]})
"""


@pytest.fixture
def built(tmp_path, pytestconfig):
    """Build a site of one notebook, with the plugin and the hook as in this project's settings."""
    root = pytestconfig.rootpath
    settings = (root / "mkdocs.yml").read_text().replace("!ENV [NOTEBOOKS, true]", "true")
    plugins = next(p for p in yaml.safe_load(settings)["plugins"] if "mkdocs-jupyter" in p)
    config = {
        "site_name": "x", "strict": True, "theme": {"name": "material", "font": False},
        "hooks": [str(root / "docs" / "tools" / "notebooks.py")], "plugins": [plugins],
        "nav": ["index.md", "other.md", "notebooks/one.ipynb"],
    }  # fmt: skip
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    for name in ("docs", "notebooks"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[one](../notebooks/one.ipynb)\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## Part\n")
    head = new_markdown_cell(
        "# Title\n\nSee [other](../docs/other.md#part), [home](../docs/index.md)."
    )
    cells = [head, new_code_cell(CODE)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "one.ipynb")
    return tmp_path


def build(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "-q"]
    environment = os.environ | {"PLOTLY_RENDERER": "notebook"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_page_needs_no_network_and_its_links_work(built, browser):
    done = build(built)
    assert done.returncode == 0, done.stderr
    site = built / "site"
    assert 'href="notebooks/one/"' in (site / "index.html").read_text()
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((site / "notebooks" / "one" / "index.html").as_uri())
    opened.wait_for_selector(".js-plotly-plot .scatterlayer")
    assert opened.locator("table.dataframe th").nth(1).inner_text() == "a < b"
    outside = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors and not outside
    for name, link in (("other", "other/#part"), ("home", "")):
        target = opened.get_by_role("link", name=name, exact=True).last.evaluate("a => a.href")
        assert target == f"{site.as_uri()}/{link}"
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.evaluate(wide) <= 0
    opened.close()
