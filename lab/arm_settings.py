"""Settings of a run as an arm, an arm as settings, and the decisions that its problems get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from guard_core.decision import Treatment
from lab.base.arms import WITH_RULES, Arm, arm, matched_target, replayed_target, title
from lab.base.errors import UserError
from lab.base.named_arms import BASELINE, CUSTOM, NAMED_ARMS, OWN, PERMUTED

Settings = TypeVar("Settings")
"""Those of a run, in either world: a dataclass with guard, labels, rule, `rule_options`,
`step_factor`, and the fields that arms have values of their own for."""


def with_arm(settings: Settings, arm: Arm) -> Settings:
    """The settings with an arm's guard, labels, rule, factor on the step and own settings.

    The options of the rule are kept where the arm has the same rule.
    """
    made: Any = settings
    return replace(
        made,
        guard=arm.guard,
        labels=arm.labels,
        step_factor=arm.step_factor,
        rule=arm.rule,
        rule_options=made.rule_options if arm.rule == made.rule else {},
        **arm.settings,
    )


def arm_of(settings: Any, name: str | None = None) -> Arm:
    """The arm that settings of a run are: a named one, `custom` or `RULE+custom`.

    It is custom where the guard is none of the named ones or the step size of an arm that is not
    plain TTRL has a factor.

    Args:
        name: of the arm that was asked for; it is kept where the settings are still its own.
    """
    rule, factor = settings.rule, settings.step_factor
    # The most usual first.
    names = [*NAMED_ARMS] if rule == BASELINE else [rule, *(f"{rule}+{n}" for n in WITH_RULES)]
    for known_name in names if name is None else [name, *names]:
        if factor != 1 and not matched_target(known_name):
            continue
        try:
            known = arm(known_name, factor)
        except UserError:  # the rule has no such arm
            continue
        if (known.rule, known.guard, known.labels) != (rule, settings.guard, settings.labels):
            continue
        expected = {"treatment": OWN, **known.settings}
        if settings.treatment not in (OWN, PERMUTED):
            expected["treatment"] = settings.treatment if replayed_target(known.name) else OWN
        if all(getattr(settings, field) == value for field, value in expected.items()):
            return known
    name = CUSTOM if rule == BASELINE else f"{rule}+{CUSTOM}"
    return Arm(name, title(name), settings.guard, settings.labels, factor, rule)


class Treatments:
    """The setting `treatment` of a run (docs/method.md, section 12)."""

    def __init__(self, treatment: str, seed: int, replicates: Sequence[int], shape: Any) -> None:
        """Read the decisions to replay, if any.

        Args:
            treatment: `own`, `permuted`, or the folder of a finished run.
            replicates: numbers of this run's replicates, (R,).
            shape: (visits, N) of this run.

        Raises:
            UserError: the folder holds no finished run with these visits, or only the same seed.
        """
        self._permutes, self._stored_RVN = treatment == PERMUTED, None
        if treatment in (OWN, PERMUTED):
            return
        problem = f"treatment = {treatment}"
        if not Path(treatment).is_dir():
            wrong = "is neither own nor permuted nor the folder of a guard's run"
            raise UserError(f"{problem}: {wrong}")
        # Readers of tables are heavy, and nearly no arm replays another.
        from lab.base.columns import flags, floats, ints, select
        from lab.trace.trace import load

        trace = load(treatment)
        visits = select(trace.visits, ints(trace.visits, "visit") > 0)
        stored = trace.replicates
        if trace.run.status != "finished" or len(visits) != len(stored) * shape[0] * shape[1]:
            size = f"{shape[1]} problems, {shape[0]} visits"
            raise UserError(f"{problem}: needs a finished run of {size}")
        if not set(replicates) <= set(stored) or (len(stored) == 1 and trace.run.seeds == [seed]):
            raise UserError(f"{problem}: has no other seed to replay; name a run of another seed")
        order = np.lexsort([ints(visits, name) for name in ("problem", "visit", "replicate")])
        # Each replicate gets the decisions of the next one, the last those of the first.
        following = [(stored.index(number) + 1) % len(stored) for number in replicates]
        columns = floats(visits, "weight"), floats(visits, "beta"), flags(visits, "skipped")
        decisions = (c[order].reshape(len(stored), *shape)[following] for c in columns)
        self._stored_RVN = Treatment(*decisions)

    def __call__(
        self, decided: Treatment, problems: NDArray[Any], visit: Any, draws: NDArray[Any] | None
    ) -> Treatment:
        """Return the treatment of a batch in place of its own.

        Args:
            decided: (P,) or (R, P), by the guard.
            visit: number of the visit, from 1, of all problems or of each.
            draws: uniform numbers of the problems; only needed to permute.
        """
        if self._stored_RVN is None:
            if not self._permutes:
                return decided
            assert draws is not None  # who permutes gives them
            return decided.permuted(problems, draws)
        row = np.arange(len(problems))[:, None] if problems.ndim == 2 else 0
        return Treatment(*(stored[row, visit - 1, problems] for stored in self._stored_RVN))
