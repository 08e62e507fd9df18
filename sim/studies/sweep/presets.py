"""Sweeps with a name.

The paper varies one setting of the guard at a time, on Qwen2.5-7B and MATH-500, and prints the
range but not the points of tau_FR and beta_max: those are ours. With W = 5 the flip rate moves in
steps of .2, so all tau_FR in [.2, .4) are one and the same algorithm here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from guard_core import GuardConfig
from guard_core.rules import RULES
from lab.arms import BASELINE, GUARD
from sim.settings.config import SimConfig
from sim.settings.populations import NAMED
from sim.studies.sweep.plan import Sweep

Preset = Literal["sensitivity", "tau_FR", "W", "beta_max", "winners", "rules"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Step sizes from which an arm chooses its best: from almost no training to where labels that are
kept for ever have gained all they can."""

_PAPER = {
    "tau_FR": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    "W": (2, 3, 5, 8, 12, 20),
    "beta_max": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
}
"""24 settings; the paper's default is in all three rows and is run once."""

_WINNERS = {
    "step": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "kappa_att": (0.0, 0.05, 0.1, 0.25),
    "kappa_corr": (0.0, 0.012, 0.1, 0.4),
}
"""Step size, coupling of the attractors, positive transfer between correct answers."""

RIVALS = ("ttrl", "guard", "matched", "random_skip", "frozen", "memory", "memory_guard", "truth")
"""Every control and rival of a guard, and the ceiling."""


_RULES = {
    "population": ("llama-math500", "qwen-math500"),
    "signal": (0.0, 0.3),
    "step": STEPS,
}
"""Two models, observations that know nothing and a little, and the steps every arm chooses from."""

RULE_ARMS = ("ttrl", "guard", "memory", "frozen", "truth")
RULE_ARMS += tuple(name for name in RULES if name != BASELINE)
"""Every rule by itself and the named arms; `--arms` also takes RULE+guard and RULE+memory."""


def preset_settings(name: Preset) -> SimConfig:
    """The population, size and replicates that a preset is meant for."""
    if name == "rules":
        # Fewer problems than the data sets have: the numbers are means over paired replicates.
        return SimConfig(n_problems=200, replicates=16)
    population = "llama-math500" if name == "winners" else "qwen-math500"
    law = NAMED[population]
    config = SimConfig(population=population, n_problems=law.n_problems, epochs=law.epochs)
    return replace(config, guard=GuardConfig.paper(), replicates=10 if name == "winners" else 20)


def preset_arms(name: Preset) -> tuple[str, ...]:
    """The arms of a preset; with the guard always TTRL, its baseline."""
    named = {"winners": RIVALS, "rules": RULE_ARMS}
    return named.get(name, (BASELINE, GUARD))


def preset(name: Preset, base: SimConfig, arms: tuple[str, ...] = ()) -> Sweep:
    """A named sweep.

    Args:
        name: `sensitivity` (all three rows of the paper, 24 settings), one of its rows, or
            `winners` (step size x coupling x positive transfer) or `rules` (every rule over step
            size, two populations and two strengths of what rules observe).
        base: all that is not varied, at best from `preset_settings`.
        arms: in place of `preset_arms`.
    """
    arms = arms or preset_arms(name)
    if name == "winners":
        return Sweep(base=base, arms=arms, groups=(_WINNERS,))
    if name == "rules":
        return Sweep(base=base, arms=arms, groups=(_RULES,))
    rows = _PAPER if name == "sensitivity" else {name: _PAPER[name]}
    return Sweep(base=base, arms=arms, groups=tuple({f"guard.{n}": v} for n, v in rows.items()))
