"""What is refused of runs before PyTorch is imported and any folder is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.arm_settings import with_arm
from lab.base.arms import ALL_ARMS, BASELINE, arm
from lab.base.errors import UserError
from real.model.folder import PREFIX, model_folder
from real.problems.load import read_problems
from real.problems.problem import ProblemSet
from real.settings.config import TrainConfig


def check_asked(
    config: TrainConfig, arms: Sequence[str], seeds: Sequence[int]
) -> tuple[ProblemSet | None, Path | None]:
    """Refuse mistakes that every run would repeat; returns `read_sources`."""
    check_shared(config, arms, "seed")
    runs = [with_arm(config, arm(name)) for name in arms]
    check_list("arms", arms, f"name some of {', '.join(ALL_ARMS)}")
    check_list("seeds", seeds, "give whole numbers from 0")
    if any(seed < 0 for seed in seeds):
        raise UserError(f"seeds = {min(seeds)}: must be at least 0")
    # One that trains on the answers needs more of the problems.
    return read_sources(next((run for run in runs if run.labels == "truth"), config))


def check_shared(config: TrainConfig, arms: Sequence[str], *names: str) -> None:
    """Refuse settings of which every arm has its own, some others, and the rule of no arm."""
    usual = TrainConfig(rule=config.rule, tiny_verifies=True)  # which any rule can have
    for name in ("guard", "labels", "treatment", "step_factor", *names):
        if getattr(config, name) != getattr(usual, name):
            raise UserError(f"{name}: every arm and seed has its own in a comparison; leave it out")
    if config.rule not in (BASELINE, *(arm(name).rule for name in arms)):
        raise UserError(
            f"rule = {config.rule!r}: is that of no arm; name arms with it, or leave out"
        )


def check_lrs(config: TrainConfig, lrs: Sequence[float]) -> None:
    """Refuse learning rates that are none, and two whose folders would be one."""
    for lr in lrs:
        replace(config, lr=lr)
    check_list("lrs", [f"{lr:g}" for lr in lrs], "give learning rates above 0")


def check_list(name: str, values: Sequence[object], remedy: str) -> None:
    """Refuse an empty list, and one that names something twice."""
    if not values:
        raise UserError(f"{name}: the list is empty; {remedy}")
    if len(set(values)) < len(values):
        raise UserError(f"{name}: the list names one twice; {remedy}")


def read_sources(config: TrainConfig, fetch: bool = True) -> tuple[ProblemSet | None, Path | None]:
    """Return problems and model folder of settings; None where they name none."""
    problems, model = config.problems, config.own_model
    if not fetch:
        problems = None if config.hub or (problems or "").startswith(PREFIX) else problems
        model = None if (model or "").startswith(PREFIX) else model
    known = config.labels == "truth"
    read = None if problems is None else read_problems(config, with_answers=known)
    return read, None if model is None else model_folder(model)
