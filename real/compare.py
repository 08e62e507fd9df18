"""Comparisons of the trainer's arms: a study of `lab.study`, one for each learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from lab.arm_settings import with_arm
from lab.base.arms import DEMO_ARMS, VOTE, arm, title
from lab.base.columns import floats, where
from lab.base.errors import UserError
from lab.base.settings import to_values
from lab.base.stats import counted, estimate, interval_of, mean_sd
from lab.compare.collection import gather
from lab.compare.effort import METRIC
from lab.compare.tables import difference, over_steps, with_vote
from lab.signals import ends_at_once
from lab.study import Job, Outcome, Report, Study
from lab.trace.manifest import is_unused, locked, read_manifest
from real.jobs import find_places, run_jobs
from real.model.folder import changed_files, model_digests
from real.preflight import check_asked, check_lrs
from real.problems.problem import ProblemSet, fingerprint
from real.record.terminal import SAID, holding, say, unread_shares
from real.settings.config import TrainConfig
from real.settings.resolve import settled_for
from real.settings.stored import check_same, stored_config

CLOSE = 0.1
"""Relative error of the matched effort above which another factor is tried: each try trains on all
seeds."""
MAX_TRIES = 3
Digests = Callable[[Path], dict[str, str]]


def compare(
    config: TrainConfig,
    folder: str | Path,
    arms: Sequence[str] = DEMO_ARMS,
    seeds: Sequence[int] = (0, 1, 2),
    n_parallel: int | None = None,
    report: Report = lambda _: None,
    gpus_per_run: int = 1,
    lrs: Sequence[float] = (),
) -> tuple[list[str], list[Outcome]]:
    """Run every arm on every seed, into `folder/ARM/seed-SEED`.

    Arms of one seed are paired: same votes before training, order and draws. Mistakes, and folders
    that hold something else such as a run of other settings, are refused before any run starts.

    Args:
        config: shared settings; those of an arm or a seed must be left at their defaults.
            `rule_options` apply to all arms with the rule `rule`.
        folder: for the run folders; what it holds of this comparison is gone on with.
        gpus_per_run: GPUs that each run has for itself; with several, torchrun starts its ranks.
        lrs: peak learning rates, one comparison each, into `folder/lr-LR`.

    Returns:
        What came out, in lines for readers, and the runs that did not finish.
    """
    problems, model = check_asked(config, arms, seeds)
    with ends_at_once("guard-train"):
        from real.model.machine import pick_device  # imports torch

    chosen = settled_for(config, pick_device(config.device).type)[0]
    config = replace(config, engine=chosen.engine, dtype=chosen.dtype)
    places, notices = find_places(config.device, n_parallel, gpus_per_run)
    if lrs:
        check_lrs(config, lrs)
    cells = [(replace(config, lr=lr), Path(folder) / f"lr-{lr:g}") for lr in lrs]
    studies = [
        Study(
            folder=place,
            arms=[arm(name).name for name in arms],
            seeds=seeds,
            config_of=lambda name, cell=cell: with_arm(cell, arm(name)),
            run_jobs=lambda jobs, told: run_jobs(jobs, places, told),
            close=CLOSE,
            max_tries=MAX_TRIES,
        )
        for cell, place in cells or [(config, Path(folder))]
    ]
    digests = cache(model_digests)  # for these checks alone: runs check again as they start
    said = [notice for study in studies for notice in _check(study, problems, model, digests)]
    say([*said, *notices])
    lines: list[str] = []
    failed: list[Outcome] = []
    with holding(SAID, set()):  # the runs share most of their notices
        for number, study in enumerate(studies):
            before = number * len(arms) * len(seeds)
            done = study.run(lambda now, before=before: report(before + now))
            lines += [f"learning rate {lr:g}" for lr in lrs[number : number + 1]]
            lines += _lines(study)
            lines += [match.line for match in done.matches]
            failed += done.failed
    return lines, failed


def _lines(study: Study) -> list[str]:
    """Return the vote before training on most seeds, then every arm with its difference to it."""
    votes: list[tuple[int, str]] = []
    lines: list[str] = []
    for name in study.arms:
        if not (traces := study.traces(name)):
            lines.append(f"{arm(name).title}: no run finished")
            continue
        rows = with_vote(over_steps(gather(traces)[0]), ["replicate"])
        vote, named = estimate(floats(where(rows, arm=VOTE), METRIC)), rows["arm"].iloc[-1]
        gap = difference(rows, named, VOTE, METRIC)
        over = f"{gap.mean:+.1f} points [{interval_of(gap, 'pair')}]"
        scores = (floats(where(rows, arm=named), score) for score in ("pass_start", METRIC))
        start, final = (estimate(score / 100) for score in scores)
        before, after = np.mean([unread_shares(trace) for trace in traces], axis=0)
        score = f"pass@1 {start.mean:.3f} -> {mean_sd(final.mean, final.sd, 3)}"
        line = f"{arm(name).title}: {score if final.n else 'no true answers'}"
        line += f" ({counted(len(traces), 'seed')}), unread {before:.1%} -> {after:.1%}"
        lines.append(line + f", minus the vote {over}" * (gap.n > 0))
        if vote.n:
            shown = mean_sd(vote.mean / 100, vote.sd / 100, 3)
            votes.append((vote.n, f"{title(VOTE)}: right {shown} ({counted(vote.n, 'seed')})"))
    return [*(text for _, text in sorted(votes)[-1:]), *lines]


def _check(
    study: Study, problems: ProblemSet | None, model: Path | None, digests: Digests
) -> list[str]:
    """Refuse mistakes before any run starts; return a notice of the runs that are there already."""
    for job in study.all_jobs():
        if job.begun:
            before, done = to_values(stored_config(job.folder)), job.finished
            # Of a finished run the names of model and problems are compared, too.
            named = ("model", "problems") if done else ()
            check_same(before, job.config.settled(), job.folder, *named)
            with nullcontext() if done else locked(job.folder):
                """Only to learn whether another process holds it."""
            check_sources(job, problems, model, digests)
        elif job.folder.exists() and not is_unused(job.folder):
            raise UserError(
                f"{job.folder}: exists and holds no run; choose another --out or delete it"
            )
    jobs = study.jobs(study.arms)
    done = sum(job.finished for job in jobs)
    begun = sum(job.begun for job in jobs) - done
    return [f"{study.folder}: finished runs: {done}, resumed runs: {begun}"] * bool(done or begun)


def check_sources(
    job: Job, problems: ProblemSet | None, model: Path | None, digests: Digests = model_digests
) -> None:
    """Refuse a run that was begun on other problems or another model than those of today."""
    extra, changed = read_manifest(job.folder).extra, []
    before = extra.get("sources", {}).get("model")
    if model and before is not None and (files := changed_files(before, digests(model))):
        changed.append(f"model = {job.config.model!r} ({', '.join(files)})")
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
