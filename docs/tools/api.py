"""Adds a page for every module to the site: its docstring, its names, the modules below it."""

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGES = ("guard_core", "lab", "sim", "real")


def sources(root: Path, name: str) -> dict[str, Path]:
    """The files of a package's public modules by dotted name, a package before its modules."""
    found = {}
    for path in root.glob(f"{name}/**/*.py"):
        dotted = ".".join(path.relative_to(root).with_suffix("").parts)
        if path.stem == "__init__" or "._" not in dotted:
            found[dotted.removesuffix(".__init__")] = path
    return dict(sorted(found.items()))


def page_of(name: str, path: Path) -> str:
    """Where the page of a module stands in the site's sources."""
    folder = "/".join(("api", *name.split(".")))
    return f"{folder}/index.md" if path.stem == "__init__" else f"{folder}.md"


def nav_of(name: str, found: dict[str, Path]) -> list:
    """Navigation below a package: its own page, then its modules and packages."""
    entries: list = [page_of(name, found[name])]
    for child in (c for c in found if c.rpartition(".")[0] == name):
        is_package = found[child].stem == "__init__"
        below = nav_of(child, found) if is_package else page_of(child, found[child])
        entries.append({child.rpartition(".")[2]: below})
    return entries


def exported(path: Path) -> dict[str, list[str]]:
    """Names that a package imports from its modules for its users, by module."""
    public, imports = (), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets) == "__all__":
            public = ast.literal_eval(node.value)
    return {n.module or "": [a.name for a in n.names if a.name in public] for n in imports}


def text_of(name: str, found: dict[str, Path]) -> str:
    """The page of a module; that of a package lists its modules and the names it exports."""
    path = found[name]
    if path.stem != "__init__":
        return f"# {name}\n\n::: {name}\n"
    lines = [f"# {name}", "", f"::: {name}", "    options: {members: false}", ""]
    names, folder = exported(path), page_of(name, path).removesuffix("index.md")
    for module in found:
        own = names.get(module, [])
        if module.rpartition(".")[0] == name or own:
            said = (ast.get_docstring(ast.parse(found[module].read_text())) or "").split("\n")[0]
            page = page_of(module, found[module]).removeprefix(folder)
            links = ", ".join(f"[`{n}`]({page}#{module}.{n})" for n in own)
            lines.append(f"* [`{module}`]({page}): {said}{f' **{links}**' if links else ''}")
    return "\n".join(lines)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages at the end of the navigation."""
    root = Path(config.config_file_path).parent
    entries = [{name: nav_of(name, sources(root, name))} for name in PACKAGES]
    config.nav = [*(config.nav or []), {"API": entries}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Write the pages."""
    root = Path(config.config_file_path).parent
    for package in PACKAGES:
        found = sources(root, package)
        for name, path in found.items():
            files.append(File.generated(config, page_of(name, path), content=text_of(name, found)))
    return files
