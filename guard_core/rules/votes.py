"""Rules that need the votes alone, and the controls: random rewards, format, no training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from guard_core.config import ConfigError, Interval, NotNegative, PositiveShare, Share, floor_share
from guard_core.rules.rule import Observations, Rule, at_label, per_response
from guard_core.votes import Array, widen


@dataclass(frozen=True, slots=True, kw_only=True)
class TTRL(Rule):
    """`r_i = [a_i = y]`, y the answer with most votes; no reward without a parseable response.

    Zuo et al., "TTRL: Test-Time Reinforcement Learning", https://arxiv.org/abs/2504.16084; read in
    the authors' code (64 votes, 32 of them trained).

    Example: answers 0 0 1 -; rewards 1 1 0 0.
    """

    name: ClassVar[str] = "ttrl"
    title: ClassVar[str] = "TTRL"


@dataclass(frozen=True, slots=True, kw_only=True)
class MMUPT(Rule):
    """`r_i = [a_i = y]`, where the unparseable responses are one more candidate for y.

    Wei et al., "Unsupervised Post-Training for Multi-Modal LLM Reasoning via GRPO",
    https://arxiv.org/abs/2505.22453; read in the authors' code (`verl/workers/reward/function.py`).
    Where the unparseable responses outnumber every answer, they are rewarded and nothing else is. A
    tie goes to the answer; in that code to whichever came first.

    Example: answers 0 - -; rewards 0 1 1.
    """

    name: ClassVar[str] = "mm_upt"
    title: ClassVar[str] = "MM-UPT"

    def pay(self, obs: Observations, label: Array) -> Array:
        none = obs.votes.n_votes - obs.n_parsed
        wins = none > np.max(obs.votes.counts, axis=-1)
        return np.where(wins[..., None], obs.trained < 0, obs.hits(label)).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SRT(Rule):
    """TTRL on the problems whose label has a large enough share of the parseable votes.

    Shafayat et al., "Can Large Reasoning Models Self-Train?", https://arxiv.org/abs/2505.21444;
    read in the authors' code (`verl/workers/reward_manager/self_learning.py`), where the threshold
    is 0 and all problems are kept. A problem below the threshold, or not among those of highest
    share in its batch, leaves the batch (in that code it stays without reward and KL term); equal
    shares are kept in batch order.

    Example: threshold .7; answers 0 0 1 -; weight 0.
    """

    name: ClassVar[str] = "srt"
    title: ClassVar[str] = "SRT"

    threshold: Share = 0.0
    """Least share of the parseable votes."""
    keep: PositiveShare = 1.0
    """Share of the batch's problems that are kept, rounded down, at least one."""

    def weigh(self, obs: Observations, label: Array) -> Array:
        share = at_label(_share(obs), label)
        rank = np.argsort(np.argsort(-share, axis=-1, stable=True), axis=-1)
        n_kept = max(1, floor_share(self.keep, label.shape[-1]))
        return ((share >= self.threshold) & (rank < n_kept)).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SRTSoft(Rule):
    """`r_i` is the share of the parseable votes that response i's answer got, 0 if unparseable.

    The soft form of SRT, https://arxiv.org/abs/2505.21444, read in the same code.

    Example: answers 0 0 0 1 -; rewards .75 .75 .75 .25 0.
    """

    name: ClassVar[str] = "srt_soft"
    title: ClassVar[str] = "SRT (soft)"
    has_label: ClassVar[bool] = False

    def pay(self, obs: Observations, label: Array) -> Array:
        return per_response(_share(obs), obs.trained)


def _share(obs: Observations) -> Array:
    """(..., P, A) shares of the parseable votes, 0 where there is none."""
    return obs.votes.counts / np.maximum(obs.n_parsed, 1)[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TTCS(Rule):
    """TTRL, and only problems whose mean reward over the K trained responses lies in a band.

    The solver's side of "TTCS: Test-Time Curriculum Synthesis for Self-Evolving" (Yang et al.),
    https://arxiv.org/abs/2601.22628; read in the authors' code (`src/Solver_dapo_ray_trainer.py`,
    band from `solver.sh`). Both ends belong to the band, a group of one response always passes, and
    a problem outside leaves the batch; that code samples further batches until enough passed.

    Example: answers 0 0 0 0; weight 0.
    """

    name: ClassVar[str] = "ttcs"
    title: ClassVar[str] = "TTCS filter"

    least: Share = 0.25
    """Lowest mean reward that is trained on."""
    most: Share = 0.75
    """Highest mean reward that is trained on."""

    def check(self) -> None:
        if self.least > self.most:
            raise ConfigError(f"ttcs.least = {self.least}: must be at most most = {self.most}")

    def weigh(self, obs: Observations, label: Array) -> Array:
        mean = at_label(obs.votes.samples, label) / obs.votes.n_samples
        passes = (mean >= self.least) & (mean <= self.most)
        return (passes | (obs.votes.n_samples == 1)).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class EMPO(Rule):
    """`r_i` is the share of response i's class among all V, if the class entropy is below ln V.

    Zhang et al., "Right Question is Already Half the Answer: Fully Unsupervised LLM Reasoning
    Incentivization", https://arxiv.org/abs/2504.05812; read in the authors' code. Here classes are
    answers, and every unparseable response is a class of its own. The entropy is ln V where no two
    responses agree, and then all get 0. The authors' versions differ in what an unparseable
    response gets: nothing (`zero`), or the 1/V of its class, with no bound on the entropy (`alone`,
    their verl recipe).

    Example: answers 0 0 1 -; rewards .5 .5 .25 0.
    """

    name: ClassVar[str] = "empo"
    title: ClassVar[str] = "EMPO"
    has_label: ClassVar[bool] = False

    unparseable: Literal["zero", "alone"] = "zero"
    """Reward of an unparseable response."""

    def pay(self, obs: Observations, label: Array) -> Array:
        share = obs.shares
        if self.unparseable == "alone":
            return per_response(share, obs.trained, 1 / obs.votes.n_votes)
        # The entropy of V classes of one response each is ln V; any pair makes it smaller.
        agrees = np.any(obs.votes.counts > 1, axis=-1, keepdims=True)
        return per_response(np.where(agrees, share, 0.0), obs.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiSCTT(Rule):
    """Problems of high agreement are trained on their majority, the others by rewarded exploration.

    Moradi and Mudur, "DiSCTT: Consensus-Guided Self-Curriculum for Efficient Test-Time Adaptation
    in Reasoning", https://arxiv.org/abs/2603.05357. Only the abstract and a summary were read; the
    agreement of 7/8 is from there. At or above it the majority's responses get advantage 1 and all
    others 0, the gradient of supervised fine-tuning on y at a probability ratio of 1. Below it no
    formula was seen; here the reward is `[a_i = y] + diversity * (1 - share(a_i))`, and 0 for
    unparseable responses.

    Example: answers 0 0 1 -; rewards 1.25 1.25 .375 0.
    """

    name: ClassVar[str] = "disctt"
    title: ClassVar[str] = "DiSCTT"

    agreement: Share = 0.875
    """Share of the V votes from which a problem is supervised."""
    diversity: NotNegative = 0.5
    """Size of the diversity reward; not stated."""

    def is_direct(self, obs: Observations, label: Array) -> Array:
        return (at_label(obs.shares, label) >= self.agreement) & (label >= 0)

    def pay(self, obs: Observations, label: Array) -> Array:
        match = obs.hits(label)
        rare = per_response(self.diversity * (1 - obs.shares), obs.trained)
        return np.where(self.is_direct(obs, label)[..., None], match, match + rare)


@dataclass(frozen=True, slots=True, kw_only=True)
class DDRL(Rule):
    """Advantage +1 for responses of the label, -1 for those of the rarest answers, 0 between.

    Yu et al., "Understanding and Mitigating Spurious Signal Amplification in Test-Time
    Reinforcement Learning for Math Reasoning", https://arxiv.org/abs/2604.21327; read in the
    authors' code (https://github.com/yuyongcan/DDRL, `ttrl_utils.py`, `core_algos.py`). With n kept
    responses, at most n // 2 of the label stay, and for the rest those whose answers have the
    fewest of all votes, the unparseable ones first. A label that leaves too few others fills up
    their places, with +1. Without a label nothing is trained.

    That code selects 32 of 64 votes and trains these; here the selection is among the K trained
    responses, and those left out stay in the loss's denominator. Equally frequent ones are kept at
    random; in that code by their place.

    Example: draws .1 .2 .3 .4 .5 .6 .7 .8; answers 0 0 0 0 0 1 1 2; rewards 1 1 0 0 0 0 -1 -1.
    """

    name: ClassVar[str] = "ddrl"
    title: ClassVar[str] = "DDRL"

    keep: PositiveShare = 0.5
    """Share of the trained responses that are kept, rounded down, at least one."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        return n_samples

    def is_direct(self, obs: Observations, label: Array) -> Array | None:
        return np.full(label.shape, True)

    def pay(self, obs: Observations, label: Array) -> Array:
        K, wins, labelled = obs.votes.n_samples, obs.hits(label), (label >= 0)[..., None]
        votes = per_response(obs.votes.counts, obs.trained)
        # The label's responses come first, whatever else has as many votes.
        votes = np.where(wins, obs.votes.n_votes + 1, votes)
        rank = np.argsort(np.lexsort((obs.drawn(K), -votes), axis=-1), axis=-1)
        n_kept = max(1, floor_share(self.keep, K))
        n_wins = np.minimum(np.sum(wins, axis=-1, keepdims=True), n_kept // 2)
        kept = ((rank < n_wins) | (rank >= K - n_kept + n_wins)) & labelled
        return np.where(kept, np.where(wins, 1.0, -1.0), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SNR(Rule):
    """`r_i` is what response i adds to the vote's signal-to-noise ratio, -10 if unparseable.

    Cordero-Encinar and Duncan, "Certified Self-Consistency: Statistical Guarantees and Test-Time
    Training for Reliable Reasoning in LLMs", https://arxiv.org/abs/2510.17472; read in the authors'
    code (https://github.com/paulaoak/certified_self_consistency, `condorcet_utils.py`,
    `ttrl_math/__init__.py`). With m and r the votes of the two most frequent answers among V, the
    ratio is `(m - r)^2 / (V (m + r))`, 0 without a vote; the reward is the ratio minus that of the
    other V - 1 responses. Where several answers share the second place, that code takes votes from
    the one it met first; here one response less of them leaves r as it is.

    Example: answers 0 0 0 1 1 2 - -; rewards .025 .025 .025 -.1179 -.1179 -.0036 -10 -10.
    """

    name: ClassVar[str] = "snr"
    title: ClassVar[str] = "SNR reward"
    has_label: ClassVar[bool] = False

    unparseable: Annotated[float, Interval("(-inf, 0]")] = -10.0
    """Reward of a response without a readable answer."""

    def pay(self, obs: Observations, label: Array) -> Array:
        V, votes = obs.votes.n_votes, obs.votes.counts
        top = -np.sort(-widen(votes, 3), axis=-1)
        first, second, third = top[..., 0:1], top[..., 1:2], top[..., 2:3]
        # The two most frequent of the other answers, beside this one with a vote less.
        best = np.where(votes < first, first, second)
        other = np.where(votes < second, second, third)
        high = np.maximum(votes - 1, best)
        low = np.maximum(np.minimum(votes - 1, best), other)
        gain = _snr(first, second, V) - _snr(high, low, V - 1)
        return per_response(gain, obs.trained, self.unparseable)


def _snr(high: Array, low: Array, n_votes: int) -> Array:
    """Signal-to-noise ratio of a vote whose two most frequent answers have these votes."""
    lead = high - low
    return lead * lead / np.clip(n_votes * (high + low), min=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomReward(Rule):
    """Every response is rewarded with the same chance, whatever it says.

    A control of Shao et al., "Spurious Rewards: Rethinking Training Signals in RLVR",
    https://arxiv.org/abs/2506.10947.

    Example: answers 0 1; draws .1 .9; rewards 1 0.
    """

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "Random rewards"
    has_label: ClassVar[bool] = False

    chance: Share = 0.5
    """Of a reward."""

    def n_draws(self, n_votes: int, n_samples: int) -> int:
        return n_samples

    def pay(self, obs: Observations, label: Array) -> Array:
        return (obs.drawn(obs.votes.n_samples) < self.chance).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReward(Rule):
    """Every parseable response is rewarded, right or wrong.

    A control of the same paper, https://arxiv.org/abs/2506.10947; read in the authors' code.

    Example: answers 0 1 -; rewards 1 1 0.
    """

    name: ClassVar[str] = "format"
    title: ClassVar[str] = "Format only"
    has_label: ClassVar[bool] = False

    def pay(self, obs: Observations, label: Array) -> Array:
        return (obs.trained >= 0).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MajAtN(Rule):
    """No training: the votes of all visits are summed, and their majority is the answer.

    The training-free baseline at the sampling budget of a whole run: after t visits the label of a
    trace is maj@(t V) when its guard remembers votes (`label_from = "memory"`). The vote itself is
    that of Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
    https://arxiv.org/abs/2203.11171.

    Example: answers 0 0 1; weight 0.
    """

    name: ClassVar[str] = "maj_at_n"
    title: ClassVar[str] = "maj@n, no training"
    loss = "none"

    def weigh(self, obs: Observations, label: Array) -> Array:
        return np.zeros(label.shape)
