"""Runs that belong together, and the names of their arms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from guard_core import GuardConfig
from guard_core.rules import RULES
from lab.base.arms import BASELINE, CUSTOM, GUARD, matched_target
from lab.base.settings import flattened, to_values
from lab.trace.manifest import Manifest

STEP_SIZES = {"real": ("lr",), "sim": ("lr", "step")}
"""World to the settings of its step size, of which the first that is noted counts; runs at several
of them make one family."""

_OF_ARM_AND_SEED = frozenset(
    {"guard", "labels", "rule", "rule_options", "kl_coef", "skip_rate", "step_factor", "seed"}
    | {"average", "treatment", "replicates", "first_replicate"}
)
_COMPUTATIONAL: dict[str, frozenset[str]] = {
    "sim": frozenset({"device", "cuda_graph", "vote_replicates"}),
    "real": frozenset(
        {"attention", "checkpoint_every", "checkpoint_keep", "data_dir", "device", "engine_memory"}
        | {"engine_timeout", "engine_url", "gradient_checkpointing", "hub"}
        | {"keep_votes", "log", "max_refused", "max_rows", "micro_tokens", "rank_timeout"}
        | {"max_unread", "restart_engine", "save_model", "threads"}
    ),
}
"""World to its settings of where and how the work is done, and of what is kept of it."""

_WEIGHTS, _PROMPTS = "weights", "prompts"
_RECORDED = {_WEIGHTS: "model", _PROMPTS: "problems"}
"""Recorded fingerprint to the setting that names the same thing by a path."""
_WEIGHT_FILES = (".safetensors", ".bin", ".pt")
_MOST_NAMED, _LONGEST = 4, 40


@dataclass(slots=True)
class Family:
    """Runs of all arms and step sizes that agree in everything else."""

    world: str
    task: str
    n_problems: int
    n_votes: int
    settings: dict[str, Any] = field(default_factory=dict)
    """All that its runs noted, by name; a setting of a setting as `fields.prompt`."""
    members: list[int] = field(default_factory=list)
    """Places of its runs among those given."""

    @property
    def key(self) -> tuple[str, int, int, list[tuple[str, str]]]:
        """Key that orders the families of one world."""
        settings = sorted((name, repr(value)) for name, value in self.settings.items())
        return self.task, self.n_problems, self.n_votes, settings

    def takes(self, run: Manifest, settings: Mapping[str, Any]) -> bool:
        """Return whether a run agrees with the family in all that both have noted."""
        same = (run.world, run.task, run.n_problems, run.n_votes)
        if same != (self.world, self.task, self.n_problems, self.n_votes):
            return False
        shared = self.settings.keys() & settings.keys()
        # A path is only a name: what was found there counts where both have recorded it.
        shared -= {path for recorded, path in _RECORDED.items() if recorded in shared}
        return all(self.settings[name] == settings[name] for name in shared)


def families(runs: Sequence[Manifest]) -> list[Family]:
    """Group runs that may be compared.

    A setting that a run has not noted, as in folders of earlier versions, agrees with any value.

    Args:
        runs: in any order; the result does not depend on it, up to the order of members.

    Returns:
        Families in the order of their first runs; each run is a member of one.
    """
    noted = [shared_settings(run) for run in runs]
    # Runs that noted most come first, so that one with gaps joins a family and does not found it.
    order = sorted(range(len(runs)), key=lambda place: -len(noted[place]))
    together: list[Family] = []
    for place in order:
        run, settings = runs[place], noted[place]
        family = next((other for other in together if other.takes(run, settings)), None)
        if family is None:
            family = Family(run.world, run.task, run.n_problems, run.n_votes)
            together.append(family)
        family.settings = {**settings, **family.settings}
        family.members.append(place)
    for family in together:
        family.members.sort()
    return sorted(together, key=lambda family: family.members[0])


def shared_settings(run: Manifest) -> dict[str, Any]:
    """Return the settings that all arms and seeds of a comparison share, by name.

    The start model and the problems of a real run are known by their recorded fingerprints.
    """
    own = _OF_ARM_AND_SEED | _COMPUTATIONAL[run.world] | {*STEP_SIZES[run.world]}
    settings = {name: value for name, value in run.config.items() if name not in own}
    return {**flattened(settings), **dict(_fingerprints(run.extra.get("sources")))}


def step_size(run: Manifest) -> float | None:
    """Return the peak learning rate, or the simulator's step; None if it was not noted."""
    noted = (run.config.get(name) for name in STEP_SIZES[run.world])
    return next((float(size) for size in noted if isinstance(size, (int, float)) and size), None)


def distinction(family: Family, others: Sequence[Family]) -> str:
    """Return what tells a family from others on the same task, for its title; empty if alone."""
    same = [other for other in others if (other.world, other.task) == (family.world, family.task)]
    parts = []
    if len({(other.n_problems, other.n_votes) for other in same}) > 1:
        parts.append(f"{family.n_problems} problems, {family.n_votes} votes")
    names = sorted(set().union(*(other.settings for other in same)))
    differing = [name for name in names if len(_values(name, same)) > 1]
    shown = [
        name
        for name in differing
        if name in family.settings and _RECORDED.get(name) not in differing
    ]
    parts += [f"{name} {_short(family.settings[name])}" for name in shown[:_MOST_NAMED]]
    if len(shown) > _MOST_NAMED:
        parts.append(f"and {len(shown) - _MOST_NAMED} more settings")
    return ", ".join(parts)


def _values(name: str, together: Sequence[Family]) -> set[str]:
    return {repr(family.settings[name]) for family in together if name in family.settings}


def _fingerprints(sources: object) -> Iterator[tuple[str, str]]:
    """Yield digests of the start weights and of the problems as the model sees them."""
    if not isinstance(sources, Mapping):
        return
    model = sources.get("model")
    if isinstance(model, Mapping):
        weights = [str(model[name]) for name in sorted(model) if name.endswith(_WEIGHT_FILES)]
        yield _WEIGHTS, " ".join(weights)
    if sources.get("problems"):
        yield _PROMPTS, str(sources["problems"])


def _short(value: object) -> str:
    if value is None:
        return "not set"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"


def arm_names(runs: Sequence[Manifest]) -> list[str]:
    """Name of each run's arm, with the settings of guard, rule and labels in which its runs differ.

    Returns:
        One name per run: `guard` where all runs of the arm agree or where all that differs is at
        its default, else for example `guard (W=3)` or `srt (keep=0.5)`.
    """
    bases = base_arms(runs)
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for base, run in zip(bases, runs, strict=True):
        by_arm.setdefault(base, []).append(_settings(run))
    differing = {arm: _differing(own) for arm, own in by_arm.items()}
    return [_name(base, run, differing[base]) for base, run in zip(bases, runs, strict=True)]


def base_arms(runs: Sequence[Manifest]) -> list[str]:
    """The arm that each run is with other guard settings: its own.

    A guard with settings that no arm has is called `custom`, under a rule `RULE+custom`; in a
    comparison that also has the guard itself, it counts as the guard with other settings.
    """
    guarded = {run.arm for run in runs if guard_settings(run)}
    return [_base(run, guarded) for run in runs]


def guard_settings(run: Manifest) -> Mapping[str, Any]:
    """The guard's settings that a run noted; empty if none."""
    guard = run.config.get("guard")
    return guard if isinstance(guard, dict) else {}


def _base(run: Manifest, guarded: set[str]) -> str:
    rule = _rule(run)
    prefix = "" if rule == BASELINE else f"{rule}+"
    is_variant = run.arm == f"{prefix}{CUSTOM}" and f"{prefix}{GUARD}" in guarded
    return f"{prefix}{GUARD}" if is_variant and guard_settings(run) else run.arm


def _settings(run: Manifest) -> Mapping[str, Any]:
    """Every setting of the run that can make it another arm."""
    names = ("labels", "kl_coef", "average", *(() if matched_target(run.arm) else ("step_factor",)))
    others = {name: run.config[name] for name in names if name in run.config}
    return {**guard_settings(run), **_rule_settings(run), **others}


def _rule(run: Manifest) -> str:
    """Name of the rule that a run noted."""
    return str(run.config.get("rule", BASELINE))


def _rule_settings(run: Manifest) -> Mapping[str, Any]:
    """Every setting of the run's rule: the options that it noted over the rule's defaults."""
    options = run.config.get("rule_options")
    return {**_rule_defaults(run), **(options if isinstance(options, dict) else {})}


def _rule_defaults(run: Manifest) -> Mapping[str, Any]:
    rule = RULES.get(_rule(run))
    return {} if rule is None else {field.name: field.default for field in fields(rule)}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that all runs noted and in which they differ."""
    shared = [key for key in settings[0] if all(key in own for own in settings)]
    return [key for key in shared if any(own[key] != settings[0][key] for own in settings)]


def _name(base: str, run: Manifest, differing: Sequence[str]) -> str:
    own = _settings(run)
    defaults = {**to_values(GuardConfig.paper()), **_rule_defaults(run)}
    defaults |= {"labels": "votes", "kl_coef": 0.0, "average": 0.0, "step_factor": 1.0}
    if all(key in defaults and own[key] == defaults[key] for key in differing):
        return base
    return f"{base} ({', '.join(f'{key}={own[key]}' for key in differing)})"
