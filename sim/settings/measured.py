"""Checks of the settings of the policy `measured`: required ones, and impossible combinations."""

from __future__ import annotations

from typing import Literal

from guard_core.rules.rule import Rule
from lab.errors import UserError

STEP = 0.06
"""Default step size of the other policies."""

Part = Literal["leak", "own", "others"]
"""Parts of the measured dynamics that can be switched off, see `sim.world.measured.parts`."""


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


def check_parts(parts_off: tuple[Part, ...], mini_batch: int, average: float) -> None:
    """Check the parts that are switched off.

    Raises:
        UserError: nothing would be left to learn from, or a part is named twice.
    """
    given = f"parts_off = {', '.join(parts_off)}"
    if len(set(parts_off)) < len(parts_off):
        raise UserError(f"{given}: name each part at most once")
    if {"own", "others"} <= set(parts_off):
        raise UserError(f"{given}: without own and others no update has an effect; name one")
    if {"own", "others"} & set(parts_off) and average > 0:
        raise UserError(f"{given}: own and others have no average of weights; leave average at 0")
    if {"own", "others"} & set(parts_off) and mini_batch > 1:
        raise UserError(f"{given}: own and others need mini_batch = 1, and it is {mini_batch}")
