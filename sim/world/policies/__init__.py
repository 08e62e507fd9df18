"""Answer policies: the logits of every problem, and the effect of an update on one problem.

Softmax over the A answers of each problem, starting at the population's log p0. A policy has two
methods, each one compiled call per batch: the answer probabilities of given problems, and an update
along given logit gradients (those of `sim.engine.gradient`, turned into steps by
`sim.world.optimizer`).

independent  every problem has its own logits: the null model
attractor    own logits, and one shared direction each for correct answers and for attractors
features     no own logits: all are linear in a few shared parameters with random features

The norm of an update is that of the change it makes to the policy's parameters. In a mini-batch of
several problems every one of them is given the norm of the whole step.

What makes a problem Learned (below .15 at first, right at the end)? Measured under plain TTRL, 20
to 60 replicates, percent of the problems:

* attractor with its default numbers: never. The correct answer of such a problem loses its votes.
* independent: where the wrong answers scatter, so that the correct one wins with few votes. 0.4 for
  llama-aime24 at step = .3, n_answers = 40, att_concentration = 1; 0.0 at the default spread.
* attractor with correct answers that gain very unevenly from each other: 1.6 for llama-aime24 at
  corr_load_sd = 4, kappa_corr = .06, kappa_att = .22, step = .1; 0.06 for llama-math500 at
  corr_load_sd = 2, kappa_corr = .056, kappa_att = .555. The price is more problems that stay right.
* features: without being designed to, interference lifts as well as it drowns. 1.2 for llama-amc
  (feature_dim = 30, step = .75), 2.8 for llama-aime24 (15, .26), 1.0 for llama-math500 (8, .58).
"""

from __future__ import annotations

from collections.abc import Callable

from sim.settings.config import SimConfig
from sim.world.policies.attractor import Attractor, Independent
from sim.world.policies.base import Policy
from sim.world.policies.features import Features
from sim.world.populations import Population

__all__ = [
    "POLICIES",
    "Attractor",
    "Features",
    "Independent",
    "Policy",
    "make_policy",
]

POLICIES: dict[str, Callable[[SimConfig, Population], Policy]] = {
    "independent": Independent,
    "attractor": Attractor,
    "features": Features,
}


def make_policy(config: SimConfig, population: Population) -> Policy:
    """Return the policy that the settings name."""
    return POLICIES[config.policy](config, population)
