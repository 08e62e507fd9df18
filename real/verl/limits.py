"""Rules and guards that the plugin does not have. Imports neither torch nor verl."""

from __future__ import annotations

from guard_core.rcsu import skip_cap
from lab.errors import UserError
from real.settings.config import TrainConfig, rule_of


def check_plugin(settings: TrainConfig) -> None:
    """Refuse rules that read more than votes, and guards that verl cannot follow.

    Raises:
        UserError: the plugin cannot train with these settings.
    """
    rule, guard = rule_of(settings), settings.guard
    if rule.needs or rule.loss != "rewards":
        wants = ", ".join(sorted(rule.needs)) or "no rewards"
        raise UserError(
            f"guard.rule = {settings.rule}: works on {wants}, and the plugin on votes alone; take "
            "ttrl, srt, mm_upt, empo or scrl, or run it by guard-train"
        )
    if guard.brake < 1:
        raise UserError(
            f"guard.brake = {guard.brake:g}: verl has a learning rate of its own; leave it at 1"
        )
    if guard.min_share > 0 and guard.skip_by == "drop":
        raise UserError(
            f"guard.min_share = {guard.min_share:g}: could skip all problems of a batch, which "
            "verl cannot train without; take guard.skip_by = mask"
        )
    size = settings.batch_size
    if guard.rcsu and guard.skip_by == "drop" and skip_cap(size, guard) >= size:
        raise UserError(
            f"guard.skip_share = {guard.skip_share}: could skip all {size} problems of a batch, "
            "which verl cannot train without; take a smaller one"
        )
