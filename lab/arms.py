"""The arms of every comparison: a rule, its labels, its guard and a factor on the step size.

An arm is one of the named ones, a rule of `guard_core.rules` by its name (`scope`), or a rule under
one of the named guards or label sources (`scope+guard`, `scope+memory`). Every guarded arm has a
control at matched effort, `matched_scope+guard`; `matched` is that of `guard`.

A rule named without a guard is the rule alone: `scope` trains without a guard, whether the name
stands in `--arm`, in `--rule`, in a settings file or in Python. Only plain TTRL is guarded by
default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from guard_core.config import GuardConfig
from guard_core.rules.named import RULES
from guard_core.rules.rule import Rule
from lab.errors import UserError
from lab.rule_fit import BASELINE, guard_alone, misfit


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, the same in both worlds (docs/method.md, section 12)."""

    name: str
    title: str
    guard: GuardConfig
    labels: Literal["votes", "truth"] = "votes"
    """`truth` trains on the true answers: the ceiling, which no label-free rule can pass."""
    step_factor: float = 1.0
    """Constant factor on the learning rate."""
    rule: str = "ttrl"
    """Name of the rule that pays the responses, see `guard_core.rules`."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Other settings of the run that the arm has values of its own for, such as `kl_coef`."""


GUARD = "guard"
MATCHED = "matched"
RANDOM_SKIP = "random_skip"
"""Control that skips as many visits as a guard, at random; only in the simulator."""
CONTROLS = (MATCHED, RANDOM_SKIP)
CUSTOM = "custom"
"""An arm that none of the names stands for; under a rule `RULE+custom`."""
DEMO_ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
ALL_ARMS = (*DEMO_ARMS, "memory_guard", "truth")

_OFF = GuardConfig.off

_ARMS: dict[str, tuple[str, Callable[[], GuardConfig], Literal["votes", "truth"]]] = {
    "ttrl": ("TTRL", _OFF, "votes"),
    "guard": ("TTRL-Guard", GuardConfig.paper, "votes"),
    "release": ("TTRL-Guard (release)", GuardConfig.release, "votes"),
    "frs": ("FRS only", lambda: GuardConfig.only("frs"), "votes"),
    "mps": ("MPS only", lambda: GuardConfig.only("mps"), "votes"),
    "rcsu": ("RCSU only", lambda: GuardConfig.only("rcsu"), "votes"),
    "matched": ("TTRL at matched effort", _OFF, "votes"),
    "frozen": (
        "Frozen labels",
        lambda: GuardConfig(frs=False, mps=False, rcsu=False, label_from="frozen"),
        "votes",
    ),
    "memory": (
        "Vote memory",
        lambda: GuardConfig(frs=False, mps=False, rcsu=False, label_from="memory"),
        "votes",
    ),
    "memory_guard": (
        "Vote memory + guard",
        lambda: GuardConfig(label_from="memory"),
        "votes",
    ),
    "truth": ("True labels (ceiling)", _OFF, "truth"),
    "positive": ("Positive only", lambda: replace(_OFF(), negative_scale=0.0), "votes"),
    "early_stop": ("Early stopping", lambda: replace(_OFF(), brake=0.0), "votes"),
    "braked": ("Braked learning rate", lambda: replace(_OFF(), brake=0.5), "votes"),
    "kl": ("KL penalty", _OFF, "votes"),
    "memory_kl": (
        "Vote memory + KL penalty",
        lambda: replace(_OFF(), label_from="memory"),
        "votes",
    ),
    "averaged": ("Averaged weights", _OFF, "votes"),
    "recommended": ("Recommended", GuardConfig.recommended, "votes"),
}
_SETTINGS: dict[str, dict[str, float]] = {
    "kl": {"kl_coef": 0.2},
    "memory_kl": {"kl_coef": 0.2},
    "averaged": {"average": 0.95},
    "recommended": {"kl_coef": 0.05},
}
SIMPLE = ("positive", "early_stop", "braked", *_SETTINGS)
"""The alternatives to a guard, other than the labels that an arm trains on, and the recommended
arm (docs/method.md, section 16)."""


UNGUARDED = {
    GUARD: BASELINE,
    "release": BASELINE,
    "frs": BASELINE,
    "mps": BASELINE,
    "rcsu": BASELINE,
    "memory_guard": "memory",
}
"""Guarded arm to the same arm without a guard."""
WITH_RULES = (*UNGUARDED, "frozen", "memory")
"""Arms that a rule with a label can be combined with, as `RULE+ARM`."""
_OTHER_TITLES = {RANDOM_SKIP: "TTRL at random skips", CUSTOM: "Custom guard"}


def under(name: str, rule: str) -> str:
    """Returns the name of the arm that a name stands for where a rule is chosen.

    Under SCOPE, `guard` is `scope+guard` and `matched` is `matched_scope+guard`. Arms that are not
    a guard, a label source or one of their controls, such as `ttrl`, keep their name.
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


def arm(name: str, step_factor: float = 1.0) -> Arm:
    """An arm by name.

    Args:
        name: a named arm, a rule, or `RULE+ARM`.
        step_factor: on the learning rate.

    Raises:
        UserError: no arm has that name, or the rule has no labels, trains on none, or makes
            new ones on every visit, so that the named arm has nothing to act on.
    """
    target = matched_target(name)
    if target not in (None, GUARD):
        arm(target)  # a guard that cannot be has no control either
        plain = arm(str(unguarded(target)), step_factor)
        return replace(plain, name=name, title=title(name))
    rule, other = _split(name)
    if rule is None or other not in _ARMS:
        raise UserError(
            f"arm {name!r}: unknown, use one of {', '.join(_ARMS)}; a rule: "
            f"{', '.join(RULES)}; or RULE+ARM with an arm of {', '.join(WITH_RULES)}"
        )
    if reason := _refusal(rule, other):
        raise UserError(f"arm {name!r}: {rule.title} {reason}")
    _, guard, labels = _ARMS[other]
    chosen = guard_alone(rule) if other == BASELINE else guard()
    return Arm(name, title(name), chosen, labels, step_factor, rule.name, _SETTINGS.get(name, {}))


def can_combine(rule: str, other: str) -> bool:
    """Return whether `RULE+ARM` is an arm.

    Args:
        rule: name of a rule.
        other: one of `WITH_RULES`.
    """
    return _refusal(RULES[rule], other) is None


def title(name: str) -> str:
    """The name shown to readers; unknown names are shown as they are."""
    if name in _ARMS:
        return _ARMS[name][0]
    target = matched_target(name)
    if target is not None:
        return f"{title(str(unguarded(target)))} at matched effort of {title(target)}"
    rule, other = _split(name)
    of_rule, plus, last = name.partition("+")
    if plus and last == CUSTOM and of_rule in RULES:
        return f"{RULES[of_rule].title} + {_OTHER_TITLES[CUSTOM].lower()}"
    if rule is None:
        return _OTHER_TITLES.get(name, name)
    return rule.title if other == BASELINE else f"{rule.title} + {_ARMS[other][0]}"


def rule_of(name: str) -> str | None:
    """Name of the rule that pays an arm's responses; None where `arm` knows no such arm."""
    rule, _ = _split(matched_target(name) or name)
    return None if rule is None else rule.name


def matched_target(name: str) -> str | None:
    """The guarded arm that an arm is matched to; None where it is no arm at matched effort."""
    if name == MATCHED:
        return GUARD
    target = name.removeprefix(f"{MATCHED}_")
    return target if target != name and unguarded(target) is not None else None


def unguarded(name: str) -> str | None:
    """The arm without its guard; None where it has none."""
    rule, other = _split(name)
    if rule is None or other not in UNGUARDED:
        return None
    plain = UNGUARDED[other]
    if rule.name == BASELINE:
        return plain
    return rule.name if plain == BASELINE else f"{rule.name}+{plain}"


def _refusal(rule: type[Rule], other: str) -> str | None:
    """Reason why a rule cannot be combined with a named arm; None where it can."""
    if other == BASELINE:
        return None
    if rule.loss != "rewards":
        return f"has no rewards that {other} could work on"
    _, guard, labels = _ARMS[other]
    return misfit(rule, guard(), labels)


def _split(name: str) -> tuple[type[Rule] | None, str]:
    """Rule and named arm of a name; no rule where the name is none."""
    if name in _ARMS:
        return RULES[BASELINE], name
    rule, plus, other = name.partition("+")
    if rule not in RULES or rule == BASELINE:
        return None, ""
    if plus and other not in WITH_RULES:
        return None, ""
    return RULES[rule], other or BASELINE
