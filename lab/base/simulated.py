"""The trainer's settings that a simulation takes, and those that the policy `measured` lacks.

The simulator refuses them of runs, the trainer before it measures for a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_core.rules import make_rule
from lab.base.arms import check_measured_rule
from lab.base.errors import UserError
from lab.base.own_rules import load_rules
from lab.base.roles import DEFAULT, NOT_SIMULATED, Roles, having

TAKEN = ("labels", "rule", "rules", "rule_options", "step_factor", "n_votes", "n_samples", "epochs")
TAKEN += ("batch_size", "mini_batch", "warmup_ratio")
"""Settings of both worlds that a simulation takes from the real run."""
MEASURED_ALONE = ("lr", "max_grad_norm", "kl_coef", "ema_decay", "dtype")
"""The same, of simulations by the policy `measured`."""


def check_settings(
    config: Mapping[str, Any], roles: Roles, where: str, remedy: str = "leave that run out"
) -> None:
    """Refuse settings that decide what is trained and that the measured policy does not have.

    They are the trainer's, with the roles that it noted. Messages begin with `where`, which has
    these settings, and end with the remedy.
    """
    if not roles:
        raise UserError(
            f"{where} was made by an earlier version, which does not note the roles of settings; "
            "make it again with this version"
        )
    known = {*TAKEN, *MEASURED_ALONE, "guard", *having(roles, *NOT_SIMULATED, DEFAULT)}
    for name in sorted(config.keys() - known):
        raise UserError(
            f"{where} has {name} = {config[name]}, which the measured policy does not have; "
            f"{remedy}"
        )
    load_rules(config.get("rules", ()))
    check_measured_rule(make_rule(config["rule"], config["rule_options"]))


def taken(config: Mapping[str, Any], roles: Roles, where: str) -> dict[str, Any]:
    """Return the settings of a simulation of the run that a response file was measured for.

    Those of its guard are left out, which every arm has of its own. The gradients are those of the
    weights that the run trains, also of adapters.
    """
    trained = {name: value for name, value in config.items() if name != "lora_rank"}
    check_settings(trained, roles, where, "measure with its default")
    return {name: config[name] for name in (*TAKEN, *MEASURED_ALONE) if name in config}
