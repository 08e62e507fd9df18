"""The API pages are complete: what the packages hold is what the pages list."""

import pkgutil

COMMANDS = {"__main__", "cli"}


def test_public_modules_are_found(tool, pytestconfig):
    api = tool("api")
    assert api.PACKAGES == ("guard_core", "lab", "sim", "real")
    for package in api.PACKAGES:
        folder = pytestconfig.rootpath / package
        direct = {found.name for found in pkgutil.iter_modules([str(folder)])}
        listed = {name.split(".")[1] for name in api.modules(folder)}
        assert listed == direct - COMMANDS


def test_every_module_stands_on_one_page(tool, pytestconfig):
    api = tool("api")
    root = pytestconfig.rootpath
    for package in api.PACKAGES:
        folder = root / package
        shown = api._contents(root, package)
        own = set(api.modules(folder))
        inner = {f"{package}.{sub}" for sub in api.subpackages(folder)}
        below = {name for name in own if any(name == s or name.startswith(f"{s}.") for s in inner)}
        listed = {line.split()[1] for line in shown.splitlines() if line.startswith(":::")}
        assert listed == own - below
        for sub in inner:
            assert f"[`{sub}`]({package}/{sub.split('.')[1]}.md): " in shown


def test_commands_and_hidden_modules_are_left_out(tool, tmp_path):
    folder = tmp_path / "pack"
    for name in ("__init__", "open", "_hidden", "cli", "some_cli", "sub/__init__", "sub/command"):
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text('"""What it is.\n\nMore."""\n')
    api = tool("api")
    assert api.modules(folder) == ["pack.open", "pack.sub"] and api.subpackages(folder) == ["sub"]
    assert api.summary(folder / "open.py") == "What it is."
