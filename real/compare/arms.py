"""Comparisons of arms: every arm on the same seeds, and the final accuracy of each.

A comparison that was stopped goes on when it is asked for again: finished runs of the same settings
are skipped and begun ones go on from their checkpoints.

Arms at matched effort run last, since they need the update norms of the others. Each has one factor
on the learning rate, pooled over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lab.base.arms import DEMO_ARMS, arm, matched_target, replayed_target
from lab.base.errors import UserError
from lab.base.stats import counted, estimate, mean_sd
from lab.trace.trace import load
from real.compare.jobs import Place, find_places, run_jobs
from real.compare.matched_effort import MatchedArm, partners, run_matched
from real.compare.runs import (
    Job,
    Outcome,
    check_asked,
    check_list,
    check_sources,
    check_stored,
    failed,
    finished,
    job_of,
    run_folder,
    stored_factor,
)
from real.record.terminal import said_once, say, unread_shares
from real.settings.config import TrainConfig


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Result of one arm over its finished seeds."""

    name: str
    title: str
    seeds: list[int]
    start: list[float]
    """pass@1 before training, per seed."""
    final: list[float]
    """pass@1 after training, per seed."""
    unread: list[tuple[float, float]] = field(default_factory=list)
    """Shares of responses without a readable answer before training and in the last epoch."""

    @property
    def line(self) -> str:
        """Mean and standard deviation in one line."""
        if not self.seeds:
            return f"{self.title}: no run finished"
        final = estimate(np.array(self.final))
        line = (
            f"{self.title}: pass@1 {np.mean(self.start):.3f} -> "
            f"{mean_sd(final.mean, final.sd, 3)} ({counted(final.n, 'seed')})"
        )
        if not self.unread:
            return line
        before, after = np.mean(self.unread, axis=0)
        return f"{line}, unread {before:.1%} -> {after:.1%}"


@dataclass(slots=True)
class ComparedArms:
    """Result of a comparison."""

    folder: Path
    arms: list[ArmResult]
    failed: list[Outcome] = field(default_factory=list)
    """Runs that did not finish."""
    matches: list[MatchedArm] = field(default_factory=list)
    """Match of each arm at matched effort with its target."""


def compare(
    config: TrainConfig,
    folder: str | Path,
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int | None = None,
    report: Callable[[float], None] = lambda _: None,
    gpus_per_run: int = 1,
) -> ComparedArms:
    """Run every arm on every seed, into `folder/ARM/seed-SEED`.

    Args:
        config: shared settings; those of an arm or a seed must be left at their defaults.
            `rule_options` apply to all arms with the rule `rule`.
        folder: for the run folders; what it holds of this comparison is gone on with.
        arms: names of `lab.base.arms`.
        seeds: arms of one seed are paired: same votes before training, order and draws.
        n_parallel: runs at once, see `find_places`.
        report: called with the number of runs done, fractions of running ones included.
        gpus_per_run: GPUs that each run has for itself; with several, torchrun starts its ranks.

    Raises:
        UserError: an arm is unknown, lacks its partners, or a folder holds something else, such as
            a run of other settings.
    """
    folder, arms = Path(folder), [arm(name).name for name in arms]
    places, notices = find_places(config.device, n_parallel, gpus_per_run)
    say([*_check(config, folder, arms, seeds), *notices])
    _make(folder, arms)
    with said_once():  # the runs share most of their notices
        return _run(config, folder, arms, seeds, places, report)


def _run(
    config: TrainConfig,
    folder: Path,
    arms: Sequence[str],
    seeds: Sequence[int],
    places: Sequence[Place],
    report: Callable[[float], None],
) -> ComparedArms:
    last = [name for name in arms if matched_target(name)]
    replaying = [name for name in arms if replayed_target(name)]
    first = [name for name in arms if name not in (*last, *replaying)]

    def run(jobs: Sequence[Job], report: Callable[[float], None]) -> list[Outcome]:
        return run_jobs(jobs, places, report)

    result, done = ComparedArms(folder, []), 0
    for names in (first, replaying):
        jobs = _jobs(config, folder, names, seeds)
        result.failed += failed(run(jobs, lambda now, done=done: report(done + now)))
        done += len(jobs)
    for place, name in enumerate(last):
        done = n_runs((*first, *replaying), seeds) + place * len(seeds)
        match, lost = run_matched(
            config, folder, name, seeds, run, lambda now, done=done: report(done + now)
        )
        result.matches += [match] if match else []
        result.failed += lost
    result.arms += [_result(folder, name, seeds) for name in arms]
    return result


def compare_steps(
    config: TrainConfig,
    folder: str | Path,
    lrs: Sequence[float],
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int | None = None,
    report: Callable[[float], None] = lambda _: None,
    gpus_per_run: int = 1,
) -> dict[float, ComparedArms]:
    """One comparison per peak learning rate, into `folder/lr-LR`; see `compare`.

    Raises:
        UserError: as `compare` does, before any run starts; or a learning rate is named twice.
    """
    check_list("lrs", lrs, "give learning rates above 0")
    arms = [arm(name).name for name in arms]
    settings = {lr: replace(config, lr=lr) for lr in lrs}
    for lr, at_lr in settings.items():
        _check(at_lr, Path(folder) / f"lr-{lr:g}", arms, seeds)
    results: dict[float, ComparedArms] = {}
    with said_once():
        for i, (lr, at_lr) in enumerate(settings.items()):
            done = i * n_runs(arms, seeds)
            results[lr] = compare(
                at_lr,
                Path(folder) / f"lr-{lr:g}",
                arms,
                seeds,
                n_parallel,
                lambda now, done=done: report(done + now),
                gpus_per_run,
            )
    return results


def n_runs(arms: Sequence[str], seeds: Sequence[int]) -> int:
    """Runs of a comparison."""
    return len(arms) * len(seeds)


def _result(folder: Path, name: str, seeds: Sequence[int]) -> ArmResult:
    complete = [seed for seed in seeds if finished(folder, name, seed)]
    traces = [load(run_folder(folder, name, seed)) for seed in complete]
    curves = [trace.evals["pass_at_1"] for trace in traces]
    return ArmResult(
        name=name,
        title=arm(name).title,
        seeds=complete,
        start=[float(curve.iloc[0]) for curve in curves],
        final=[float(curve.iloc[-1]) for curve in curves],
        unread=[unread_shares(trace) for trace in traces],
    )


def _check(
    config: TrainConfig, folder: Path, arms: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Refuse mistakes before any run starts; return a notice of the runs that are there already."""
    problems, model = check_asked(config, arms, seeds)
    jobs = _jobs(config, folder, arms, seeds)
    for job in [*jobs, *_partners(config, folder, arms, seeds)]:
        check_stored(job)
        check_sources(job, problems, model)
    done = sum(job.finished for job in jobs)
    begun = sum(job.begun for job in jobs) - done
    return [f"{folder}: finished runs: {done}, resumed runs: {begun}"] if done or begun else []


def _jobs(
    config: TrainConfig, folder: Path, arms: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """All runs; an arm at matched effort has the factor of its runs that are there."""
    factors = {name: stored_factor(folder, name, seeds) for name in filter(matched_target, arms)}
    return [
        job_of(config, folder, name, seed, factors.get(name) or 1.0, seeds)
        for name in arms
        for seed in seeds
    ]


def _partners(
    config: TrainConfig, folder: Path, arms: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """The finished runs that controls need, of arms that are not run now."""
    jobs: list[Job] = []
    for name in arms:
        target = replayed_target(name)
        partner = partners(name) if matched_target(name) else (target,) if target else ()
        others = [other for other in partner if other not in arms]
        needed = [job_of(config, folder, other, seed) for other in others for seed in seeds]
        if not all(job.finished for job in needed):
            raise UserError(f"arms: {name} needs {' and '.join(reversed(partner))}; add them")
        if target and len(seeds) < 2:
            raise UserError(f"arms: {name} needs two seeds, since each replays another one")
        jobs += needed
    return jobs


def _make(folder: Path, arms: Sequence[str]) -> None:
    try:
        for name in arms:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be made ({error.strerror}); choose a folder you may write to"
        ) from error
