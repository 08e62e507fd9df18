"""Faults of a training that its own numbers show, without any true answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.base.errors import UserError
from real.record.journal import Journal

_FORGOTTEN, _BATCH = 0.05, 4
"""Mean match rate of a batch below which its labels get almost no vote, and the problems with
answers that it needs: the label of a single one, as at an epoch's end, may miss all votes."""
_ROUNDING = {"float32": 1e-6, "bfloat16": 0.02}
"""Precision to the largest `mismatch_kl` that rounding explains, in nats a token.

Measured on the models of `trial._ROUNDING`, on 16 responses of 24 tokens at temperature 0.6: at
most 2e-10 in float32; 0.0003 in bfloat16, but 0.008 where rounding sends tokens to other experts
(mixtral) or the model scales its logits (granite). Caches that are not read and wrong positions
gave 0.08 to 0.9 (mamba, rwkv, roberta), which `max_mismatch` = 0.1 mostly ends.
"""
_REPEATED = 0.25
"""Share of votes that repeat the question, from which on it is what the policy learns."""
_FEW, _PROBLEMS = 1 / 8, 8
"""Share of the different labels before training below which labels are few; with so many problems
a single label for all is too."""


def check_mismatch(log: Journal, row: Mapping[str, Any], dtype: str, allowed: float) -> None:
    """Give notice of an engine that samples otherwise than the trainer scores.

    UserError where the mismatch of the batch whose row of the steps this is is more than `allowed`.
    `dtype` is what the model computes with; its weights may be wider where they are sharded.
    """
    kl, explained = row["mismatch_kl"], _ROUNDING[dtype]
    measured = f"{kl:.2g} nats a token in batch {row['step']}"
    if kl > allowed:
        raise UserError(
            f"mismatch_kl = {measured}: the engine samples from another distribution than the "
            "trainer scores; take another engine, or go on with a larger max_mismatch"
        )
    if kl > explained:
        log.alarm(
            "mismatch_kl",
            f"= {measured}, and rounding explains {explained:g}: engine and trainer differ; "
            "compare with engine = 'transformers', or set old_logprobs = 'trainer'",
        )


def check_unread(share: float, allowed: float) -> None:
    """A UserError where more than a share `allowed` of a batch's problems have no readable vote."""
    if share > allowed:
        raise UserError(
            f"no vote holds an answer in {share:.0%} of a batch's problems; lower lr, read the "
            "last number where there is no box by --extract flexible, or go on with --max-unread 1"
        )


def check_flips(share: float, lr: float | None, below: float | None) -> None:
    """A UserError where at least a share `below` of all labels flipped at visit 2."""
    if below is not None and share >= below:
        raise UserError(
            f"{share:.0%} of the labels flipped at visit 2, flips_below = {below:g}: start again "
            f"with --lr {(lr or 0) / 3:.3g}"
        )


def watch_labels(log: Journal, row: Mapping[str, Any], n_problems: int) -> None:
    """Give notice of labels that nobody votes for, of few ones, and of repeated questions."""
    rate, n_labels, step = row["majority_ratio"], row["n_labels"], row["step"]
    if rate < _FORGOTTEN and row["n_problems"] - row.get("n_unread", 0) >= _BATCH:
        log.alarm(
            "match rate",
            f"{rate:.3f} in batch {step}: almost no vote is for its label, so that nearly nothing "
            "is rewarded; start again with a lower lr, or without vote memory",
        )
    if row.get("repeated", 0) >= _REPEATED:
        log.alarm(
            "answers",
            f"repeat a formula of their question in {row['repeated']:.0%} of the votes of batch "
            f"{step}: it equals its value, so that nothing need be computed; start again with "
            "--answer-check strings, or ask in words",
        )
    before = log.manifest.extra.get("n_labels_before", 0)
    if n_problems >= _PROBLEMS and (n_labels == 1 or n_labels < _FEW * before):
        log.alarm(
            "labels",
            f"are {n_labels} different ones for {n_problems} problems in batch {step}, {before} "
            "before training: the policy answers alike whatever is asked; start again with a lower "
            "lr or another arm",
        )
