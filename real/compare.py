"""Comparisons of the trainer's arms: a study of `lab.study`, one for each learning rate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from lab.arm_settings import with_arm
from lab.base.arms import DEMO_ARMS, arm
from lab.base.errors import Unfit, UserError, exit_code, one_line
from lab.base.settings import to_values
from lab.base.stats import counted, estimate, mean_sd
from lab.signals import stops_raised
from lab.study import Found, Job, Outcome, Report, Study
from lab.trace.manifest import FILE_NAME, is_unused, locked, read_manifest
from real.asked import check_asked, check_list
from real.jobs import UNFIT, Place, find_places, log_numbers, run_jobs
from real.model.folder import changed_files, model_digests
from real.problems.problem import ProblemSet, fingerprint
from real.record.terminal import numbers_shown, said_once, say, unread_shares
from real.settings.config import TrainConfig
from real.settings.presets import check_same, stored_config
from real.trainer import resume, train

CLOSE = 0.1
"""Relative error of the matched effort above which another factor is tried: each try trains on all
seeds."""
MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Result of one arm over its finished seeds."""

    title: str
    seeds: list[int]
    start: list[float]
    """pass@1 before training, per seed."""
    final: list[float]
    """pass@1 after training, per seed."""
    unread: list[tuple[float, float]]
    """Shares of responses without a readable answer before training and in the last epoch."""

    @property
    def line(self) -> str:
        """Mean and standard deviation in one line."""
        if not self.seeds:
            return f"{self.title}: no run finished"
        final = estimate(np.array(self.final))
        before, after = np.mean(self.unread, axis=0)
        return (
            f"{self.title}: pass@1 {np.mean(self.start):.3f} -> "
            f"{mean_sd(final.mean, final.sd, 3)} ({counted(final.n, 'seed')}), "
            f"unread {before:.1%} -> {after:.1%}"
        )


class ComparedArms(NamedTuple):
    """Result of a comparison."""

    arms: list[ArmResult]
    failed: list[Outcome]
    """Runs that did not finish."""
    matches: list[Found]
    """Match of each arm at matched effort with its target."""


def compare(
    config: TrainConfig,
    folder: str | Path,
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int | None = None,
    report: Report = lambda _: None,
    gpus_per_run: int = 1,
) -> ComparedArms:
    """Run every arm on every seed, into `folder/ARM/seed-SEED`.

    Arms of one seed are paired: same votes before training, order and draws. Mistakes, and folders
    that hold something else such as a run of other settings, are refused before any run starts.

    Args:
        config: shared settings; those of an arm or a seed must be left at their defaults.
            `rule_options` apply to all arms with the rule `rule`.
        folder: for the run folders; what it holds of this comparison is gone on with.
        gpus_per_run: GPUs that each run has for itself; with several, torchrun starts its ranks.
    """
    places, notices = find_places(config.device, n_parallel, gpus_per_run)
    study = _study(config, Path(folder), arms, seeds, places)
    say([*_check(study, config), *notices])
    with said_once():  # the runs share most of their notices
        done = study.run(report)
    results = [_result(study, name) for name in study.arms]
    return ComparedArms(results, done.failed, done.found)


def compare_steps(
    config: TrainConfig,
    folder: str | Path,
    lrs: Sequence[float],
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int | None = None,
    report: Report = lambda _: None,
    gpus_per_run: int = 1,
) -> dict[float, ComparedArms]:
    """One comparison per peak learning rate, into `folder/lr-LR`; see `compare`."""
    check_list("lrs", lrs, "give learning rates above 0")
    cells = {lr: (replace(config, lr=lr), Path(folder) / f"lr-{lr:g}") for lr in lrs}
    for cell in cells.values():
        _check(_study(*cell, arms, seeds), cell[0])
    results: dict[float, ComparedArms] = {}

    def told(now: float) -> None:
        report(len(results) * len(arms) * len(seeds) + now)

    with said_once():
        for lr, cell in cells.items():
            results[lr] = compare(*cell, arms, seeds, n_parallel, told, gpus_per_run)
    return results


def _study(
    config: TrainConfig,
    folder: Path,
    arms: Sequence[str],
    seeds: Sequence[int],
    places: Sequence[Place] = (),
) -> Study:
    return Study(
        folder=folder,
        arms=[arm(name).name for name in arms],
        seeds=seeds,
        config_of=lambda name: with_arm(config, arm(name)),
        run_jobs=lambda jobs, told: run_jobs(run_one, jobs, places, told),
        close=CLOSE,
        max_tries=MAX_TRIES,
    )


def run_one(arguments: Sequence[str]) -> int:
    """Do a run, or go on with it where it was begun; see `real.jobs.Do`."""
    settings, folder, arm = arguments
    try:
        with stops_raised(), numbers_shown(log_numbers):
            config = msgspec.json.decode(settings, type=TrainConfig)
            if (Path(folder) / FILE_NAME).is_file():
                resume(folder, config, False)
            else:
                train(config, folder, False, arm)
    except (UserError, KeyboardInterrupt) as error:
        if isinstance(error, UserError):
            print(f"guard-train: {one_line(error)}", file=sys.stderr)
        return UNFIT if isinstance(error, Unfit) else exit_code(error)
    return 0


def _check(study: Study, config: TrainConfig) -> list[str]:
    """Refuse mistakes before any run starts; return a notice of the runs that are there already."""
    problems, model = check_asked(config, study.arms, study.seeds)
    for job in study.all_jobs():
        check_stored(job)
        check_sources(job, problems, model)
    jobs = study.jobs(study.arms)
    done = sum(job.finished for job in jobs)
    begun = sum(job.begun for job in jobs) - done
    return [f"{study.folder}: finished runs: {done}, resumed runs: {begun}"] * bool(done or begun)


def _result(study: Study, name: str) -> ArmResult:
    traces = study.traces(name)
    curves = [trace.evals["pass_at_1"] for trace in traces]
    return ArmResult(
        title=arm(name).title,
        seeds=[trace.run.seeds[0] for trace in traces],
        start=[float(curve.iloc[0]) for curve in curves],
        final=[float(curve.iloc[-1]) for curve in curves],
        unread=[unread_shares(trace) for trace in traces],
    )


def check_sources(job: Job, problems: ProblemSet | None, model: Path | None) -> None:
    """Refuse a run that was begun on other problems or another model than those of today."""
    if not job.begun:
        return
    extra, changed = read_manifest(job.folder).extra, []
    before = extra.get("sources", {}).get("model")
    if model is not None and before is not None:
        files = changed_files(before, model_digests(model))
        changed += [f"model = {job.config.model!r} ({', '.join(files)})"] if files else []
    if problems is not None and "problems_sha256" in extra:
        left_out = set(extra.get("prompts_left_out", ()))
        kept = [problem for problem in problems if problem.id not in left_out]
        if fingerprint(kept) != extra["problems_sha256"]:
            changed.append(f"problems = {job.config.problems!r}")
    if changed:
        raise UserError(
            f"{job.folder}: the content has changed since the run was started: "
            f"{', '.join(changed)}; put the old files back, or choose another --out"
        )


def check_stored(job: Job) -> None:
    """Refuse a folder in which the run can neither start nor go on nor count as finished."""
    if not job.begun:
        if job.folder.exists() and not is_unused(job.folder):
            raise UserError(
                f"{job.folder}: exists and holds no run; choose another --out or delete it"
            )
        return
    before, done = to_values(stored_config(job.folder)), job.finished
    # Of a finished run the names of model and problems are compared, too; of all their content.
    check_same(before, job.config.settled(), job.folder, *(("model", "problems") if done else ()))
    if not done:
        with locked(job.folder):
            """Only to learn whether another process holds it."""


if __name__ == "__main__":
    sys.exit(run_one(sys.argv[1:]))
