"""What the policy `measured` needs of the other settings, and what it cannot be combined with."""

from __future__ import annotations

from guard_core.rules.rule import Rule
from lab.errors import UserError

STEP = 0.06
"""Default step size of the other policies."""


def check_measured(
    rule: Rule,
    response: str | None,
    lr: float | None,
    step: float,
    unparseable: float,
    sampled: bool,
) -> None:
    """Check the settings of a run with the policy `measured`.

    Args:
        rule: rewards the responses.
        response: response file.
        lr: peak learning rate.
        step: step size of other policies, which must be left at its default.
        unparseable: chance that a response has no answer, which must be left at 0.
        sampled: the update is computed from the drawn samples.

    Raises:
        UserError: a setting is missing or cannot be combined with the policy.
    """
    for name, value in (("response", response), ("lr", lr)):
        if value is None:
            raise UserError(f"{name}: must be given with policy = measured")
    if not sampled:
        raise UserError("update = expected: policy = measured draws responses; use sampled")
    if unparseable:
        raise UserError(
            f"unparseable = {unparseable:g}: with policy = measured the response file has the "
            "unparseable responses; leave it at 0"
        )
    if step != STEP:
        raise UserError(f"step = {step:g}: policy = measured reads lr; leave step out")
    if rule.pays == "response":
        raise UserError(
            f"rule = {rule.name}: rewards single responses, policy = measured only rewards answers"
        )
    if rule.loss != "rewards":
        raise UserError(f"rule = {rule.name}: policy = measured needs a rule with rewards")
