"""Which arm a name stands for beside the settings of a run: `--rule`, and the settings' guard."""

from __future__ import annotations

from dataclasses import replace

from lab.arms import BASELINE, GUARD, WITH_RULES, Arm
from lab.arms import arm as lab_arm
from sim.settings.config import SimConfig
from sim.studies.controls import CONTROLS, control


def under(name: str, rule: str) -> str:
    """The arm that `name` stands for where a rule is chosen: `guard` under SCOPE is `scope+guard`.

    Guards, label sources and their controls are those of the rule; other arms, such as `ttrl`,
    `truth` or a rule by name, are what they are.
    """
    if rule == BASELINE:
        return name
    if name in WITH_RULES:
        return f"{rule}+{name}"
    for kind in CONTROLS:
        target = GUARD if name == kind else name.removeprefix(f"{kind}_")
        if name.startswith(kind) and target in WITH_RULES:
            return f"{kind}_{rule}+{target}"
    return name


def has_own_guard(name: str) -> bool:
    """The arm's guard is that of the settings: `guard`, also under a rule."""
    return name == GUARD or name.endswith(f"+{GUARD}")


def named(name: str, config: SimConfig) -> Arm:
    """An arm or control by name; the arm `guard` has the guard of the settings.

    Raises:
        UserError: no arm has that name.
    """
    found = control(name)
    if found is not None:
        return found.arm
    plain = lab_arm(name)
    return replace(plain, guard=config.guard) if has_own_guard(name) else plain
