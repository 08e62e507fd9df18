"""The settings of the embedded tasks."""

from __future__ import annotations

from typing import Literal

from lab.errors import UserError

TinyTask = Literal["arithmetic", "collatz"]


def check_tiny(
    problems: str | None,
    task: TinyTask,
    verifies: bool,
    seed: int = 0,
    judging_rule: str | None = None,
) -> None:
    """Refuse settings of the embedded tasks that contradict others.

    Args:
        problems: the setting `problems`.
        task: the setting `tiny_task`.
        verifies: the setting `tiny_verifies`.
        seed: the setting `problem_seed`.
        judging_rule: name of the rule, if that asks the model to judge responses.

    Raises:
        UserError: they do.
    """
    given = {"tiny_task": task, "tiny_verifies": verifies, "problem_seed": seed}
    for name, value in given.items():
        if problems is not None and value not in ("arithmetic", 0):
            raise UserError(
                f"{name} = {str(value).lower()}: problems = {problems} are not the tiny task; "
                "leave one of the two out"
            )
    if verifies and task != "arithmetic":
        raise UserError(
            f"tiny_verifies = true: no model of tiny_task = {task} was taught to judge; leave one "
            "of the two out"
        )
    if judging_rule is not None and problems is None and not verifies:
        raise UserError(
            f"rule = {judging_rule!r}: the model of the tiny task cannot judge a response; take "
            "the one that was taught it with --tiny-verifies, or a language model that follows "
            "instructions with --model and --problems"
        )
