"""Settings of a run as an arm, and an arm as settings; the same in both worlds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from guard_core import GuardConfig
from lab.arms import (
    ALL_ARMS,
    BASELINE,
    CUSTOM,
    MATCHED,
    SIMPLE,
    UNGUARDED,
    WITH_RULES,
    Arm,
    arm,
    can_combine,
    matched_target,
    title,
)
from lab.errors import UserError


class ArmSettings(Protocol):
    """The settings of a run that make its arm, in either world."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def guard(self) -> GuardConfig:
        """The guard, and where it takes labels from."""
        ...

    @property
    def labels(self) -> Literal["votes", "truth"]:
        """Train on the guard's labels or on the true answers."""
        ...

    @property
    def step_factor(self) -> float:
        """Constant factor on the learning rate."""
        ...

    @property
    def rule(self) -> str:
        """Name of the rule that rewards the responses."""
        ...

    @property
    def rule_options(self) -> dict[str, bool | int | float | str]:
        """Settings of that rule; those left out take its defaults."""
        ...

    @property
    def kl_coef(self) -> float:
        """Factor on the KL penalty to the start model."""
        ...

    @property
    def average(self) -> float:
        """Decay of the weights' moving average."""
        ...


Settings = TypeVar("Settings", bound=ArmSettings)


def with_arm(settings: Settings, arm: Arm) -> Settings:
    """Returns the settings with an arm's guard, labels, rule, factor on the step and own settings.

    The options of the rule are kept where the arm has the same rule.
    """
    options = settings.rule_options if arm.rule == settings.rule else {}
    return replace(
        settings,
        guard=arm.guard,
        labels=arm.labels,
        step_factor=arm.step_factor,
        rule=arm.rule,
        rule_options=options,
        **arm.settings,
    )


def arm_of(settings: ArmSettings, asked: str | None = None) -> Arm:
    """Returns the arm that settings are.

    Args:
        settings: of a run.
        asked: name of the arm that was asked for; it is kept where the settings are still those
            of that arm.

    Returns:
        A named arm; `custom`, or `RULE+custom`, where the guard is none of the named ones or the
        step size of an arm that is not plain TTRL has a factor.
    """
    factor = settings.step_factor
    own = (settings.rule, settings.guard, settings.labels)
    for name in (asked, *_names(settings.rule, factor)):
        known = None if name is None else _known(name, factor)
        if known is None or (known.rule, known.guard, known.labels) != own:
            continue
        if all(getattr(settings, field) == value for field, value in known.settings.items()):
            return known
    name = CUSTOM if settings.rule == BASELINE else f"{settings.rule}+{CUSTOM}"
    return Arm(name, title(name), settings.guard, settings.labels, factor, settings.rule)


def _names(rule: str, factor: float) -> tuple[str, ...]:
    """Names of the arms with a rule, the most usual first."""
    if factor != 1:
        return (MATCHED,) if rule == BASELINE else ()
    if rule == BASELINE:
        return tuple(dict.fromkeys((*ALL_ARMS, *UNGUARDED, *SIMPLE)))
    return (rule, *(f"{rule}+{other}" for other in WITH_RULES if can_combine(rule, other)))


def _known(name: str, factor: float) -> Arm | None:
    """The arm of that name; None where there is none, or the factor makes it another one."""
    try:
        return arm(name, factor) if factor == 1 or matched_target(name) else None
    except UserError:
        return None
