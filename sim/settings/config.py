"""The settings of a simulation in one frozen record that checks itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from guard_core import GuardConfig
from guard_core.config import Interval, NotNegative, Positive, Share, ShareBelowOne, check_fields
from guard_core.rules import RULES, make_rule
from guard_core.schedule import scheduled_steps, step_factors
from lab.base.arms import BASELINE, DEFAULT_GUARD, OWN, check_fit, check_measured_rule, guard_of
from lab.base.errors import UserError
from lab.base.own_rules import load_rules
from lab.base.roles import Role
from sim.settings.populations import FREE, NAMED, STEP, Part, sizes

Classical = Literal["independent", "attractor"]
Objective = Literal["mean", "minimum"]
Preset = Literal["sensitivity", "tau_FR", "W", "beta_max", "rules"]

SEARCH_ARMS = ("ttrl", "guard", "frs", "rcsu", "frozen", "memory", "memory_guard")
"""Sources of labels, strengths and skipping, as arms."""
SEARCH_LRS = (5e-5, 1e-4, 2e-4, 3e-4, 5e-4)
"""Learning rates that a candidate of a search is judged over."""

_OWN: Any = None
"""Stands for the population's own number until the settings are made."""
_LAST_REPLICATE = 32_767
"""The trace stores replicate numbers in 16 bits."""

Size = Annotated[int, Interval("[1, 1000000]")]
Draws = Annotated[int, Interval("[1, 65536]")]
Concentration = Annotated[float, Interval("[1e-12, 1e12]")]
"""Beyond these bounds a law is all at 0 and 1, or all at its mean."""

_OF_MEASURED = ("response", "lr", "growth", "parts_off", "kl_coef", "ema_decay", "dtype")
READ_BY = {name: ("population", name) for name in ("histogram", "trace")}
READ_BY |= dict.fromkeys(_OF_MEASURED, ("policy", "measured"))
"""Settings that only one policy or population reads; elsewhere they would be silently ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Settings of a simulation; the defaults are Llama-3.2-3B on MATH-500 under the full guard.

    Raises:
        UserError: a field has the wrong type or an impossible value; the message names the field,
            the value and the bound.
    """

    GROUPS: ClassVar[dict[str, str]] = {
        "policy": "policy",
        "population": "population",
        "guard": "rule",
        "signal": "observations",
        "n_problems": "sampling",
        "step": "optim",
        "kappa_att": "policy",
        "att_share": "population",
        "replicates": "replicates",
    }
    """First field of every group of settings, and the group's name."""
    SHORT: ClassVar[tuple[str, ...]] = (
        *("policy", "response", "lr", "population", "ability_mean", "rule"),
        *("n_problems", "epochs", "batch_size", "n_votes", "n_samples", "n_answers"),
        *("step", "replicates", "seed"),
    )
    """Settings that most people set, which `--help` shows."""

    policy: Literal["independent", "attractor", "features", "measured"] = "attractor"
    """Influence of problems on each other, see `sim.world.policies`; `measured` is a real model's
    token tree under the trainer's optimizer, see `sim.world.measured`."""
    response: str | None = None
    """Measured policy: response file of `guard-train measure`, which is the population too."""
    lr: Annotated[Positive | None, Role.ARM] = None
    """Measured policy: the trainer's peak learning rate, in place of `step`."""
    growth: NotNegative | None = None
    """Measured policy: growth g of the gradients' squared change with the distance; the file's own
    if left out, 0 for the linear model."""
    parts_off: tuple[Part, ...] = ()
    """Measured policy: parts of the dynamics that are switched off. `leak`: tokens that no sampled
    response has; `own`: the effect of a problem's updates on itself; `others`: that on other
    problems. Labels without feedback are the arm `frozen`."""
    kl_coef: Annotated[NotNegative, Role.ARM] = 0.0
    """Measured policy: the trainer's factor on the KL divergence from the model before training."""
    ema_decay: Annotated[ShareBelowOne, Role.ARM] = 0.0
    """Measured policy: the trainer's decay of the weights' average that evaluations use."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Measured policy: precision of the weights that the model reads, beside exact masters."""
    population: str = "llama-math500"
    """The model's abilities before training, see `sim.world.populations`: a named one, or `beta`,
    `point`, `histogram` or `trace` together with its own settings. A named one brings its
    `n_problems` and `epochs` where they are not given."""
    ability_mean: Share | None = None
    """Mean probability of the correct answer before training; in place of the population's own."""
    ability_concentration: Concentration | None = None
    """a + b of the Beta law of that probability; in place of the population's own."""
    ability_floor: Annotated[float, Interval("[0, 0.5]")] = 0.02
    """No ability lies nearer to 0 or 1 than this: sampling at a temperature is never certain."""
    histogram: str | None = None
    """Population `histogram`: CSV file with the columns p0 and weight."""
    trace: str | None = None
    """Population `trace`: run folder whose label accuracies at visit 0 are the abilities."""
    fixed_population: bool = False
    """All replicates share one population; by default each draws its own."""

    guard: Annotated[GuardConfig, Role.ARM] = DEFAULT_GUARD
    """The guard; `GuardConfig.off()` trains without one. If left out it is the paper's for plain
    TTRL, and none for any other rule."""
    labels: Annotated[Literal["votes", "truth"], Role.ARM] = "votes"
    """`truth` trains on the true answers while the guard goes on watching the votes."""
    treatment: Annotated[str, Role.ARM] = OWN
    """Weights, betas and skips that act: `own` are the guard's, `permuted` those of the batch dealt
    to its problems at random, and a run folder those of its run, of another seed; as controls."""

    rule: Annotated[str, Role.ARM] = "ttrl"
    """Name of the label-free rule that rewards the responses, see `guard_core.rules`."""
    rule_options: Annotated[dict[str, int | float | bool | str], Role.ARM] = field(
        default_factory=dict, hash=False
    )
    """Settings of the rule by name; those left out take the rule's defaults."""
    rules: Annotated[tuple[str, ...], Role.ARM] = ()
    """Python files with rules of your own, which become arms (docs/rules.md)."""

    signal: ShareBelowOne = 0.3
    """Strength with which a rule's observations other than the votes depend on the truth; 0 is not
    at all, see `sim.world.observe`."""

    skip_rate: Annotated[Share, Role.ARM] = 0.0
    """Chance that a problem sits a visit out whatever the guard does: the control `random_skip`."""

    n_problems: Size = _OWN
    """N, problems of the fixed set; the population's own if left out."""
    epochs: Annotated[int, Interval("[1, 100000]")] = _OWN
    """Passes over all problems, so visits per problem; the population's own if left out."""
    batch_size: Size = 8
    """P, problems whose votes are drawn from one state of the policy."""
    n_votes: Draws = 64
    """V, responses per visit."""
    n_samples: Draws = 32
    """K, the first of them, which are trained on."""
    n_answers: Annotated[int, Interval("[2, 1000]")] = _OWN
    """A, different answers per problem; 10, or those of the response file, if left out."""
    unparseable: Share = 0.0
    """Constant chance that a response holds no readable answer."""

    step: Annotated[NotNegative, Role.ARM] = STEP
    """Step size at the schedule's peak (eta). sgd: change of a logit per unit of standardised
    advantage; adam: about the change of every logit per optimizer step."""
    step_factor: Annotated[NotNegative, Role.ARM] = 1.0
    """Constant factor on `step` or `lr`, for the control at matched effort."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Cosine decay to 0 after a linear warm-up, by optimizer step as in the trainer (a batch takes
    the mean of its steps' rates), or `step` throughout."""
    warmup_ratio: Share = 0.03
    """Share of all optimizer steps that the warm-up of the cosine schedule takes."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Plain gradient steps, or Adam, see `sim.world.optimizer`."""
    max_grad_norm: Positive | None = None
    """Gradients of an optimizer step are scaled down to this L2 norm; not at all by default."""
    mini_batch: Size = 1
    """Problems per optimizer step."""
    update: Literal["sampled", "expected"] = "sampled"
    """Gradient of the K drawn samples, or of their expectation, see `sim.engine.kernel`."""

    kappa_att: NotNegative = 0.25
    """Attractor policy: coupling of the attractors of all problems."""
    kappa_corr: NotNegative = 0.012
    """Attractor policy: coupling of the correct answers of all problems."""
    neg_transfer: NotNegative = 0.3
    """Attractor policy: factor on what a penalty passes on to other problems."""
    load_sd: NotNegative = 0.3
    """Attractor policy: spread of the problems' loadings on the shared directions around 1."""
    corr_load_sd: NotNegative | None = None
    """Attractor policy: that of the loadings on the correct direction; `load_sd` if left out."""
    feature_dim: Annotated[int, Interval("[1, 10000]")] = 64
    """Features policy: D, shared parameters."""
    att_share: Share = 0.3
    """Mean share of the wrong mass that the attractor answer holds before training."""

    replicates: Annotated[int, Interval("[1, 32768]"), Role.ARM] = 1
    """R, independent runs that are computed side by side."""
    vote_replicates: Annotated[int, Interval("[0, 32768]"), Role.OPERATIONAL] = 1
    """So many of them, the first, keep every answer's votes in the trace (`votes`)."""
    first_replicate: Annotated[int, Interval("[0, 32767]"), Role.ARM] = 0
    """Number of the first replicate; replicate r is the same run whichever others run with it."""
    seed: Annotated[int, Interval("[0, 9223372036854775807]"), Role.ARM] = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", load_rules(self.rules))
        object.__setattr__(self, "guard", guard_of(self.guard, RULES.get(self.rule)))
        left_out = [n for n in ("n_problems", "n_answers", "epochs") if getattr(self, n) is None]
        if left_out:
            defaults = sizes(self.population, self.response if self.policy == "measured" else None)
            for name in left_out:
                object.__setattr__(self, name, defaults[name])
        check_fields(self, error=UserError)
        _check_together(self)
        if self.policy == "measured":
            _check_measured(self)

    @property
    def cell(self) -> str | None:
        """As `cell_of`."""
        return cell_of(self.policy, self.population)

    @property
    def replicate_numbers(self) -> range:
        """Numbers of the replicates."""
        return range(self.first_replicate, self.first_replicate + self.replicates)

    @property
    def n_batches(self) -> int:
        """Batches per epoch; the last may be smaller."""
        return math.ceil(self.n_problems / self.batch_size)

    def steps(self) -> list[float]:
        """Return the step size of every batch of the run, `step_factor` included."""
        return [self._peak * (math.fsum(factors) / len(factors)) for factors in self._factors()]

    def rates(self) -> list[list[float]]:
        """Return the step size of every optimizer step, batch by batch."""
        return [[self._peak * f for f in factors] for factors in self._factors()]

    @property
    def _peak(self) -> float:
        return (self.step if self.lr is None else self.lr) * self.step_factor

    def _factors(self) -> list[list[float]]:
        """The factors of all optimizer steps on the peak, batch by batch."""
        of_epoch = scheduled_steps(self.n_problems, self.batch_size, self.mini_batch)
        if self.schedule == "constant":
            return [[1.0] * n for n in of_epoch] * self.epochs
        return _cosine(tuple(of_epoch), self.epochs, self.warmup_ratio)


def cell_of(policy: str, population: str) -> str | None:
    """Return a population as a cell of the paper; None where a response file is the population."""
    return None if policy == "measured" else population


_cosine = lru_cache(step_factors)
"""Kept, since the arms of a study share them."""


def _check_together(config: SimConfig) -> None:
    for name, bound in (("n_samples", "n_votes"), ("mini_batch", "batch_size")):
        if (value := getattr(config, name)) > (most := getattr(config, bound)):
            raise UserError(f"{name} = {value}: must be at most {bound} = {most}")
    if config.replicate_numbers[-1] > _LAST_REPLICATE:
        raise UserError(
            f"first_replicate = {config.first_replicate}: with {config.replicates} replicates the "
            f"last number exceeds {_LAST_REPLICATE}"
        )
    if config.population not in (*NAMED, *FREE):
        known = ", ".join([*NAMED, *FREE])
        raise UserError(f"population = {config.population!r}: unknown, use one of {known}")
    for name in FREE.get(config.population, ()):
        if getattr(config, name) is None:
            raise UserError(f"{name}: must be given with population = {config.population}")
    law = () if config.policy == "measured" else FREE.get(config.population, FREE["beta"])
    for name in FREE["beta"]:
        if name not in law and getattr(config, name) is not None:
            chosen = f"policy = {config.policy} with population = {config.population}"
            raise UserError(f"{name}: {chosen} does not read it")
    if config.guard.brake.brake < 1 and config.policy != "measured":
        raise UserError(f"guard.brake: only policy = measured has it, and policy = {config.policy}")
    for name, (chooser, reader) in READ_BY.items():
        default = SimConfig.__dataclass_fields__[name].default
        if getattr(config, name) != default and getattr(config, chooser) != reader:
            chosen = getattr(config, chooser)
            raise UserError(f"{name}: only {chooser} = {reader} reads it, and {chooser} = {chosen}")
    rule = make_rule(config.rule, config.rule_options)
    if rule.name != BASELINE:
        if config.update == "expected":
            raise UserError(
                f"update = expected: only rule = ttrl has it, and rule = {rule.name}; use sampled"
            )
        check_fit(rule, config.guard, config.labels)


def _check_measured(config: SimConfig) -> None:
    for name in ("response", "lr"):
        if getattr(config, name) is None:
            raise UserError(f"{name}: must be given with policy = measured")
    if config.update != "sampled":
        raise UserError("update = expected: policy = measured draws responses; use sampled")
    if config.unparseable:
        raise UserError(
            f"unparseable = {config.unparseable:g}: with policy = measured the response file has "
            "the unparseable responses; leave it at 0"
        )
    if config.step != STEP:
        raise UserError(f"step = {config.step:g}: policy = measured reads lr; leave step out")
    check_measured_rule(make_rule(config.rule, config.rule_options))
    given, parts = f"parts_off = {', '.join(config.parts_off)}", set(config.parts_off)
    if len(parts) < len(config.parts_off):
        raise UserError(f"{given}: name each part at most once")
    if {"own", "others"} <= parts:
        raise UserError(f"{given}: without own and others no update has an effect; name one")
    if not {"own", "others"} & parts:
        return
    if config.ema_decay > 0 or config.dtype != "float32":
        only = "leave ema_decay at 0, dtype at float32"
        raise UserError(f"{given}: own and others have no average and no rounding; {only}")
    if config.mini_batch > 1:
        raise UserError(
            f"{given}: own and others need mini_batch = 1, and it is {config.mini_batch}"
        )
