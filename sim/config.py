"""Every number of a simulated run in one frozen, self-checking record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from guard_core import GuardConfig
from lab.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Settings of a simulation; the defaults are Llama-3.2-3B on MATH-500 under the full guard.

    Raises:
        UserError: a field has the wrong type or an impossible value; the message names the field,
            the value and the bound.
    """

    policy: Literal["independent", "attractor"] = "attractor"
    """How problems influence each other, see `sim.policies`."""
    population: str = "llama-math500"
    """What the model knows before training: a name of `sim.populations.NAMED`, or `beta` or
    `point` together with `ability_mean`."""
    ability_mean: float | None = None
    """Mean probability of the correct answer before training; in place of the population's own."""
    ability_concentration: float | None = None
    """a + b of the Beta law of that probability; in place of the population's own."""
    ability_floor: float = 0.02
    """No ability lies nearer to 0 or 1 than this: sampling at a temperature is never certain."""
    fixed_population: bool = False
    """All replicates share one population; by default each draws its own."""

    guard: GuardConfig = field(default_factory=GuardConfig)
    """The guard; the paper's profile by default."""
    labels: Literal["votes", "truth"] = "votes"
    """`truth` trains on the true answers while the guard goes on watching the votes."""

    n_problems: int = 500
    """N, problems of the fixed set."""
    epochs: int = 30
    """Passes over all problems, so visits per problem."""
    batch_size: int = 8
    """P, problems whose votes are drawn from one state of the policy."""
    n_votes: int = 64
    """V, responses per visit."""
    n_samples: int = 32
    """K, the first of them, which are trained on."""
    n_answers: int = 10
    """A, different answers per problem."""
    unparseable: float = 0.0
    """Constant chance that a response holds no readable answer."""

    step: float = 0.06
    """Change of a logit per unit of standardised advantage at the schedule's peak (eta)."""
    step_factor: float = 1.0
    """Constant factor on `step`, for the control at matched effort."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Cosine decay to 0 after a linear warm-up, or `step` throughout."""
    warmup_ratio: float = 0.03
    """Share of all batches that the warm-up of the cosine schedule takes."""
    optimizer: Literal["sgd"] = "sgd"
    """Plain gradient steps."""

    kappa_att: float = 0.25
    """Attractor policy: coupling of the attractors of all problems."""
    kappa_corr: float = 0.012
    """Attractor policy: coupling of the correct answers of all problems."""
    neg_transfer: float = 0.3
    """Attractor policy: factor on what a penalty moves the shared directions."""
    load_sd: float = 0.3
    """Attractor policy: spread of the problems' loadings on the shared directions around 1."""
    att_share: float = 0.3
    """Mean share of the wrong mass that the attractor answer holds before training."""
    att_concentration: float = 4.0
    """a + b of the Beta law of that share."""
    wrong_concentration: float = 0.5
    """Dirichlet parameter of the other wrong answers' shares."""

    replicates: int = 1
    """R, independent runs that are computed side by side."""
    first_replicate: int = 0
    """Number of the first replicate; replicate r is the same run whatever is run beside it."""
    seed: int = 0
    """Seed of all random numbers."""

    def __post_init__(self) -> None:
        """Check every field's type and bounds."""
        for name, kind in get_type_hints(SimConfig).items():
            _check_type(name, getattr(self, name), kind)
        for name, (low, high) in _BOUNDS.items():
            _check_bound(name, getattr(self, name), low, high)
        _check_together(self)

    @property
    def n_batches(self) -> int:
        """Batches per epoch; the last may be smaller."""
        return math.ceil(self.n_problems / self.batch_size)

    def step_at(self, batch: int) -> float:
        """Step size of a batch, numbered from 0 over the whole run, `step_factor` included."""
        peak = self.step * self.step_factor
        if self.schedule == "constant":
            return peak
        total = self.epochs * self.n_batches
        warm = int(self.warmup_ratio * total)
        if batch < warm:
            return peak * (batch + 1) / warm
        return peak * 0.5 * (1 + math.cos(math.pi * (batch - warm) / max(1, total - warm)))


_TINY = 5e-324
_BOUNDS: dict[str, tuple[float, float]] = {
    "n_problems": (1, 1_000_000),
    "epochs": (1, 100_000),
    "batch_size": (1, 1_000_000),
    "n_votes": (1, 65_536),
    "n_samples": (1, 65_536),
    "n_answers": (2, 1000),
    "unparseable": (0, 1),
    "step": (0, math.inf),
    "step_factor": (0, math.inf),
    "warmup_ratio": (0, 1),
    "kappa_att": (0, math.inf),
    "kappa_corr": (0, math.inf),
    "neg_transfer": (0, math.inf),
    "load_sd": (0, math.inf),
    "att_share": (0, 1),
    "att_concentration": (_TINY, math.inf),
    "wrong_concentration": (_TINY, math.inf),
    "ability_mean": (0, 1),
    "ability_floor": (0, 0.5),
    "ability_concentration": (_TINY, math.inf),
    "replicates": (1, 32_768),
    "first_replicate": (0, 32_767),
    "seed": (0, 2**63 - 1),
}


def _check_type(name: str, value: object, kind: Any) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UserError(f"{name} = {value!r}: must be one of {', '.join(get_args(kind))}")
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
    if low == _TINY and value <= 0:
        raise UserError(f"{name} = {value}: must be above 0")
    if not low <= value <= high:
        bound = f"at least {low:g}" if high == math.inf else f"in [{low:.10g}, {high:.10g}]"
        raise UserError(f"{name} = {value}: must be {bound}")


def _check_together(config: SimConfig) -> None:
    from sim.populations import FREE, NAMED

    if config.n_samples > config.n_votes:
        raise UserError(
            f"n_samples = {config.n_samples}: must be at most n_votes = {config.n_votes}"
        )
    if config.first_replicate + config.replicates > 32_768:
        raise UserError(
            f"first_replicate = {config.first_replicate}: with {config.replicates} replicates the "
            "last number exceeds 32767"
        )
    if config.population not in (*NAMED, *FREE):
        known = ", ".join([*NAMED, *FREE])
        raise UserError(f"population = {config.population!r}: unknown, use one of {known}")
    for name in FREE.get(config.population, ()):
        if getattr(config, name) is None:
            raise UserError(f"{name}: must be given with population = {config.population}")
