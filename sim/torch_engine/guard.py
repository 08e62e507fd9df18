"""The guard of a run by guard_core on tensors: what `sim.engine.reference` is on NumPy arrays."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from guard_core import (
    Decision,
    Draws,
    Guard,
    GuardConfig,
    GuardState,
    Route,
    Votes,
    answer_advantages,
    policy_streams,
)
from guard_core.arrays import divide, ordered_sum
from guard_core.votes import choose_label
from sim.engine.expected import expected_samples
from sim.engine.reference import DECIDED, PLAIN
from sim.settings.config import SimConfig

_FIELDS = tuple(f.name for f in fields(GuardState))
_TYPES = {"label": torch.int32, "route": torch.int8}
"""Columns whose type in the trace is not that of the decision on every setting."""


class Step(NamedTuple):
    """What the policy is moved by, see `sim.engine.gradient.Update`."""

    gradient_RPA: Tensor
    drop_RP: Tensor


class Epoch(NamedTuple):
    """What an epoch's decisions need, in visiting order."""

    order_RN: Tensor
    truth_RN: Tensor
    draws: Draws


class TorchGuard:
    """Decides batch by batch; what it saw is put together at the end of the epoch.

    Nothing here asks the device for a number, so a GPU is never waited for.
    """

    def __init__(self, config: SimConfig, device: torch.device) -> None:
        """Start before any vote."""
        self._config = config
        self._guard = Guard(config.guard)
        self._ids_A = torch.arange(config.n_answers, device=device)
        self.state = self._guard.init(
            config.n_problems,
            torch.empty(0, dtype=torch.float64, device=device),
            leading=(config.replicates,),
            n_answers=config.n_answers,
        )

    def prime(self, votes: Votes, epoch: Epoch) -> dict[str, Tensor]:
        """Take in the votes before training, of all problems in their own order.

        Returns:
            Columns of `sim.engine.rows.SEEN`, as `end` does.
        """
        self.state = self._guard.prime(self.state, votes, epoch.draws)
        nobody_RN = torch.full_like(self.state.label, -1)
        vote = choose_label(votes, votes.counts, nobody_RN, epoch.draws.tie, PLAIN)
        rate_RN = divide(vote.got.to(torch.float64), self._config.n_votes)
        nothing_RN = torch.zeros_like(rate_RN)
        no_RN = torch.zeros_like(vote.tied)
        return self._tally(votes.counts, epoch.truth_RN) | {
            "majority": vote.label,
            "label": self.state.label.clone(),
            "flipped": no_RN,
            "tie": vote.tied,
            "match_rate": rate_RN,
            "flip_rate": nothing_RN,
            "mean_match_rate": torch.full_like(rate_RN, torch.nan),
            "had_competition": no_RN,
            "route": torch.zeros_like(self.state.label, dtype=torch.int8),
            "weight": torch.ones_like(rate_RN),
            "beta": nothing_RN,
            "n_minority": torch.zeros_like(self.state.label, dtype=torch.int16),
            "skipped": no_RN,
        }

    def begin(self, epoch: Epoch) -> None:
        """Start an epoch: the state's rows come in visiting order, so that a batch is a view."""
        self._epoch = epoch
        self._rows = self.state.take(epoch.order_RN)
        self._done: list[GuardState] = []
        self._seen: list[dict[str, Tensor]] = []
        self._counts: list[Tensor] = []

    def step(self, at: slice, votes: Votes, p_RPA: Tensor) -> Step:
        """Decide on one batch.

        Args:
            at: its visits.
            votes: of the batch.
            p_RPA: the probabilities that the votes were drawn from.
        """
        c = self._config
        rows = GuardState(*(getattr(self._rows, name)[:, at] for name in _FIELDS))
        every = self._epoch.draws
        draws = Draws(every.tie[:, at], every.skip[:, at], every.pick[:, at])
        rows, decision = self._guard.step(rows, votes, draws)
        self._done.append(rows)
        self._counts.append(votes.counts)
        seen = {name: getattr(decision, field) for name, field in DECIDED.items()}
        self._seen.append(seen | {"minority": decision.minority})
        if c.labels == "truth":
            decision = self._trained_on(decision, self._epoch.truth_RN[:, at])
        if c.update == "expected":
            expected_RPA = expected_samples(p_RPA, 1.0 - c.unparseable, c.n_samples)
            votes = replace(votes, samples=expected_RPA)
        step = gradient(votes, decision, p_RPA, c.guard)
        return self._sit_out(draws.skip, seen, step) if c.skip_rate else step

    def end(self) -> dict[str, Tensor]:
        """End the epoch.

        Returns:
            Columns of `sim.engine.rows.SEEN`, (R, N) in visiting order.
        """
        joined = (torch.cat([getattr(s, name) for s in self._done], 1) for name in _FIELDS)
        self.state = self.state.put(self._epoch.order_RN, GuardState(*joined))
        seen = {name: torch.cat([s[name] for s in self._seen], 1) for name in self._seen[0]}
        seen = {name: column.to(_TYPES.get(name, column.dtype)) for name, column in seen.items()}
        counts_RNA = torch.cat(self._counts, 1)
        seen["n_minority"] = seen.pop("minority").sum(-1, dtype=torch.int16)
        seen["majority"] = self._majority(counts_RNA, seen["label"])
        return seen | self._tally(counts_RNA, self._epoch.truth_RN)

    def _majority(self, counts_RNA: Tensor, label_RN: Tensor) -> Tensor:
        """Winner of this visit's votes, whatever the labels are taken from."""
        if self._config.guard.label_from == "current":
            return label_RN
        votes = Votes(counts_RNA, counts_RNA, self._config.n_votes, self._config.n_samples)
        return choose_label(votes, counts_RNA, label_RN, self._epoch.draws.tie, PLAIN).label

    def _tally(self, counts_RNA: Tensor, truth_RN: Tensor) -> dict[str, Tensor]:
        """Right and unparseable votes."""
        right_RN1 = counts_RNA.gather(-1, truth_RN[..., None])
        parsed_RN = counts_RNA.sum(-1, dtype=torch.int32)
        return {"right": right_RN1[..., 0], "n_unparseable": self._config.n_votes - parsed_RN}

    def _trained_on(self, decision: Decision, label_RP: Tensor) -> Decision:
        """The decision with another label, which is then no minority candidate."""
        others_RPA = self._ids_A != label_RP[..., None]
        return replace(decision, label=label_RP, minority=decision.minority & others_RPA)

    def _sit_out(self, draws_RP: Tensor, seen: dict[str, Tensor], step: Step) -> Step:
        """`sim.engine.skips.sit_out`; the columns of the batch in `_seen` are replaced."""
        out_RP = draws_RP < self._config.skip_rate
        routes_RP = torch.where(out_RP, int(Route.SKIPPED), seen["route"])
        self._seen[-1] |= {"skipped": seen["skipped"] | out_RP, "route": routes_RP}
        gone_RP = step.drop_RP | out_RP if self._config.guard.skip_by == "drop" else step.drop_RP
        return Step(torch.where(out_RP[..., None], 0.0, step.gradient_RPA), gone_RP)


def gradient(votes: Votes, decision: Decision, p_RPA: Tensor, config: GuardConfig) -> Step:
    """The guard's decision as a gradient in the logits, see `sim.engine.gradient`.

    Args:
        votes: of the batch; the samples may be expected ones.
        decision: of the batch; its label is what is trained on.
        p_RPA: the probabilities that the votes were drawn from.
        config: of the guard.
    """
    pair = answer_advantages(votes.samples, votes.n_samples, decision, config)
    streams = policy_streams(*pair, decision, config)
    pay_RPA = votes.samples * (streams.majority + streams.minority)[..., :-1]
    scale_RP = (streams.weight / votes.n_samples).masked_fill(streams.drop, 0.0)
    # From left to right, as compiled code adds: what should cancel leaves the same remainder.
    mean_RPA = p_RPA * ordered_sum(pay_RPA)[..., None]
    return Step(scale_RP[..., None] * (pay_RPA - mean_RPA), streams.drop)
