"""Rules in Python files of a user's own, which the setting `rules` names."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from guard_core.rules import RULES, Rule
from lab.base.errors import UserError, first_line, refusing
from lab.base.named_arms import CONTROLS, CUSTOM, NAMED_ARMS, VOTE

_LOADED: set[str] = set()


def load_rules(files: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """Import files and enter their rules into `guard_core.rules.RULES`; once per content.

    Args:
        files: paths, or names as this function returns them.

    Returns:
        Names for a run's settings, `PATH#DIGEST`: any process that reads them has the same rules.

    Raises:
        UserError: a file cannot be read or imported, holds no rule, has changed since its digest
            was taken, or a rule has the name of another one or of an arm.
    """
    listed = [files] if isinstance(files, str | Path) else files
    return tuple(_load(str(file)) for file in listed)


def _load(name: str) -> str:
    words, *digest = re.split(r"#(?=[0-9a-f]{16}\Z)", name)
    path = Path(words).resolve()
    with refusing(f"rules: {path} cannot be read"):
        content = path.read_bytes()
    now = hashlib.sha256(content).hexdigest()[:16]
    if digest and digest != [now]:
        raise UserError(f"rules: {path} has changed since the run was started; put it back")
    name = f"{path}#{now}"
    if name in _LOADED:
        return name
    module_name = f"own_rules_{now}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"rules: {path} is no Python file; give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # where dataclasses look up their types
    taken = {*RULES, *NAMED_ARMS, CUSTOM, VOTE}
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:  # others show the line of the file by themselves
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"rules: {path} cannot be imported ({reason})") from error
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    rules = dict.fromkeys(k for k in kinds if issubclass(k, Rule) and k.__module__ == module_name)
    if not rules:
        raise UserError(f"rules: {path} holds no subclass of guard_core.rules.Rule")
    for kind in rules:
        rule = str(getattr(kind, "name", ""))
        if rule in taken or not rule.isidentifier() or rule.startswith(CONTROLS):
            raise UserError(
                f"rules: {path}: {kind.__name__} needs a name of its own, not {rule}, which is "
                "that of another rule or arm, or none; use letters, digits and _"
            )
        taken.add(rule)
        kind.title = str(getattr(kind, "title", rule))
    RULES.update({kind.name: kind for kind in rules})
    _LOADED.add(name)
    return name
