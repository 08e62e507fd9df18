"""The plugin on the newest verl: what moved since the locked one, and which tests fail.

    make newest-verl

installs the newest verl into build/newest-verl and compares it with the one of .venv-verl: first
versions, then all names of verl and TransferQueue that the plugin imports, overrides or calls. Then
it runs the tests there. The exit code is that of the tests, or 1 where a name is gone.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCKED, NEWEST = ROOT / ".venv-verl", ROOT / "build" / "newest-verl"
FREED = ("verl", "transferqueue")
"""Packages of which the newest release is taken."""
TOLD = (*FREED, "ray", "tensordict", "torch", "transformers", "numpy", "hydra-core", "omegaconf")


def main() -> int:
    """Install, compare, test."""
    install()
    env = {**os.environ, "GUARD_VERL_ANY": "1", "PYTHONPATH": str(ROOT)}
    old, new = (versions(place) for place in (LOCKED, NEWEST))
    moved = [
        f"{name} {old.get(name)} -> {new.get(name)}" for name in TOLD if old[name] != new[name]
    ]
    print(f"versions: {', '.join(moved) or 'none moved'}", flush=True)
    before, after = (points_of(place, env) for place in (LOCKED, NEWEST))
    gone = [name for name in before if name not in after]
    for name in gone:
        print(f"gone: {name}")
    for name in (name for name in before if name in after):
        (signature, body), (now, then) = before[name], after[name]
        if signature != now:
            print(f"signature: {name}{signature} -> {now}")
        elif body != then:
            print(f"body: {name}")
    print(f"of {len(before)} names that the plugin uses, {len(gone)} are gone", flush=True)
    tests = [NEWEST / "bin" / "python", "-m", "pytest", "-rfE", "--tb=short", "tests/on_verl"]
    code = subprocess.run(tests, cwd=ROOT, env=env, check=False).returncode
    return code or int(bool(gone))


def install() -> None:
    """Make a fresh environment with the newest verl, and the locked torch and test tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["real"], *extras["verl"]]
    needs = [need for need in needs if not need.startswith(project["name"])]
    needs = [name if (name := name_of(need)) in FREED else need for need in needs]
    locked = (ROOT / "requirements-verl.txt").read_text().splitlines()
    needs += [line for line in locked if name_of(line) in ("torch", "pytest", "psutil")]
    shutil.rmtree(NEWEST, ignore_errors=True)
    subprocess.run([LOCKED / "bin" / "python", "-m", "venv", NEWEST], check=True)
    pip = [NEWEST / "bin" / "python", "-m", "pip", "install", "-q"]
    subprocess.run([*pip, *needs], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)


def name_of(requirement: str) -> str:
    """Return the normalised name of the package that a requirement names."""
    name = re.split(r"[^\w.-]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(place: Path) -> dict[str, str]:
    """Return the versions of an environment's packages."""
    listed = [place / "bin" / "python", "-m", "pip", "list", "--format", "json"]
    done = subprocess.run(listed, capture_output=True, check=True, text=True)
    return {name_of(found["name"]): found["version"] for found in json.loads(done.stdout)}


def points_of(place: Path, env: dict[str, str]) -> dict[str, list[str]]:
    """Return `points` as the environment's own Python sees them."""
    command = [place / "bin" / "python", __file__, "points"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def points() -> dict[str, tuple[str, str]]:
    """Return signature and digest of the source of every name that the plugin uses of verl."""
    found: dict[str, tuple[str, str]] = {}
    for file in sorted((ROOT / "real" / "verl").rglob("*.py")):
        for name, value in used(ast.parse(file.read_text(encoding="utf-8"))):
            found[name] = described(value)
    return found


def used(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield what a module imports of verl and its queue, and which attributes of these it uses."""
    known = dict(imported(tree))
    yield from known.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from attributes(known.get(node.value.id), {node.attr})
        elif isinstance(node, ast.ClassDef):
            inner = list(ast.walk(node))
            names = {part.attr for part in inner if isinstance(part, ast.Attribute)}
            names |= {part.name for part in inner if isinstance(part, ast.FunctionDef)}
            for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
                yield from attributes(known.get(base), names - set(dir(object)))


def imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield name, full name and value of what a module imports of verl and its queue."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for alias in node.names:
            module = getattr(node, "module", None)
            full = alias.name if module is None else f"{module}.{alias.name}"
            if full.partition(".")[0] in ("verl", "transfer_queue"):
                with contextlib.suppress(ImportError, AttributeError):
                    yield alias.asname or alias.name, (full, pkgutil.resolve_name(full))


def attributes(owner: tuple[str, Any] | None, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an imported value that have one of these names."""
    full, value = owner or ("", None)
    found = sorted(name for name in names if owner and hasattr(value, name))
    yield from ((f"{full}.{name}", getattr(value, name)) for name in found)


def described(value: Any) -> tuple[str, str]:
    """Return a value's signature, and a digest of its source; empty for what has none."""
    value = inspect.unwrap(value) if callable(value) else value
    try:
        source = inspect.getsource(value)
        signature = str(inspect.signature(value))
    except (TypeError, ValueError, OSError):
        return "", ""
    return signature, hashlib.sha256(source.encode()).hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:] == ["points"]:
        print(json.dumps(points()))
    else:
        sys.exit(main())
