"""The arms of every comparison: a rule, its labels, its guard and a factor on the step size.

An arm is one of the named ones, a rule of `guard_core.rules` by its name (`scope`), or a rule under
one of the named guards or label sources (`scope+guard`, `scope+memory`). Every guarded arm has a
control at matched effort, `matched_scope+guard`; `matched` is that of `guard`.

Settings of its own stand behind an arm's name, `guard: flip_rate=instant, theta_MR=.5`. The arm's
name is then `guard,flip_rate=instant,theta_MR=0.5`: one name for each set of settings, which can be
the name of a folder (`split_settings`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from guard_core.config import KINDS, SCRIPTS, ConfigError, GuardConfig
from guard_core.rules import RULES
from guard_core.rules.rule import Rule
from lab.base.errors import UserError
from lab.base.named_arms import (
    BASELINE,
    CEILING,
    CONTROLS,
    CUSTOM,
    GUARD,
    MATCHED,
    NAMED_ARMS,
    OWN,
    RANDOM_SKIP,
    REPLAYED,
    VOTE,
    NamedArm,
)
from lab.base.settings import hint, readings

Labels = Literal["votes", "truth"]
DEFAULT_GUARD = GuardConfig.paper()
"""Stands for the guard of settings that do not mention one. It is recognised by identity, since an
equal guard that was given is kept under every rule."""
USUAL = GuardConfig().flat() | {"kl_coef": 0.0, "ema_decay": 0.0, "treatment": OWN}
"""The settings that an arm can have, with their usual values."""
WITHOUT_GUARD = frozenset(
    {"tie_break", "label_from", "discount", "hysteresis", "advantage_scale", "negative_scale"}
    | {"brake", "brake_on", "brake_above", "kl_coef", "ema_decay"}
)
"""Settings that act without the guard's three parts, so that an arm's unguarded twin has them."""
DEMO_ARMS = ("ttrl", "guard", "matched", "frozen", "memory")
ALL_ARMS = (*DEMO_ARMS, "memory_guard", "truth")
UNGUARDED = {name: one.unguarded for name, one in NAMED_ARMS.items() if one.unguarded}
"""Guarded arm to the same arm without a guard."""
WITH_RULES = (*UNGUARDED, "frozen", "memory")
"""Arms that a rule with a label can be combined with, as `RULE+ARM`."""
VARIANT = " ("
"""Begins the settings in which an arm's runs of one comparison differ (`lab.compare.families`)."""
_KNOWN = NAMED_ARMS | {
    RANDOM_SKIP: NamedArm(
        "TTRL at random skips",
        "TTRL that skips visits at random, as many as the guard skips: what skipping does by "
        "itself.",
    ),
    CUSTOM: NamedArm(
        "Custom guard", "An arm with settings of its own, which stand with the runs below."
    ),
    VOTE: NamedArm("Vote before training", "No training: the majority of the start model's votes."),
}
"""The named arms, and what else has a title and a description under a name."""


def guard_of(guard: GuardConfig, rule: type[Rule] | None) -> GuardConfig:
    """The guard that settings mean.

    `DEFAULT_GUARD`, which they do not mention, is the paper's guard for plain TTRL and that of the
    rule alone for any other rule. The rule is None where the settings name none that exists.
    """
    if guard is not DEFAULT_GUARD:
        return guard
    # A copy: settings that were made have a guard of their own, whatever rule they get later.
    return replace(guard) if rule is None or rule.name == BASELINE else guard_alone(rule)


def guard_alone(rule: type[Rule]) -> GuardConfig:
    """Return the settings under which a rule stands alone: it labels, and nothing is held back."""
    # A rule that trains nothing is read by the votes of all its visits.
    trains = rule.loss != "none"
    return GuardConfig.off() if trains else GuardConfig.off().set(label_from="memory")


def misfit(rule: Rule | type[Rule], guard: GuardConfig, labels: Labels) -> str | None:
    """Reason why a rule cannot be combined with a guard or labels; None if it can.

    The reason continues a sentence that begins with the rule's name.
    """
    if not rule.has_label and (guard.acts or guard.labels.label_from != "current"):
        return "has no label that a guard or memory could work on"
    if rule.loss == "none" and guard.acts:
        return "trains nothing that a guard could hold back"
    if guard.labels.label_from == "frozen" and not rule.follows_label:
        return "makes new labels on every visit, so that none can be frozen"
    if labels == "truth" and not (rule.has_label and rule.follows_label):
        return "does not use a given label, so that true ones change nothing"
    return None


def check_measured_rule(rule: Rule) -> None:
    """Refuse rules that the policy `measured` cannot train."""
    if rule.loss != "rewards":
        raise UserError(f"rule = {rule.name}: policy = measured needs a rule with rewards")


def check_fit(rule: Rule, guard: GuardConfig, labels: Labels) -> None:
    """Refuse settings that a rule cannot stand under, in the words of `misfit`."""
    if (reason := misfit(rule, guard, labels)) is None:
        return
    remedy = f"take --arm {rule.name}, or --profile off with guard.label_from = current"
    if labels == "truth" and misfit(rule, guard, "votes") is None:
        remedy = "take labels = votes"
    raise UserError(f"rule = {rule.name}: {reason}; {remedy}")


def split_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an arm without its own settings, and these in the order of `USUAL`.

    A UserError where one is none that an arm can have, or is there twice.
    """
    if not re.match(r"[\w+]+\s*[:,]", name):
        return name, {}
    base, *words = re.split("[:,]", name)
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or key not in USUAL or key in settings:
            what = "is there twice" if key in settings else "is no setting of an arm"
            raise UserError(f"arm {name!r}: {key!r} {what}; give some as 'guard: W=3, theta_MR=.5'")
        # A text that means no such value is kept, for the checks to refuse.
        fits = (read for read in readings(value) if type(read) is type(USUAL[key]))
        settings[key] = next(fits, value)
    return base.strip(), {key: settings[key] for key in USUAL if key in settings}


def own_of(name: str) -> tuple[str, dict[str, Any]]:
    """As `split_settings`; any other name, as a run folder may hold it, has no settings."""
    try:
        return split_settings(name)
    except UserError:
        return name, {}


def joined(base: str, settings: Mapping[str, Any]) -> str:
    """Return the name of an arm with settings of its own."""
    return ",".join([base, *(f"{key}={value}" for key, value in settings.items())])


def with_own(guard: GuardConfig, settings: Mapping[str, Any]) -> GuardConfig:
    """Return a guard with those of an arm's own settings that are the guard's."""
    return guard.set(**{key: settings[key] for key in settings if key in KINDS})


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, the same in both worlds (docs/method.md, section 12)."""

    name: str
    title: str
    guard: GuardConfig
    labels: Labels = "votes"
    """`truth` trains on the true answers: the ceiling, which no label-free rule can pass."""
    step_factor: float = 1.0
    """Constant factor on the learning rate."""
    rule: str = "ttrl"
    """Name of the rule that pays the responses, see `guard_core.rules`."""
    settings: Mapping[str, float | str] = field(default_factory=dict)
    """Other settings of the run that the arm has values of its own for, such as `kl_coef`."""

    def values(self) -> dict[str, Any]:
        """The settings of a run that the arm decides, but its step factor, as plain values."""
        guard = self.guard.to_dict()
        return {"guard": guard, "labels": self.labels, "rule": self.rule, **self.settings}


def with_rule(name: str, rule: str) -> str:
    """Returns the name of the arm that a name stands for where a rule is chosen.

    Under SCOPE, `guard` is `scope+guard` and `matched` is `matched_scope+guard`. Arms that are not
    a guard, a label source or one of their controls, such as `ttrl`, keep their name.
    """
    name, settings = split_settings(name)
    if rule != BASELINE and name in WITH_RULES:
        name = f"{rule}+{name}"
    for kind in CONTROLS if rule != BASELINE else ():
        if (target := control_target(name, kind)) in WITH_RULES:
            name = f"{kind}_{rule}+{target}"
    return joined(name, settings)


def for_cell(name: str, cell: str | None) -> str:
    """The name of the arm that a name stands for on a cell of the paper, such as a preset.

    `guard_release` and its controls lack FRS where that script does (`guard_core.config.SCRIPTS`).
    """
    base, settings = split_settings(name)
    if not base.endswith("guard_release") or SCRIPTS.get(cell or "", {"frs": True})["frs"]:
        return name
    return joined(base, {"frs": False, **settings})


def replayed_target(name: str) -> str | None:
    """The guarded arm whose decisions an arm replays; None where it makes its own."""
    base, settings = own_of(name)
    usual = NAMED_ARMS[base].settings.get("treatment", OWN) if base in NAMED_ARMS else OWN
    if settings.pop("treatment", usual) != REPLAYED:
        return None
    return joined(GUARD if base == REPLAYED else base, settings)


def arm(name: str, step_factor: float = 1.0) -> Arm:
    """An arm by name: a named arm, a rule, or `RULE+ARM`, with or without settings of its own.

    A UserError where no arm has that name, the rule has no labels, trains on none, or makes new
    ones on every visit, so that the named arm has nothing to act on; or an own setting is wrong.
    """
    base, settings = split_settings(name)
    name = joined(base, settings)
    target = control_target(name, MATCHED)
    if target not in (None, GUARD):
        plain = arm(without_guard(name, target), step_factor)
        arm(target)  # a guard that cannot be has no control either
        return replace(plain, name=name, title=title(name))
    if settings:
        named = arm(base, step_factor)
        try:
            guard = with_own(named.guard, settings)
        except ConfigError as error:
            raise UserError(f"arm {name!r}: {error}") from error
        if reason := misfit(RULES[named.rule], guard, named.labels):
            raise UserError(f"arm {name!r}: {RULES[named.rule].title} {reason}")
        others = {key: value for key, value in settings.items() if key not in KINDS}
        settings = {**named.settings, **others}
        return replace(named, name=name, title=title(name), guard=guard, settings=settings)
    rule, other = _split(name)
    if rule is None or other not in NAMED_ARMS:
        raise UserError(
            f"arm {name!r}: unknown{hint(name, (*NAMED_ARMS, *RULES))}; use one of "
            f"{', '.join(NAMED_ARMS)}; "
            f"a rule: {', '.join(RULES)}; or RULE+ARM with an arm of {', '.join(WITH_RULES)}"
        )
    guard, labels = NAMED_ARMS[other].guard, "truth" if other == CEILING else "votes"
    reason = misfit(rule, guard, labels)
    if rule.loss != "rewards":
        reason = f"has no rewards that {other} could work on"
    if other == BASELINE:
        guard = guard_alone(rule)
    elif reason:
        raise UserError(f"arm {name!r}: {rule.title} {reason}")
    settings = NAMED_ARMS[name].settings if name in NAMED_ARMS else {}
    return Arm(name, title(name), guard, labels, step_factor, rule.name, settings)


def title(name: str) -> str:
    """The name shown to readers; unknown names are shown as they are."""
    if name in _KNOWN:
        return _KNOWN[name].title
    plain, mark, differing = name.partition(VARIANT)
    if mark:
        return title(plain) + mark + differing
    if (target := matched_target(name)) is not None:
        return f"{title(str(unguarded(target)))} at matched effort of {title(target)}"
    base, settings = own_of(name)
    if settings:
        return f"{title(base)} ({', '.join(f'{key} = {value}' for key, value in settings.items())})"
    rule, other = _split(name)
    if rule is None:
        return name
    if other == CUSTOM:
        return f"{rule.title} + {_KNOWN[CUSTOM].title.lower()}"
    return rule.title if other == BASELINE else f"{rule.title} + {NAMED_ARMS[other].title}"


def arm_order(names: Iterable[str]) -> list[str]:
    """The distinct arms in the order of their table, in which they are shown; others last."""
    given = set(names)
    return [name for name in _KNOWN if name in given] + sorted(given - _KNOWN.keys())


def about(name: str) -> str:
    """What an arm is trained on, in a sentence or two; settings of its own are not read."""
    name, _ = own_of(_of_variant(name))
    if name in _KNOWN:
        return _KNOWN[name].about
    if (target := matched_target(name)) is not None:
        return f"Moves as far per step as {title(target)}, without its guard: a control of effort."
    if name.startswith(f"{RANDOM_SKIP}_"):
        return "Skips visits at random, as many as the guard that it is named after: a control."
    rule = rule_of(name)
    if rule is None:
        return _KNOWN[CUSTOM].about
    doc = (RULES[rule].__doc__ or "").split("\n\n")[0].replace("`", "")
    return f"{title(name)}. {' '.join(doc.split())}"


def rule_of(name: str) -> str | None:
    """Name of the rule that pays an arm's responses; None where none of that name is known."""
    name = _of_variant(name)
    rule, _ = _split(own_of(matched_target(name) or name)[0])
    return None if rule is None else rule.name


def _of_variant(name: str) -> str:
    return name.partition(VARIANT)[0]


def control_target(name: str, kind: str) -> str | None:
    """The arm that a control of a kind is named after; None where no such control has the name."""
    if own_of(name)[0] == kind:
        return GUARD + name.removeprefix(kind)
    target = name.removeprefix(f"{kind}_")
    return None if target == name else target


def matched_target(name: str) -> str | None:
    """The guarded arm that an arm is matched to; None where it is no arm at matched effort."""
    target = control_target(name, MATCHED)
    return None if target is None or unguarded(target) is None else target


def without_guard(control: str, target: str) -> str:
    """The arm that a control of a target runs; a UserError where the target has no guard."""
    if (plain := unguarded(target)) is not None:
        return plain
    known = f"{', '.join(UNGUARDED)}, or RULE+ one of them"
    raise UserError(f"arm {control!r}: {target} is no guard, use one of {known}")


def unguarded(name: str) -> str | None:
    """The arm without its guard; None where it has none."""
    base, settings = own_of(name)
    rule, other = _split(base)
    if rule is None or other not in UNGUARDED or "treatment" in settings:
        return None
    plain = UNGUARDED[other]
    if rule.name != BASELINE:
        plain = rule.name if plain == BASELINE else f"{rule.name}+{plain}"
    return joined(plain, {key: settings[key] for key in settings if key in WITHOUT_GUARD})


def is_guarded(name: str) -> bool:
    """The arm has a guard, be it a custom one; its controls and all other arms have none."""
    base, settings = own_of(_of_variant(name))
    # By the last part alone: the rule before it may be one that only its run knew.
    has_guard = base.rpartition("+")[2] in (*UNGUARDED, CUSTOM) and not base.startswith(CONTROLS)
    return has_guard and "treatment" not in settings


def is_ceiling(name: str) -> bool:
    """The arm trains on the true answers."""
    return own_of(_of_variant(name))[0] == CEILING


def rivals(names: Iterable[str]) -> list[str]:
    """The trained arms that a guard should beat: all without one, except the ceiling."""
    return [n for n in names if not is_guarded(n) and not is_ceiling(n) and trains(n)]


def trains(name: str) -> bool:
    """The arm changes the model; False for `VOTE` and `maj_at_n`, whose answers are votes."""
    return name != VOTE and RULES[rule_of(name) or BASELINE].loss != "none"


def _split(name: str) -> tuple[type[Rule] | None, str]:
    """Rule and named arm of a name; no rule where the name is none."""
    if name in NAMED_ARMS:
        return RULES[BASELINE], name
    rule, plus, other = name.partition("+")
    if rule not in RULES or rule == BASELINE:
        return None, ""
    if plus and other not in (*WITH_RULES, CUSTOM):
        return None, ""
    return RULES[rule], other or BASELINE
