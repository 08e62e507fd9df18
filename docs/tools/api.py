"""The API pages: every public module of a package, found in its folder.

A package's page ends with the list of its sub-packages and all its own modules. Each sub-package
gets a page of its own, so that no page grows too long. Command lines are left out, they explain
themselves with `--help`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

PACKAGES = ("guard_core", "lab", "sim", "real")
_COMMANDS = ("cli", "command")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every sub-package."""
    root = Path(config.config_file_path).parent
    for package in PACKAGES:
        for sub in subpackages(root / package):
            own = [name for name in modules(root / package) if _is_in(name, f"{package}.{sub}")]
            text = f"# {package}.{sub}\n\n{_all(own)}"
            name = f"api/{package}/{sub}.md"
            page = File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **others: Any) -> str:
    """Add what is in a package to the end of its page."""
    own = [package for package in PACKAGES if page.file.src_uri == f"api/{package}.md"]
    root = Path(config.config_file_path).parent
    return "\n\n".join([markdown, *(_contents(root, package) for package in own)])


def modules(folder: Path) -> list[str]:
    """Dotted names of the public modules under a package's folder, the package itself left out."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        hidden = any(part.startswith("_") for part in parts)
        if hidden or parts[-1] in _COMMANDS or parts[-1].endswith("_cli") or len(parts) < 2:
            continue
        found.append(".".join(parts))
    return found


def subpackages(folder: Path) -> list[str]:
    """Names of the public packages directly in a package's folder."""
    inner = (path.parent.name for path in folder.glob("*/__init__.py"))
    return sorted(name for name in inner if not name.startswith("_"))


def summary(file: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _contents(root: Path, package: str) -> str:
    folder = root / package
    lines, own = [], modules(folder)
    for sub in subpackages(folder):
        own = [name for name in own if not _is_in(name, f"{package}.{sub}")]
        text = summary(folder / sub / "__init__.py")
        lines.append(f"* [`{package}.{sub}`]({package}/{sub}.md): {text}")
    return "\n".join([*lines, "", _all(own)])


def _all(names: list[str]) -> str:
    return "\n\n".join(f"::: {name}" for name in names)
