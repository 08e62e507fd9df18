"""Families of runs that may be compared, and the names of their arms; reads manifests alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from guard_core.config import USUAL, short_names
from guard_core.rules import RULES
from lab.base.named_arms import BASELINE, CONTROLS, CUSTOM, GUARD, OWN, PERMUTED, REPLAYED
from lab.base.roles import NOT_COMPARED, having
from lab.base.settings import flattened
from lab.trace.manifest import Manifest

_STEP_SIZES = ("lr", "step")
"""Settings of the step size, of which the first that is noted counts: the trainer has the first,
the simulator both. Runs at several step sizes make one family."""

_EARLIER = """
guard labels rule rule_options kl_coef skip_rate step_factor seed ema_decay treatment replicates
first_replicate lr step attention checkpoint_every checkpoint_keep checkpoint_minutes cuda_graph
data_dir device engine_adapters engine_exchange engine_memory engine_timeout engine_tp engine_url
gradient_checkpointing hub keep_votes log max_bad_steps max_rows max_tokens_per_microbatch
max_unread offload_optimizer rank_timeout restart_engine save_model threads vote_replicates
"""
"""Settings that do not matter to a comparison, of runs of earlier versions, which note no roles.
New settings do not belong here."""

WEIGHTS, PROMPTS = "weights", "prompts"
_RECORDED = {WEIGHTS: "model", PROMPTS: "problems"}
"""Recorded fingerprint to the setting that names the same thing by a path."""
_WEIGHT_FILES = (".safetensors", ".bin", ".pt")
_MOST_NAMED, _LONGEST = 4, 40
_SAME = ("world", "task", "n_problems", "n_votes")
"""Fields of the manifest in which a family's runs agree."""
_USUAL = {"labels": "votes", "kl_coef": 0.0, "ema_decay": 0.0, "treatment": OWN}
"""Settings of an arm beside its guard and its rule, with their usual values."""
_FOUND = {"step_factor": 1.0, "skip_rate": 0.0}
"""The same of all arms but controls, for which they are found."""


@dataclass(slots=True)
class Family:
    """Runs of all arms and step sizes that agree in everything else."""

    run: Manifest
    """One of them."""
    settings: dict[str, Any]
    """All that its runs noted, by name; a setting of a setting as `fields.prompt`."""
    members: list[int] = field(default_factory=list)
    """Places of its runs among those given."""

    @property
    def key(self) -> tuple[str, int, int, list[tuple[str, str]]]:
        """Key that orders the families of one world."""
        settings = sorted((name, repr(value)) for name, value in self.settings.items())
        return self.run.task, self.run.n_problems, self.run.n_votes, settings

    def takes(self, run: Manifest, settings: Mapping[str, Any]) -> bool:
        """Return whether a run agrees with the family in all that both have noted."""
        if any(getattr(run, name) != getattr(self.run, name) for name in _SAME):
            return False
        shared = self.settings.keys() & settings.keys()
        # A path is only a name: what was found there counts where both have recorded it.
        shared -= {path for recorded, path in _RECORDED.items() if recorded in shared}
        return all(self.settings[name] == settings[name] for name in shared)


def families(runs: Sequence[Manifest]) -> list[Family]:
    """Group runs that may be compared; a setting that a run has not noted agrees with any value.

    Returns:
        Families in the order of their first runs; each run is a member of one.
    """
    noted = [shared_settings(run) for run in runs]
    together: list[Family] = []
    # Runs that noted most come first, so that one with gaps joins a family and does not found it.
    for place in sorted(range(len(runs)), key=lambda place: -len(noted[place])):
        run, settings = runs[place], noted[place]
        family = next((other for other in together if other.takes(run, settings)), None)
        if family is None:
            family = Family(run, {})
            together.append(family)
        family.settings = {**settings, **family.settings}
        family.members.append(place)
    for family in together:
        family.members.sort()
    return sorted(together, key=lambda family: family.members[0])


def shared_settings(run: Manifest) -> dict[str, Any]:
    """Return the settings that all arms and seeds of a comparison share, by name.

    The start weights of a real run, and its problems as the model sees them, are known by their
    recorded digests.
    """
    free = having(run.roles, *NOT_COMPARED) if run.roles else _EARLIER.split()
    settings = flattened({n: value for n, value in run.config.items() if n not in free})
    sources = run.extra.get("sources")
    if isinstance(sources, Mapping):
        if isinstance(model := sources.get("model"), Mapping):
            files = [str(model[name]) for name in sorted(model) if name.endswith(_WEIGHT_FILES)]
            settings[WEIGHTS] = " ".join(files)
        if sources.get("problems"):
            settings[PROMPTS] = str(sources["problems"])
    return settings


def step_size(run: Manifest) -> float | None:
    """Return the peak learning rate, or the simulator's step; None if it was not noted."""
    noted = (run.config.get(name) for name in _STEP_SIZES)
    return next((float(size) for size in noted if isinstance(size, (int, float))), None)


def distinction(family: Family, others: Sequence[Family]) -> str:
    """Return what tells a family from others on the same task, for its title; empty if alone."""
    run = family.run
    same = [o for o in others if (o.run.world, o.run.task) == (run.world, run.task)]
    parts = []
    if len({(other.run.n_problems, other.run.n_votes) for other in same}) > 1:
        parts.append(f"{run.n_problems} problems, {run.n_votes} votes")
    settings, of_same = family.settings, [other.settings for other in same]
    noted = {n: {repr(s[n]): s[n] for s in of_same if n in s} for n in settings}
    differing = sorted(name for name, values in noted.items() if len(values) > 1)
    shown = [name for name in differing if _RECORDED.get(name) not in differing]
    named = shown[:_MOST_NAMED]
    for other in of_same:
        apart = [n for n in differing if n not in other or other[n] != settings[n]]
        if not {*apart} & {*named}:
            named += apart[:1]  # else both would have one title
    for name in named:
        short = [_short(value) for value in noted[name].values()]
        is_clear = short.count(_short(settings[name])) == 1
        parts.append(f"{name} {_short(settings[name]) if is_clear else settings[name]}")
    if left := len({*shown} - {*named}):
        parts.append(f"and {left} more settings")
    return ", ".join(parts)


def _short(value: object) -> str:
    if value is None:
        return "not set"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"


def arm_names(runs: Sequence[Manifest]) -> list[str]:
    """Name of each run's arm, with the settings of guard, rule and labels in which its runs differ.

    It is `guard` where all runs of the arm agree or where all that differs is at its default, else
    for example `guard (W=3)` or `srt (keep=0.5)`. Settings that all of them noted count. A guard
    with settings that no arm has is called `custom`, under a rule `RULE+custom`; beside the guard
    itself, it counts as the guard with other settings.
    """
    guarded = {run.arm for run in runs if _noted(run, "guard")}
    bases, noted, names = [], [_settings(run) for run in runs], []
    for run in runs:
        rule = run.config.get("rule", BASELINE)
        prefix = "" if rule == BASELINE else f"{rule}+"
        is_variant = run.arm == f"{prefix}{CUSTOM}" and f"{prefix}{GUARD}" in guarded
        bases.append(f"{prefix}{GUARD}" if is_variant and _noted(run, "guard") else run.arm)
    for base, (settings, defaults) in zip(bases, noted, strict=True):
        of_arm = [noted[place][0] for place, other in enumerate(bases) if other == base]
        shared = [key for key in of_arm[0] if all(key in other for other in of_arm)]
        differing = [key for key in shared if any(o[key] != settings[key] for o in of_arm)]
        is_usual = all(key in defaults and settings[key] == defaults[key] for key in differing)
        shown = ", ".join(f"{key}={settings[key]}" for key in differing)
        names.append(base if is_usual else f"{base} ({shown})")
    return names


def _noted(run: Manifest, name: str) -> Mapping[str, Any]:
    record = run.config.get(name)
    return record if isinstance(record, dict) else {}


def _settings(run: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of an arm that its run noted, and the defaults of all settings."""
    names = [*_USUAL, *([] if run.arm.startswith(CONTROLS) else _FOUND)]
    others = {name: run.config[name] for name in names if name in run.config}
    if others.get("treatment", OWN) not in (OWN, PERMUTED):
        others["treatment"] = REPLAYED  # a folder, by seed another one
    rule = RULES.get(str(run.config.get("rule", BASELINE)))
    if rule is None or not rule.__module__.startswith("guard_core."):  # by its files' content
        others["rules"] = " ".join(re.findall(r"#(\w+)", str(run.config.get("rules"))))
    usual = {} if rule is None else {field.name: field.default for field in fields(rule)}
    guard, options = short_names(_noted(run, "guard")), _noted(run, "rule_options")
    return {**guard, **usual, **options, **others}, {**USUAL, **usual, **_USUAL, **_FOUND}
