"""Makes a page of every notebook, with its outputs where an executed copy of it exists.

The copies lie in `build/notebooks` (see `execute.py`). One whose cells differ from the notebook's
is out of date and left aside: the page then shows the code alone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import plotly
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url
from nbformat import NotebookNode

PLOTLY = "assets/plotly.min.js"
FIGURE = "application/vnd.plotly.v1+json"

_BUNDLE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_FIGURE_MARK = '<div class="nb-figure"'
_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)
_ONLY_CODE = (
    "Shown without its outputs: `make docs` executes the notebooks before it builds the site."
)
_SMALL = (
    "Executed at small size, with few problems and seeds: intervals are wide, and numbers in the "
    "text that name other sizes come from the linked pages."
)


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Point links to notebooks, which work in the repository, to their pages of the site."""
    return re.sub(r"\]\(\.\./notebooks/(\w+)\.ipynb", r"](notebooks/\1.md", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks' pages, and the plotting library once."""
    root = Path(config.config_file_path).parent
    sources = sorted((root / "notebooks").glob("*.ipynb"))
    for source in sources:
        content = page(source, root / "build" / "notebooks" / source.name)
        own = f"notebooks/{source.stem}.md"
        file = File.generated(config, own, content=content)
        if _FIGURE_MARK in content:
            library = get_relative_url(PLOTLY, file.url)
            script = f'\n\n<script src="{library}"></script>\n'
            file = File.generated(config, own, content=content + script)
        files.append(file)
    if sources:
        files.append(File.generated(config, PLOTLY, abs_src_path=str(_BUNDLE)))
    return files


def page(source: Path, executed: Path) -> str:
    """A notebook as Markdown, with the outputs of its executed copy if that exists."""
    notebook = nbformat.read(source, as_version=4)
    note = _ONLY_CODE
    if executed.exists():
        copy = nbformat.read(executed, as_version=4)
        if _sources(copy) == _sources(notebook):
            notebook, note = copy, _SMALL
    head, *cells = notebook.cells
    note = f'!!! note ""\n    The notebook `notebooks/{source.name}`. {note}'
    # The note stands below the title, which is the first line of the first cell.
    title, _, rest = _text(head).partition("\n")
    return "\n\n".join([title, note, rest, *(part for cell in cells for part in _cell(cell))])


def _sources(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def _text(cell: NotebookNode) -> str:
    # In the repository the docs are a sibling folder of the notebooks, on the site the parent.
    return cell.source.replace("](../docs/", "](../")


def _cell(cell: NotebookNode) -> Iterator[str]:
    if cell.cell_type != "code":
        yield _text(cell)
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        yield _output(output)


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return _plain(output.text)
    if output.output_type == "error":
        raise ValueError(f"a notebook stopped with {output.ename}: {output.evalue}")
    data = output.data
    if FIGURE in data:
        return _figure(data[FIGURE])
    if "text/html" in data:
        return _table(data["text/html"])
    return _plain(data["text/plain"])


def _plain(text: str) -> str:
    return f'<pre class="nb-output">{html.escape(text.rstrip())}</pre>'


def _table(markup: str) -> str:
    """A data frame's own table without its style, in a box that scrolls on a phone."""
    markup = _STYLE.sub("", markup).replace(' border="1" class="dataframe"', "")
    lines = (line.strip() for line in markup.splitlines())
    return f'<div class="nb-table">{"".join(lines)}</div>'


def _figure(figure: dict[str, Any]) -> str:
    """The figure's data, drawn by `assets/notebook.js`; `<` could end the script element."""
    data = json.dumps({name: figure[name] for name in ("data", "layout")})
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    height = int(figure["layout"].get("height", 400))
    return (
        f'{_FIGURE_MARK}><div style="height:{height}px"></div>'
        f'<script type="application/json">{data}</script></div>'
    )
