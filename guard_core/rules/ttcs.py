"""The solver's filter of TTCS: TTRL on problems that are neither settled nor hopeless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from guard_core.arrays import Array, divide, namespace
from guard_core.checks import ConfigError, Share
from guard_core.rules.observations import Observations, at_label
from guard_core.rules.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TTCS(Rule):
    """TTRL, and only problems whose mean reward over the K trained responses lies in a band.

    The solver's side of "TTCS: Test-Time Curriculum Synthesis for Self-Evolving", read in the
    authors' code (`src/Solver_dapo_ray_trainer.py`, band from `solver.sh`; temperature 1, learning
    rate 1e-6); the maker of new questions is out of scope. Both ends belong to the band, a group of
    one response always passes, and a problem outside leaves the batch. In that code further
    batches are sampled until enough problems passed.
    """

    name: ClassVar[str] = "ttcs"
    title: ClassVar[str] = "TTCS filter"

    least: Share = 0.25
    """Lowest mean reward that is trained on."""
    most: Share = 0.75
    """Highest mean reward that is trained on."""

    def check(self) -> None:
        """Implement `Rule.check`."""
        if self.least > self.most:
            raise ConfigError(f"ttcs.least = {self.least}: must be at most most = {self.most}")

    def weigh(self, obs: Observations, label: Array) -> Array:
        """Implement `Rule.weigh`."""
        xp = namespace(label)
        hits = xp.astype(at_label(obs.votes.samples, label), obs.real)
        mean = divide(hits, obs.votes.n_samples)
        passes = (mean >= self.least) & (mean <= self.most)
        return xp.astype(passes | (obs.votes.n_samples == 1), obs.real)
