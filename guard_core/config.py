"""Settings of the guard, and the checker of all settings: of guard, rules and both worlds.

A setting's bound is part of its type, so that it stands once, next to the default:

    tau_FR: Share = 0.3
    W: Count = 5
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Mapping, MutableSequence
from dataclasses import asdict, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A configuration value is wrong; the message names the field, the value and the bound."""


class Interval:
    """The bound of a number, written as in mathematics: `[0, 1)`, `[1, inf)`."""

    def __init__(self, text: str) -> None:
        low, high = text[1:-1].split(",")
        self.text, self.low, self.high = text, float(low), float(high)

    def __contains__(self, value: float) -> bool:
        above = self.low <= value if self.text.startswith("[") else self.low < value
        below = value <= self.high if self.text.endswith("]") else value < self.high
        return above and below

    def __str__(self) -> str:
        if self.low == -math.inf:
            return f"be {'at most' if self.text.endswith(']') else 'below'} {self.high:g}"
        if self.high < math.inf:
            return f"lie in {self.text}"
        return f"be {'at least' if self.text.startswith('[') else 'above'} {self.low:g}"


Count = Annotated[int, Interval("[1, inf)")]
Natural = Annotated[int, Interval("[0, inf)")]
Positive = Annotated[float, Interval("(0, inf)")]
NotNegative = Annotated[float, Interval("[0, inf)")]
Share = Annotated[float, Interval("[0, 1]")]
PositiveShare = Annotated[float, Interval("(0, 1]")]
ShareBelowOne = Annotated[float, Interval("[0, 1)")]
Numbers = MutableSequence[Any]
"""One problem's numbers: a list of Python's, or a row of an array in compiled code."""
ROUNDING = 1e-9
"""Largest difference of equal numbers: far above rounding, and far below the grid of shares of
whole votes, so that a value on a bound is decided by the bound and not by its last bit."""

Part = Literal["frs", "mps", "rcsu"]
PARTS: tuple[Part, ...] = get_args(Part)
PROFILES = ("paper", "release", "off", "recommended")
_FRS_OFF = ("llama-3.2-3b/", "qwen3-4b/", "llama-", "qwen3-")
SCRIPTS = {
    model + data: {"frs": model not in _FRS_OFF, "mps": True, "rcsu": True, "theta_MR": 0.5}
    for model in (*_FRS_OFF, "qwen2.5-7b/", "qwen-")
    for data in ("aime24", "aime25", "amc", "math500")
}
"""Cell of the paper, by its name as a preset or a population, to what the authors' script for it
sets otherwise than the class in their code (docs/differences.md)."""


def check_fields(
    record: Any, error: type[Exception] = ConfigError, prefix: str = "", owner: str = ""
) -> None:
    """Check the type and the bounds of every field of a dataclass.

    Args:
        error: raised for the first field that is wrong.
        prefix: put before the field's name in the message.
        owner: name of the record in messages; that of its class if left out.
    """
    for name, kind in _kinds(type(record), owner or type(record).__name__).items():
        if message := fault(prefix + name, getattr(record, name), kind):
            raise error(message)


def fault(name: str, value: Any, kind: Any) -> str | None:
    """Return the message for a value that does not fit a type, None where it fits.

    Args:
        kind: a class, `Literal`, union, tuple or mapping type; `Annotated` with an `Interval`
            bounds a number. Other types are not checked.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        for bound in parts[1:]:
            if is_number and isinstance(bound, Interval) and value not in bound:
                closed = math.isfinite(value) or math.isfinite(bound.high - bound.low)
                return f"{name} = {value}: must {bound}{'' if closed else ' and finite'}"
        return fault(name, value, parts[0])
    if origin is Literal:
        known = ", ".join(map(str, parts))
        return None if value in parts else f"{name} = {value!r}: must be one of {known}"
    if origin in (Union, UnionType):
        faults = [fault(name, value, part) for part in parts if part is not NoneType]
        return None if None in faults or (value is None and NoneType in parts) else faults[0]
    if origin is tuple and isinstance(value, tuple):
        kinds = parts[:1] * len(value) if parts[-1:] == (Ellipsis,) else parts
        if len(value) != len(kinds):
            return f"{name} = {value!r}: must have {len(kinds)} entries"
        pairs = enumerate(zip(value, kinds, strict=True))
        return next(filter(None, (fault(f"{name}[{i}]", *pair) for i, pair in pairs)), None)
    kind = origin or kind
    if not isinstance(kind, type):
        return None
    # bool is an int to Python, but `W = true` in a settings file is a mistake.
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (kind in (int, float) and isinstance(value, bool)):
        return f"{name} = {value!r}: must be of type {kind.__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} = {value}: must be a finite number"
    return None


@functools.cache
def _kinds(record: type, owner: str) -> dict[str, Any]:
    """Types of the fields by name, with their bounds."""
    try:
        hints = get_type_hints(record, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{owner}: the types of its settings cannot be read ({error}); "
            "import what they name outside of TYPE_CHECKING"
        ) from error
    return {field.name: hints[field.name] for field in fields(record)}


class _Checked:
    """A record that checks the type and the bounds of every field."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels(_Checked):
    """Choice of the label (docs/method.md, sections 2 and 16)."""

    tie_break: Literal["random", "first", "incumbent"] = "random"
    """The winner of a tie; `incumbent` falls back to `random` where the old label is not tied."""
    label_from: Literal["current", "frozen", "memory"] = "current"
    """This visit's votes, the majority before training, or the votes summed over all visits."""
    discount: PositiveShare = 1.0
    """Factor in (0, 1] on older votes, with `label_from="memory"`."""
    hysteresis: Share = 0.0
    """The old label stays while it has at least `1 - hysteresis` of the winner's votes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(_Checked):
    """Flip rate and match rate, which all parts and the trace read (docs/method.md, section 3)."""

    W: Annotated[int, Interval("[1, 10000]")] = 5
    """History window in visits."""
    flip_rate: Literal["windowed", "instant"] = "windowed"
    """Share of the last `W` visits with a flip, or 1 when the label just flipped (release)."""
    tau_FR: Share = 0.3
    """Flip rate above which a problem is contested."""
    tau_MR: Share = 0.6
    """Match rate above which consensus counts as confident (conditions C1 and C2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FRS(_Checked):
    """Flip-rate-aware reward scaling (docs/method.md, section 4)."""

    l1: Share = 0.5
    """lambda_1: how fast the weight falls with the flip rate."""
    l2: Share = 0.3
    """lambda_2: penalty under C1; half of it under C2."""
    w_min: Share = 0.1
    """Floor of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MPS(_Checked):
    """Minority-preserving sampling (docs/method.md, section 5)."""

    beta_max: Share = 0.3
    """Largest share of the minority loss."""
    beta_schedule: Literal["linear", "saturating"] = "linear"
    """`beta_max * FR`, or `beta_max * min(FR / tau_FR, 1)` (release)."""
    T_steady: Count = 3
    """Visits in a row with a flip rate of at most `tau_FR` after which MPS turns off."""
    minority_over: Literal["samples", "votes"] = "samples"
    """Responses that a minority candidate is counted over: K samples, or V votes (release)."""
    minority_share: Share = 0.25
    """A candidate needs `max(1, floor(minority_share * K))` responses."""
    minority_reward: PositiveShare = 0.1
    """epsilon, the reward of a candidate; it cancels under group standardisation."""
    empty_minority: Literal["keep", "plain"] = "keep"
    """With no candidate: keep the factor `1 - beta` (literal), or set `beta` to 0."""
    mix: Literal["loss", "bonus"] = "loss"
    """Two loss streams (paper), or a bonus on the candidates' advantages (release)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RCSU(_Checked):
    """Risk-conditioned sparse updating (docs/method.md, section 6)."""

    theta_MR: Share = 0.5
    """Mean match rate above which a once contested problem is at high risk."""
    p_skip: Share = 0.7
    """Probability that a high-risk problem becomes a skip candidate."""
    skip_share: Share = 0.25
    """Largest share of a batch's problems that is skipped."""
    skip_cap: Literal["floor", "at_least_one"] = "floor"
    """`floor(skip_share * P)`, or at least one (release)."""
    skip_order: Literal["random", "first"] = "random"
    """Candidates that fill the cap: smallest `pick` draws, or first in the batch (release)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin(_Checked):
    """Weights and skips by the label's support (docs/method.md, section 16); off by default."""

    margin_power: Annotated[int, Interval("[0, 8]")] = 0
    """Weights are multiplied by this power of the label's lead over the best other answer, as a
    share of the votes that it was chosen by; 0 leaves them as they are."""
    min_share: Share = 0.0
    """Problems whose label has a smaller share of these votes are skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages(_Checked):
    """From rewards, weights and skips to advantages (docs/method.md, sections 4, 6, 9 and 16)."""

    advantage_scale: Literal["group", "batch", "none"] = "group"
    """Rewards minus their group mean over the group's std, the batch's std, or nothing."""
    negative_scale: Share = 1.0
    """Factor on negative advantages; at 0 training only raises rewarded responses."""
    weight_on: Literal["loss", "advantage", "reward"] = "loss"
    """Target of the weight; on the reward it is a no-op under group standardisation."""
    skip_by: Literal["drop", "mask"] = "drop"
    """Skipped samples leave the batch, or stay in it with advantage 0 (release)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake(_Checked):
    """Learning rate that falls while labels flip (docs/method.md, section 16); off by default."""

    brake: Share = 1.0
    """Factor on the learning rate of the rest of the run, at every batch after whose votes the
    brake's signal exceeds its limit: 1 never brakes, 0 ends training."""
    brake_on: Literal["flip_rate", "match_rate"] = "flip_rate"
    """The signal: share of all problems whose label changed at their latest visit, or the mean
    match rate of these visits."""
    brake_above: Share = 0.2
    """The limit of the signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig(_Checked):
    """Settings of the guard (docs/method.md), one record per part; by default those of the paper.

    None switches a part off. `paper`, `release`, `release_scripts`, `off`, `only` and `recommended`
    are the named profiles. Fields of the records are the paper's symbols. No two records share one,
    so that `set` and command lines need no more than this short name.

    Raises:
        ConfigError: a field has the wrong type, or lies outside its bounds.
    """

    labels: Labels = Labels()
    rates: Rates = Rates()
    frs: FRS | None = FRS()
    """Flip-rate-aware reward scaling (docs/method.md, section 4)."""
    mps: MPS | None = MPS()
    """Minority-preserving sampling (docs/method.md, section 5)."""
    rcsu: RCSU | None = RCSU()
    """Risk-conditioned sparse updating (docs/method.md, section 6)."""
    margin: Margin = Margin()
    advantages: Advantages = Advantages()
    brake: Brake = Brake()

    @classmethod
    def paper(cls) -> GuardConfig:
        """TTRL-Guard as the paper's text and hyperparameter table define it."""
        return cls()

    @classmethod
    def release(cls) -> GuardConfig:
        """TTRL-Guard as the authors' code does it (docs/differences.md)."""
        return cls(
            labels=Labels(tie_break="first"),
            rates=Rates(flip_rate="instant"),
            mps=MPS(beta_schedule="saturating", minority_over="votes", mix="bonus"),
            rcsu=RCSU(theta_MR=0.7, skip_cap="at_least_one", skip_order="first"),
            advantages=Advantages(weight_on="advantage", skip_by="mask"),
        )

    @classmethod
    def release_scripts(cls, cell: str) -> GuardConfig:
        """TTRL-Guard as the authors' script for one cell of the paper sets it in their code.

        Args:
            cell: a preset of `guard-train`, such as `llama-3.2-3b/math500`, or a population of the
                simulator, such as `llama-math500`.
        """
        if cell not in SCRIPTS:
            raise ConfigError(f"cell = {cell!r}: unknown, use one of {', '.join(SCRIPTS)}")
        return cls.release().set(**SCRIPTS[cell])

    @classmethod
    def off(cls) -> GuardConfig:
        """Plain TTRL: labels and rates are tracked, nothing is changed."""
        return cls(frs=None, mps=None, rcsu=None)

    @classmethod
    def recommended(cls) -> GuardConfig:
        """Labels by the votes of all visits, which change only where another answer clearly leads.

        Without the guard's three parts; meant with a KL penalty to the start model of .05, as the
        arm `recommended` has it (docs/findings.md).
        """
        return replace(cls.off(), labels=Labels(label_from="memory", hysteresis=0.25))

    @classmethod
    def only(cls, part: Part) -> GuardConfig:
        """The ablation with one part on, in the paper's profile."""
        if part not in PARTS:
            raise ConfigError(f"part = {part!r}: must be one of {', '.join(PARTS)}")
        return cls.off().set(**{part: True})

    @classmethod
    def profile(cls, name: str) -> GuardConfig:
        """A profile by name: `paper`, `release`, `off`, `recommended`, `frs`, `mps` or `rcsu`."""
        if name not in (*PROFILES, *PARTS):
            known = ", ".join([*PROFILES, *PARTS])
            raise ConfigError(f"profile = {name!r}: unknown, use one of {known}")
        return cls.only(name) if name in PARTS else getattr(cls, name)()  # type: ignore[arg-type]

    @property
    def acts(self) -> bool:
        """Some problem may be weighed, protected or skipped."""
        on = any(getattr(self, part) is not None for part in PARTS)
        return on or self.margin.margin_power > 0 or self.margin.min_share > 0

    def set(self, **values: Any) -> GuardConfig:
        """Return the settings with some changed, by their short names: `set(frs=False, W=3)`.

        `frs`, `mps` and `rcsu` are True for on, with the paper's settings where it was off, and
        False for off.

        Raises:
            ConfigError: there is no such setting, its part is off, or its value is wrong.
        """
        made = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in sorted(values, key=lambda name: name not in PARTS):
            value, group = values[name], GROUP_OF.get(name, name)
            if name in PARTS:
                if message := fault(name, value, bool):
                    raise ConfigError(message)
                made[name] = (made[name] or RECORDS[name]()) if value else None
            elif name not in KINDS:
                raise ConfigError(f"{name}: no such guard setting")
            elif made[group] is None:
                off = f"is a setting of {group}, which is off; set {group} = true"
                raise ConfigError(f"{name} = {value!r}: {off}")
            else:
                made[group] = replace(made[group], **{name: value})
        return replace(self, **made)

    def flat(self) -> dict[str, Any]:
        """Return whether each part is on, and all settings, as `short_names` has them."""
        return {**USUAL, **short_names(self.to_dict())}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for TOML and JSON: a table for each part, False where it is off."""
        return {name: False if part is None else part for name, part in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GuardConfig:
        """Build from tables as of `to_dict`, or from short names without tables.

        What is missing takes the paper's defaults. Short names of a part that is off are ignored.
        """
        flat = short_names(values)
        parts = {part: flat.pop(part) for part in PARTS if part in flat}
        return cls().set(**flat).set(**parts)


RECORDS: dict[str, type[Any]] = {f.name: type(f.default) for f in fields(GuardConfig)}
"""Name of a part to the class of its record."""
GROUP_OF = {f.name: name for name, record in RECORDS.items() for f in fields(record)}
"""Short name of every setting to its part."""
KINDS: dict[str, Any] = dict.fromkeys(PARTS, bool)
KINDS |= {n: kind for r in RECORDS.values() for n, kind in _kinds(r, r.__name__).items()}
"""Short name of every part that can be off, and of every setting, to its type with bounds."""
USUAL: dict[str, Any] = dict.fromkeys(PARTS, True)
USUAL |= {f.name: f.default for record in RECORDS.values() for f in fields(record)}
"""`GuardConfig.flat` of the paper's settings."""


def short_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return noted settings of a guard, unchecked, by their short names.

    They stand in tables as of `GuardConfig.to_dict`, or by short names as in old run folders. Those
    of a part that is off are the paper's where they are not noted.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {name: True, **value} if name in PARTS else value
        else:
            flat[name] = value
    off = [part for part in PARTS if flat.get(part) is False]
    return {n: v for n, v in USUAL.items() if GROUP_OF.get(n) in off} | flat


def floor_share(share: float, n: int) -> int:
    """`floor(share * n)` for a share written in decimals: .29 of 100 is 29, not 28."""
    return int(share * n + ROUNDING)


_FLAGS = {
    f"{name}_{word}": (name, word)
    for name, kind in KINDS.items()
    if get_origin(kind) is Literal
    for word in get_args(kind)
}
_NUMBERS = [name for name, kind in KINDS.items() if get_origin(kind) is not Literal]
Settings = namedtuple("Settings", ["n_votes", "n_samples", "least", *_NUMBERS, *_FLAGS])
"""`GuardConfig` as numbers and flags for the law, with the sizes of a visit.

A setting of words becomes a flag for each, such as `tie_break_first`. `least` is the number of
responses that make an answer a minority candidate. Those of a part that is off are the paper's:
`had_competition`, the route and the count of candidates are recorded all the same.
"""


@functools.lru_cache
def settings(config: GuardConfig, n_votes: int, n_samples: int) -> Settings:
    """Return the settings of visits with V votes and K samples."""
    values = config.flat()
    least = max(1, floor_share(values["minority_share"], n_samples))
    numbers = [values[name] for name in _NUMBERS]
    flags = [values[name] == word for name, word in _FLAGS.values()]
    return Settings(n_votes, n_samples, least, *numbers, *flags)
