"""Settings of the trainer on verl: their names there, and those that the plugin refuses."""

from __future__ import annotations

import re
from pathlib import Path

from guard_core.rcsu import skip_cap
from lab.base.errors import UserError
from real.settings.config import TrainConfig, rule_of

TEMPLATE = Path(__file__).with_name("cell.sh").read_text(encoding="utf-8")
"""The script of `guard-verl config`, with names in braces for values."""
VERL_NAMES = {own: verls for verls, own in re.findall(r"^  ([\w.]+)=\{(\w+)\}$", TEMPLATE, re.M)}
"""The trainer's name of a setting, or one of the script's own, to verl's."""
LOSSES = {
    "dapo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""Average of the loss, the trainer's name to verl's."""


def check_plugin(settings: TrainConfig) -> None:
    """Refuse rules that read more than votes, and what verl cannot follow.

    Raises:
        UserError: the plugin cannot train with these settings.
    """
    rule, guard, size = rule_of(settings), settings.guard, settings.batch_size
    if rule.needs or rule.loss != "rewards":
        wants = ", ".join(sorted(rule.needs)) or "no rewards"
        raise UserError(
            f"guard.rule = {settings.rule}: works on {wants}, and the plugin on votes alone; take "
            "ttrl, srt, mm_upt, empo or scrl, or run it by guard-train"
        )
    for name, value, without in (
        ("guard.brake", guard.brake, 1.0),
        ("average", settings.average, 0.0),
    ):
        if value != without:
            raise UserError(
                f"{name} = {value:g}: verl has no such thing; leave it at {without:g}, or run it "
                "by guard-train"
            )
    skips_all = guard.min_share > 0 or (guard.rcsu and skip_cap(size, guard) >= size)
    if skips_all and guard.skip_by == "drop":
        raise UserError(
            f"guard.min_share = {guard.min_share:g}, guard.skip_share = {guard.skip_share:g}: "
            f"could skip all {size} problems of a batch, which verl cannot train without; take "
            "guard.skip_by = mask"
        )
