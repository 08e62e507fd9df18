"""The guard's settings as compiled code reads them: numbers and flags in one record.

What guard_core reads once per batch (`minority_over`, `minority_share`, `skip_share`, `skip_cap`)
is left to it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from guard_core import GuardConfig

_FIELDS = {
    np.bool_: ("frs", "mps", "rcsu"),
    np.int64: ("W", "T_steady"),
    np.float64: (
        "discount",
        "tau_FR",
        "tau_MR",
        "l1",
        "l2",
        "w_min",
        "beta_max",
        "minority_reward",
        "theta_MR",
        "p_skip",
    ),
}
"""What keeps its name."""
_FLAGS = {
    "tie_first": ("tie_break", "first"),
    "tie_incumbent": ("tie_break", "incumbent"),
    "current": ("label_from", "current"),
    "frozen": ("label_from", "frozen"),
    "memory": ("label_from", "memory"),
    "instant": ("flip_rate", "instant"),
    "weigh_advantage": ("weight_on", "advantage"),
    "weigh_reward": ("weight_on", "reward"),
    "weigh_loss": ("weight_on", "loss"),
    "saturating": ("beta_schedule", "saturating"),
    "plain": ("empty_minority", "plain"),
    "bonus": ("mix", "bonus"),
    "skip_first": ("skip_order", "first"),
    "drop": ("skip_by", "drop"),
    "scale_group": ("advantage_scale", "group"),
    "scale_batch": ("advantage_scale", "batch"),
}
"""Flag to the setting it stands for and the word at which it is up."""

RULES = np.dtype(
    [(name, kind) for kind, names in _FIELDS.items() for name in names]
    + [(name, np.bool_) for name in _FLAGS],
    align=True,
)
"""One type whatever the settings are, so that everything is compiled once."""


def rules(config: GuardConfig) -> NDArray[np.void]:
    """(1,) record of a guard's settings; `rules(config)[0].tau_FR` reads one in compiled code."""
    record_1 = np.zeros(1, RULES)
    for names in _FIELDS.values():
        for name in names:
            record_1[name] = getattr(config, name)
    for flag, (name, word) in _FLAGS.items():
        record_1[flag] = getattr(config, name) == word
    return record_1
