"""Types, bounds and consistency of the settings of a simulation."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from lab.errors import UserError
from sim.settings.populations import FREE, NAMED
from sim.settings.rule_checks import check_rule

if TYPE_CHECKING:
    from sim.settings.config import SimConfig

_TINY = 1e-12
"""Least concentration: a law that is all at 0 and 1 long before."""
_HUGE = 1e12
"""Greatest concentration: a law that is all at its mean long before."""
_LAST_REPLICATE = 32_767

_BOUNDS: dict[str, tuple[float, float]] = {
    "n_problems": (1, 1_000_000),
    "epochs": (1, 100_000),
    "batch_size": (1, 1_000_000),
    "n_votes": (1, 65_536),
    "n_samples": (1, 65_536),
    "n_answers": (2, 1000),
    "unparseable": (0, 1),
    "skip_rate": (0, 1),
    "signal": (0, 1 - 1e-12),
    "confidence_signal": (0, 1 - 1e-12),
    "confidence_share": (0, 1 - 1e-12),
    "tool_tpr": (0, 1),
    "tool_fpr": (0, 1),
    "verifier_tpr": (0, 1),
    "verifier_fpr": (0, 1),
    "second_independence": (0, 1),
    "second_votes": (1, 65_536),
    "similarity_answer": (0, 1),
    "teacher_rate": (0, 1),
    "teacher_rate_end": (0, 1),
    "step": (0, math.inf),
    "step_factor": (0, math.inf),
    "warmup_ratio": (0, 1),
    "adam_beta_1": (0, 1 - 1e-12),
    "adam_beta_2": (0, 1 - 1e-12),
    "adam_eps": (1e-300, math.inf),
    "max_grad_norm": (1e-300, math.inf),
    "mini_batch": (1, 1_000_000),
    "kappa_att": (0, math.inf),
    "kappa_corr": (0, math.inf),
    "neg_transfer": (0, math.inf),
    "load_sd": (0, math.inf),
    "corr_load_sd": (0, math.inf),
    "feature_dim": (1, 10_000),
    "att_share": (0, 1),
    "att_concentration": (_TINY, _HUGE),
    "wrong_concentration": (_TINY, _HUGE),
    "ability_mean": (0, 1),
    "ability_floor": (0, 0.5),
    "ability_concentration": (_TINY, _HUGE),
    "replicates": (1, _LAST_REPLICATE + 1),
    "vote_replicates": (0, _LAST_REPLICATE + 1),
    "first_replicate": (0, _LAST_REPLICATE),
    "seed": (0, 2**63 - 1),
}

_FILES = {
    "kernel": ("policy", "kernel"),
    "mixture": ("population", "mixture"),
    "histogram": ("population", "histogram"),
    "trace": ("population", "trace"),
}
"""Settings that only one policy or population reads; elsewhere they would be silently ignored."""


def check(config: SimConfig) -> None:
    """Check every field's type and bounds, then the fields together.

    Raises:
        UserError: the message names the field, the value and the bound.
    """
    for name, kind in _types(type(config)).items():
        _check_type(name, getattr(config, name), kind)
    for name, (low, high) in _BOUNDS.items():
        _check_bound(name, getattr(config, name), low, high)
    _check_mixture(config.mixture)
    _check_sizes(config)
    _check_population(config)
    _check_readers(config)
    check_rule(config)


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _check_type(name: str, value: object, kind: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UserError(f"{name} = {value!r}: must be one of {', '.join(get_args(kind))}")
        return
    if get_origin(kind) is tuple:
        return
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise UserError(f"{name} = {value!r}: must be a table of settings by name")
        return
    kinds = get_args(kind) or (kind,)
    allowed = (*kinds, int) if float in kinds else kinds
    # bool is an int to Python, but `epochs = true` in a settings file is a slip of the pen.
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
        raise UserError(f"{name} = {value!r}: must be of type {kinds[0].__name__}")


def _check_bound(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if not math.isfinite(value):
        raise UserError(f"{name} = {value}: must be a finite number")
    if 0 < low < 1e-6 and value <= 0:
        raise UserError(f"{name} = {value}: must be above 0")
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == math.inf else f"in [{low:.15g}, {high:.15g}]"
        raise UserError(f"{name} = {value}: must be {bound}")


def _check_mixture(mixture: object) -> None:
    if not isinstance(mixture, tuple):
        raise UserError(f"mixture = {mixture!r}: must be a list of (weight, mean, concentration)")
    for place, law in enumerate(mixture):
        name = f"mixture[{place}]"
        if not isinstance(law, tuple) or len(law) != 3:
            raise UserError(f"{name} = {law!r}: must be (weight, mean, concentration)")
        for part, value in zip(("weight", "mean", "concentration"), law, strict=True):
            _check_type(f"{name} {part}", value, float)
        _check_bound(f"{name} weight", law[0], 0, 1)
        _check_bound(f"{name} mean", law[1], 0, 1)
        _check_bound(f"{name} concentration", law[2], _TINY, _HUGE)
    total = math.fsum(law[0] for law in mixture)
    if mixture and abs(total - 1) > 1e-6:
        raise UserError(f"mixture: the weights sum to {total:g}, must sum to 1")


def _check_sizes(config: SimConfig) -> None:
    if config.n_samples > config.n_votes:
        raise UserError(
            f"n_samples = {config.n_samples}: must be at most n_votes = {config.n_votes}"
        )
    if config.mini_batch > config.batch_size:
        raise UserError(
            f"mini_batch = {config.mini_batch}: must be at most batch_size = {config.batch_size}"
        )
    if config.first_replicate + config.replicates > _LAST_REPLICATE + 1:
        raise UserError(
            f"first_replicate = {config.first_replicate}: with {config.replicates} replicates the "
            f"last number exceeds {_LAST_REPLICATE}"
        )


def _check_population(config: SimConfig) -> None:
    if config.population not in (*NAMED, *FREE):
        known = ", ".join([*NAMED, *FREE])
        raise UserError(f"population = {config.population!r}: unknown, use one of {known}")
    for name in FREE.get(config.population, ()):
        if getattr(config, name) in (None, ()):
            raise UserError(f"{name}: must be given with population = {config.population}")


def _check_readers(config: SimConfig) -> None:
    if config.policy == "kernel" and config.kernel is None:
        raise UserError("kernel: must be given with policy = kernel")
    for name, (field, reader) in _FILES.items():
        if getattr(config, name) not in (None, ()) and getattr(config, field) != reader:
            raise UserError(
                f"{name}: only {field} = {reader} reads it, and {field} = {getattr(config, field)}"
            )
