"""The trainer's settings that a simulation takes, and those that the policy `measured` lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_core.rules import make_rule
from lab.base.errors import UserError
from lab.base.own_rules import load_rules
from lab.compare.collection import COMPUTATIONAL
from sim.settings.populations import check_measured_rule

TAKEN = ("labels", "rule", "rules", "rule_options", "step_factor", "n_votes", "n_samples", "epochs")
TAKEN += ("batch_size", "mini_batch", "warmup_ratio")
"""Settings of both worlds that a simulation takes from the real run."""
MEASURED_ALONE = ("lr", "max_grad_norm", "kl_coef", "ema_decay", "dtype")
"""The same, of simulations by the policy `measured`."""
_READ = (*TAKEN, *MEASURED_ALONE, "guard")
_FIXED = {"clip_low": 0.2, "clip_high": 0.2, "weight_decay": 0.01, "loss": "dapo", "top_p": 1.0}
_FIXED |= {"drop_uniform": False, "mask_truncated": False, "lora_rank": 0, "async_level": 0}
_FIXED |= {"eval_top_p": 1.0, "master_weights": True, "similarity_model": None, "treatment": "own"}
_FIXED |= {"eval_extract": None}
"""Settings of the trainer at the only values that the measured policy has."""
_MEASURED = """
model tiny_task tiny_verifies tiny_wrong tiny_lead problem_seed chat_template template_options
system_prompt problems fields n_problems prompt_suffix max_prompt_tokens answer_check extract
max_response_tokens stop temperature eval_temperature
"""
"""Settings of model, problems and responses, which the response file stands for."""
_WITHOUT_EFFECT = """
answer_timeout engine engine_exchange engine_tp engine_adapters tis_cap old_logprobs
max_num_gen_batches lora_alpha lora_targets offload_optimizer fsdp_size eval_every eval_steps
eval_samples n_held_out checkpoint_minutes seed head_dtype
"""
"""Other settings that change cost, precision, records or random numbers, or that act only beside a
value which `_FIXED` excludes."""


def check_settings(config: Mapping[str, Any], where: str) -> None:
    """Refuse settings of the trainer that the measured policy does not have or does not know."""
    words = f"{_MEASURED} {_WITHOUT_EFFECT} {COMPUTATIONAL['real']}"
    known = {*_READ, *_FIXED, *words.split()}
    for name in sorted(config.keys() - known):
        raise UserError(
            f"{where} has {name} = {config[name]}, a setting that guard-sim agree does not know; "
            "leave that run out"
        )
    check_fixed(config, _FIXED, where)
    load_rules(config.get("rules", ()))
    check_measured_rule(make_rule(config["rule"], config["rule_options"]))


def taken(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of a simulation of the run that a response file was measured for.

    Those of its guard are left out, which every arm has of its own. The gradients are those of the
    weights that the run trains, also of adapters.
    """
    check_settings({**config, "lora_rank": 0}, where)
    return {name: config[name] for name in (*TAKEN, *MEASURED_ALONE) if name in config}


def check_fixed(config: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    """Refuse settings of the trainer that differ from fixed ones."""
    for name, own in fixed.items():
        if (value := config.get(name, own)) != own:
            raise UserError(
                f"{where} has {name} = {value}, the measured policy only {own}; leave that run out"
            )
