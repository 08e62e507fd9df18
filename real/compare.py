"""Arms times seeds: every arm on the same seeds, then how accurate each of them ended.

The arm at matched effort needs to know how far the guard moved the weights, so it comes last: one
factor on the learning rate, pooled over the seeds, and a note of how well it was met.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lab.arms import ALL_ARMS, BASELINE, DEMO_ARMS, GUARD, MATCHED, arm
from lab.effort import achieved_ratio, matched_factor
from lab.errors import UserError
from lab.manifest import FILE_NAME, encode, read_manifest
from lab.trace import load
from real.config import TrainConfig
from real.jobs import Job, Outcome, run_jobs
from real.problems.sources import model_folder, read_problems

_PER_ARM = ("guard", "labels", "step_factor", "seed")
"""Settings that belong to the arm or the seed, so a comparison cannot be given them."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """How one arm ended, over its finished seeds."""

    name: str
    title: str
    seeds: list[int]
    start: list[float]
    """pass@1 before training, per seed."""
    final: list[float]
    """pass@1 after training, per seed."""

    @property
    def line(self) -> str:
        """Mean and spread in one line."""
        if not self.seeds:
            return f"{self.title}: no run finished"
        spread = f" +- {np.std(self.final, ddof=1):.3f}" if len(self.seeds) > 1 else ""
        return (
            f"{self.title}: pass@1 {np.mean(self.start):.3f} -> {np.mean(self.final):.3f}{spread} "
            f"({len(self.seeds)} seeds)"
        )


@dataclass(slots=True)
class Comparison:
    """What a comparison left behind."""

    folder: Path
    arms: list[ArmResult]
    failed: list[Outcome] = field(default_factory=list)
    """Runs that did not finish."""
    step_factor: float | None = None
    """Factor on the learning rate of the arm at matched effort."""
    achieved_ratio: float | None = None
    """Mean update norm of that arm by the guard's; 1 is a perfect match."""

    @property
    def notices(self) -> list[str]:
        """What the finished runs told their users, each sentence once."""
        folders = (
            run_folder(self.folder, arm.name, seed) for arm in self.arms for seed in arm.seeds
        )
        told = (read_manifest(folder).extra.get("notices", []) for folder in folders)
        return list(dict.fromkeys(line for lines in told for line in lines))


def compare(
    config: TrainConfig,
    folder: str | Path,
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int = 2,
    report: Callable[[float], None] = lambda _: None,
) -> Comparison:
    """Run every arm on every seed, into `folder/ARM/seed-SEED`.

    Args:
        config: shared settings; what an arm or a seed decides must be left at its default.
            `rule` and `rule_options` are read together: settings of all arms with that rule.
        folder: for the run folders; those of this comparison must not exist.
        arms: names of `lab.arms`.
        seeds: arms of one seed are paired: same votes before training, order and draws.
        n_parallel: runs at once.
        report: called with the number of runs done, fractions of running ones included.

    Raises:
        UserError: an arm is unknown, lacks its partners, or a folder exists.
    """
    folder = Path(folder)
    _check(config, folder, arms, seeds, n_parallel)
    _make(folder, arms)
    first = [name for name in arms if name != MATCHED]
    jobs = [_job(config, folder, name, seed) for name in first for seed in seeds]
    result = Comparison(folder, [])
    result.failed += _failed(run_jobs(jobs, n_parallel, report))
    if MATCHED in arms:
        done = len(jobs)
        _run_matched(config, result, seeds, n_parallel, lambda now: report(done + now))
    result.arms += [_result(folder, name, seeds) for name in arms]
    return result


def compare_steps(
    config: TrainConfig,
    folder: str | Path,
    lrs: Sequence[float],
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int = 2,
    report: Callable[[float], None] = lambda _: None,
) -> dict[float, Comparison]:
    """One comparison per peak learning rate, into `folder/lr-LR`; see `compare`.

    Raises:
        UserError: as `compare` does, before any run starts; or a learning rate is named twice.
    """
    _check_list("lrs", lrs, "give learning rates above 0")
    settings = {lr: replace(config, lr=lr) for lr in lrs}
    for lr, own in settings.items():
        _check(own, Path(folder) / f"lr-{lr:g}", arms, seeds, n_parallel)
    found: dict[float, Comparison] = {}
    for place, (lr, own) in enumerate(settings.items()):
        done = place * n_runs(arms, seeds)
        found[lr] = compare(
            own,
            Path(folder) / f"lr-{lr:g}",
            arms,
            seeds,
            n_parallel,
            lambda now, done=done: report(done + now),
        )
    return found


def n_runs(arms: Sequence[str], seeds: Sequence[int]) -> int:
    """Runs of a comparison."""
    return len(arms) * len(seeds)


def run_folder(folder: Path, arm_name: str, seed: int) -> Path:
    """Where one run of a comparison is."""
    return folder / arm_name / f"seed-{seed}"


def _job(config: TrainConfig, folder: Path, name: str, seed: int, step_factor: float = 1.0) -> Job:
    chosen = arm(name, step_factor)
    settings = replace(
        config,
        guard=chosen.guard,
        labels=chosen.labels,
        rule=chosen.rule,
        rule_options=config.rule_options if chosen.rule == config.rule else {},
        step_factor=chosen.step_factor,
        seed=seed,
    )
    return Job(name, settings, run_folder(folder, name, seed))


def _run_matched(
    config: TrainConfig,
    result: Comparison,
    seeds: Sequence[int],
    n_parallel: int,
    report: Callable[[float], None],
) -> None:
    """Run the arm at matched effort on the seeds of which both partners finished."""
    partners = (BASELINE, GUARD)
    usable = [s for s in seeds if all(_finished(result.folder, name, s) for name in partners)]
    for seed in sorted(set(seeds) - set(usable)):
        lacking = Outcome(_job(config, result.folder, MATCHED, seed))
        lacking.error = f"left out: {BASELINE} or {GUARD} did not finish on this seed"
        result.failed.append(lacking)
    if not usable:
        return
    guard_steps = _steps(result.folder, GUARD, usable)
    factor = matched_factor(guard_steps, _steps(result.folder, BASELINE, usable))
    jobs = [_job(config, result.folder, MATCHED, seed, factor) for seed in usable]
    result.failed += _failed(run_jobs(jobs, n_parallel, report))
    result.step_factor = factor
    matched = [seed for seed in usable if _finished(result.folder, MATCHED, seed)]
    if not matched:
        return
    ratio = achieved_ratio(
        _steps(result.folder, MATCHED, matched), _steps(result.folder, GUARD, matched)
    )
    result.achieved_ratio = ratio
    for seed in matched:
        _note(run_folder(result.folder, MATCHED, seed), achieved_ratio=ratio)


def _note(folder: Path, **extra: float) -> None:
    """Add facts to a finished run's manifest."""
    manifest = read_manifest(folder)
    manifest.extra.update(extra)
    temporary = folder / f"{FILE_NAME}.tmp"
    temporary.write_bytes(encode(manifest))
    os.replace(temporary, folder / FILE_NAME)


def _steps(folder: Path, name: str, seeds: Sequence[int]) -> pd.DataFrame:
    """The steps of one arm, all seeds together."""
    return pd.concat([load(run_folder(folder, name, seed)).steps for seed in seeds])


def _finished(folder: Path, name: str, seed: int) -> bool:
    path = run_folder(folder, name, seed)
    return (path / FILE_NAME).is_file() and read_manifest(path).status == "finished"


def _failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.error is not None]


def _result(folder: Path, name: str, seeds: Sequence[int]) -> ArmResult:
    found = [seed for seed in seeds if _finished(folder, name, seed)]
    curves = [load(run_folder(folder, name, seed)).evals["pass_at_1"] for seed in found]
    return ArmResult(
        name=name,
        title=arm(name).title,
        seeds=found,
        start=[float(curve.iloc[0]) for curve in curves],
        final=[float(curve.iloc[-1]) for curve in curves],
    )


def _check(
    config: TrainConfig, folder: Path, arms: Sequence[str], seeds: Sequence[int], n_parallel: int
) -> None:
    default = TrainConfig()
    for name in _PER_ARM:
        if getattr(config, name) != getattr(default, name):
            raise UserError(f"{name}: every arm and seed has its own in a comparison; leave it out")
    for name in arms:
        _job(config, folder, name, 0)
    if config.rule not in (BASELINE, *(arm(name).rule for name in arms)):
        raise UserError(
            f"rule = {config.rule!r}: is that of no arm; name arms with it, or leave out"
        )
    _check_list("arms", arms, f"name some of {', '.join(ALL_ARMS)}")
    _check_list("seeds", seeds, "give whole numbers from 0")
    if any(seed < 0 for seed in seeds):
        raise UserError(f"seeds = {min(seeds)}: must be at least 0")
    if n_parallel < 1:
        raise UserError(f"jobs = {n_parallel}: must be at least 1")
    if MATCHED in arms and not {BASELINE, GUARD} <= set(arms):
        raise UserError(f"arms: {MATCHED} needs {BASELINE} and {GUARD}; add them")
    # Mistakes that every run would repeat are told once.
    if config.problems is not None:
        read_problems(config)
    if config.model is not None:
        model_folder(config.model)
    for name in arms:
        for seed in seeds:
            path = run_folder(folder, name, seed)
            if path.exists():
                raise UserError(f"{path}: exists already; choose another --out or delete it")


def _make(folder: Path, arms: Sequence[str]) -> None:
    try:
        for name in arms:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be made ({error.strerror}); choose a folder you may write to"
        ) from error


def _check_list(name: str, values: Sequence[object], remedy: str) -> None:
    if not values:
        raise UserError(f"{name}: the list is empty; {remedy}")
    if len(set(values)) < len(values):
        raise UserError(f"{name}: the list names one twice; {remedy}")
