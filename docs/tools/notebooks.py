"""Adds the notebooks to the site, where mkdocs-jupyter executes them, and mends their links."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


@event_priority(100)  # before the plugin looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks, which in the repository are beside the docs and on the site below them."""
    root = Path(config.config_file_path).parent
    for path in sorted(root.glob("notebooks/*.ipynb")):
        name, into = str(path.relative_to(root)), (config.site_dir, config.use_directory_urls)
        files.append(File(name, str(root), *into))
    return files


def on_page_markdown(markdown: str, **others: object) -> str:
    """Point links to notebooks to their pages."""
    return markdown.replace("](../notebooks/", "](notebooks/")


def on_page_content(html: str, page: Page, **others: object) -> str:
    """Point a notebook's links to the docs, tell its size, and leave out MathJax, a download."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    html = re.sub(r"<script[^>]*mathjax[^>]*></script>", "", html, flags=re.IGNORECASE)
    html = re.sub(r'href="\.\./docs/(\w+)\.md', r'href="../../\1/', html)
    html = html.replace('href="../../index/', 'href="../../')
    return f"<p><em>Executed at small size: intervals are wide.</em></p>{html}"
