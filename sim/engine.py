"""The simulation: R replicates side by side, one batch of problems after the other.

Before training every problem is voted on once (visit 0). Then each epoch visits all problems in a
fresh order per replicate, in batches: votes are drawn from the policy, the guard decides, and the
policy takes one gradient step per problem that was not skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import (
    Decision,
    Draws,
    Guard,
    GuardConfig,
    GuardState,
    Votes,
    answer_advantages,
    policy_streams,
)
from guard_core.votes import choose_label
from lab.errors import UserError
from sim.config import SimConfig
from sim.gradient import logit_gradient
from sim.policies import make_policy
from sim.populations import draw_population
from sim.random import PICK, SKIP, TIE, orders, uniforms
from sim.rows import Epoch, Tables, tables
from sim.sampling import draw_votes

_CHUNK = 64
"""Problems whose probabilities are computed at once for pass@1; bounds the memory."""


class Simulation:
    """One run: `for part in Simulation(config).run()` yields the rows of every epoch."""

    def __init__(self, config: SimConfig) -> None:
        """Draw the population and start the policy and the guard."""
        self.config = config
        self.population = draw_population(config)
        self.policy = make_policy(config, self.population)
        self.guard = Guard(config.guard)
        self.state = self.guard.init(
            config.n_problems,
            np.empty(0),
            leading=(config.replicates,),
            n_answers=config.n_answers,
        )
        self._batch = 0

    def run(self) -> Iterator[Tables]:
        """Visit 0 first, then one epoch after the other."""
        yield self.before()
        for epoch in range(1, self.config.epochs + 1):
            yield self.epoch(epoch)

    def before(self) -> Tables:
        """Vote on every problem before training and prime the guard with it."""
        c = self.config
        problems_RN = np.tile(np.arange(c.n_problems), (c.replicates, 1))
        tie_RN = self._uniforms(TIE, 0)
        votes, _ = self._vote(problems_RN, 0)
        draws = Draws(tie_RN, tie_RN, tie_RN)
        self.state = self.guard.prime(self.state, votes, draws)
        # Off: visit 0 counts this visit's votes, whatever the guard will take its labels from.
        vote = choose_label(votes, votes.counts, self.state.label * 0 - 1, tie_RN, _PLAIN)
        zeros_RN = np.zeros(tie_RN.shape)
        nothing_RN = zeros_RN.astype(bool)
        seen = Epoch(
            epoch=0,
            problems_RN=problems_RN,
            truth_RN=self.population.truth_RN,
            counts_RNA=votes.counts,
            majority_RN=vote.label,
            columns={
                "label": self.state.label,
                "flipped": nothing_RN,
                "tie": vote.tied,
                "match_rate": vote.got / c.n_votes,
                "flip_rate": zeros_RN,
                "mean_match_rate": zeros_RN + np.nan,
                "had_competition": nothing_RN,
                "route": zeros_RN.astype(np.int8),
                "weight": zeros_RN + 1,
                "beta": zeros_RN,
                "n_minority": zeros_RN.astype(np.int16),
                "skipped": nothing_RN,
            },
        )
        return tables(c, seen, self.pass_at_1())

    def epoch(self, epoch: int) -> Tables:
        """Visit every problem once and learn from it."""
        c = self.config
        order_RN = orders(c.seed, c.first_replicate, c.replicates, epoch, c.n_problems)
        tie_RN, skip_RN, pick_RN = (
            np.take_along_axis(self._uniforms(purpose, epoch), order_RN, axis=1)
            for purpose in (TIE, SKIP, PICK)
        )
        rows_RN = self.state.take(order_RN)
        steps: list[tuple[GuardState, Decision, Votes, NDArray[np.float64]]] = []
        lr: list[float] = []
        for start in range(0, c.n_problems, c.batch_size):
            at = slice(start, min(start + c.batch_size, c.n_problems))
            draws = Draws(tie_RN[:, at], skip_RN[:, at], pick_RN[:, at])
            lr.append(c.step_at(self._batch))
            steps.append(self._step(order_RN[:, at].copy(), _rows(rows_RN, at), draws, epoch))
            self._batch += 1
        states, decisions, votes, norms = zip(*steps, strict=True)
        self.state = self.state.put(order_RN, _join(states))
        counts_RNA = np.concatenate([v.counts for v in votes], axis=1)
        columns = _columns(decisions)
        seen = Epoch(
            epoch=epoch,
            problems_RN=order_RN,
            truth_RN=np.take_along_axis(self.population.truth_RN, order_RN, axis=1),
            counts_RNA=counts_RNA,
            majority_RN=self._majority(counts_RNA, columns["label"], tie_RN),
            columns=columns,
            lr_B=np.array(lr),
            norm_RN=np.concatenate(norms, axis=1),
        )
        return tables(c, seen, self.pass_at_1())

    def pass_at_1(self) -> NDArray[np.float64]:
        """(R,) chance that one response to a problem is right, mean over all problems."""
        c = self.config
        total_R = np.zeros(c.replicates)
        for start in range(0, c.n_problems, _CHUNK):
            stop = min(start + _CHUNK, c.n_problems)
            problems_RP = np.tile(np.arange(start, stop), (c.replicates, 1))
            p_RPA = self._probabilities(problems_RP, self._batch // c.n_batches)
            truth_RP = self.population.truth_RN[:, start:stop]
            right_RP = np.take_along_axis(p_RPA, truth_RP[..., None], axis=2)[..., 0]
            # One memory layout whatever R is: it decides the order of the sum, so its last bit.
            total_R += np.ascontiguousarray(right_RP).sum(axis=1)
        return (1 - c.unparseable) * total_R / c.n_problems

    def _step(
        self, problems_RP: NDArray[np.int64], rows: GuardState, draws: Draws, epoch: int
    ) -> tuple[GuardState, Decision, Votes, NDArray[np.float64]]:
        votes, p_RPA = self._vote(problems_RP, epoch)
        rows, decision = self.guard.step(rows, votes, draws)
        used = decision if self.config.labels == "votes" else self._truth(decision, problems_RP)
        gradient_RPA = gradient(votes, used, p_RPA, self.config.guard)
        step = self.config.step_at(self._batch)
        norm_RP = self.policy.update(problems_RP, step, gradient_RPA)
        if not np.isfinite(norm_RP).all():
            place = int(np.flatnonzero(~np.isfinite(norm_RP))[0])
            raise self._exploded(place, problems_RP, epoch)
        return rows, decision, votes, norm_RP

    def _vote(
        self, problems_RP: NDArray[np.int64], epoch: int
    ) -> tuple[Votes, NDArray[np.float64]]:
        c = self.config
        p_RPA = self._probabilities(problems_RP, epoch)
        counts_RPA = np.empty(p_RPA.shape, np.int64)
        samples_RPA = np.empty_like(counts_RPA)
        draw_votes(
            c.seed,
            c.first_replicate,
            epoch,
            problems_RP,
            p_RPA,
            1.0 - c.unparseable,
            c.n_votes,
            counts_RPA,
            samples_RPA,
            c.n_samples,
        )
        return Votes(counts_RPA, samples_RPA, c.n_votes, c.n_samples), p_RPA

    def _probabilities(self, problems_RP: NDArray[np.int64], epoch: int) -> NDArray[np.float64]:
        p_RPA = np.empty((*problems_RP.shape, self.config.n_answers))
        bad = self.policy.probabilities(problems_RP, p_RPA)
        if bad >= 0:
            raise self._exploded(bad, problems_RP, epoch)
        return p_RPA

    def _truth(self, decision: Decision, problems_RP: NDArray[np.int64]) -> Decision:
        """The decision with the true answer as its label."""
        truth_RP = np.take_along_axis(self.population.truth_RN, problems_RP, axis=1)
        others_RPA = np.arange(self.config.n_answers) != truth_RP[..., None]
        return replace(decision, label=truth_RP, minority=decision.minority & others_RPA)

    def _majority(
        self,
        counts_RNA: NDArray[np.int64],
        label_RN: NDArray[np.int64],
        tie_RN: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """The winner of each visit's own votes, whatever the labels are taken from."""
        c = self.config
        if c.guard.label_from == "current":
            return label_RN
        votes = Votes(counts_RNA, counts_RNA, c.n_votes, c.n_votes)
        return choose_label(votes, counts_RNA, label_RN, tie_RN, _PLAIN).label

    def _uniforms(self, purpose: int, epoch: int) -> NDArray[np.float64]:
        c = self.config
        return uniforms(c.seed, c.first_replicate, c.replicates, purpose, epoch, c.n_problems)

    def _exploded(self, place: int, problems_RP: NDArray[np.int64], visit: int) -> UserError:
        r, p = divmod(place, problems_RP.shape[1])
        return UserError(
            f"step = {self.config.step}: the logits of problem {problems_RP[r, p]} are not finite "
            f"at visit {visit} (replicate {self.config.first_replicate + r}, batch "
            f"{self._batch + 1}); take a smaller step"
        )


_PLAIN = GuardConfig.off()


def gradient(
    votes: Votes, decision: Decision, p_RPA: NDArray[np.float64], config: GuardConfig
) -> NDArray[np.float64]:
    """The guard's decision as a gradient in the logits, see `sim.gradient`.

    Args:
        votes: of the batch.
        decision: of the batch; its label is what is trained on.
        p_RPA: the probabilities that the votes were drawn from.
        config: of the guard.

    Returns:
        (R, P, A).
    """
    pair = answer_advantages(votes.samples, votes.n_samples, decision, config)
    streams = policy_streams(*pair, decision, config)
    out_RPA = np.empty_like(p_RPA)
    logit_gradient(
        votes.samples,
        votes.n_samples,
        p_RPA,
        np.ascontiguousarray(streams.majority),
        np.ascontiguousarray(streams.minority),
        np.ascontiguousarray(streams.weight),
        np.ascontiguousarray(streams.drop),
        out_RPA,
    )
    return out_RPA


_FIELDS = tuple(f.name for f in fields(GuardState))
_DECIDED = {
    "label": "label",
    "flipped": "flipped",
    "tie": "tied",
    "match_rate": "match_rate",
    "flip_rate": "flip_rate",
    "mean_match_rate": "mean_match_rate",
    "had_competition": "had_competition",
    "route": "route",
    "weight": "weight",
    "beta": "beta",
    "skipped": "skip",
}
"""Column of the trace to field of the decision."""


def _rows(state: GuardState, at: slice) -> GuardState:
    """The batch's rows of a state in visiting order: views, where `take` would copy."""
    return GuardState(*(getattr(state, name)[:, at] for name in _FIELDS))


def _join(states: tuple[GuardState, ...]) -> GuardState:
    return GuardState(
        *(np.concatenate([getattr(s, name) for s in states], axis=1) for name in _FIELDS)
    )


def _columns(decisions: tuple[Decision, ...]) -> dict[str, NDArray[Any]]:
    """(R, N) of every column that the guard decides."""
    columns = {
        name: np.concatenate([getattr(d, decided) for d in decisions], axis=1)
        for name, decided in _DECIDED.items()
    }
    minority_RNA = np.concatenate([d.minority for d in decisions], axis=1)
    columns["n_minority"] = minority_RNA.sum(axis=2, dtype=np.int16)
    return columns
