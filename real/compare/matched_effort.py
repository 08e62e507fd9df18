"""Arms at matched effort: one factor on the learning rate, from how far their partners moved.

The factor is pooled over the seeds, and how well it was met is noted in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.arms import matched_target, title, unguarded
from lab.compare.effort import achieved_ratio, matched_factor
from lab.files import whole
from lab.trace.manifest import FILE_NAME, encode, read_manifest
from real.compare.jobs import Outcome, failed, finished, job_of, run_folder, run_jobs, steps_of
from real.settings.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Match:
    """How an arm at matched effort met it."""

    name: str
    target: str
    """The guarded arm that it is matched to."""
    step_factor: float
    """Factor on the learning rate."""
    achieved_ratio: float
    """Mean update norm by the target's; 1 is a perfect match."""

    @property
    def line(self) -> str:
        """In one line."""
        return (
            f"{title(self.name)}: learning rate x {self.step_factor:.3f}, mean update "
            f"{self.achieved_ratio:.3f} of that of {title(self.target)}"
        )


def run_matched(
    config: TrainConfig,
    folder: Path,
    name: str,
    seeds: Sequence[int],
    n_parallel: int,
    report: Callable[[float], None],
) -> tuple[Match | None, list[Outcome]]:
    """Run an arm at matched effort on the seeds of which both partners finished.

    Args:
        config: of the comparison.
        folder: of the comparison.
        name: of the arm.
        seeds: of the comparison.
        n_parallel: runs at once.
        report: as for `run_jobs`.

    Returns:
        How it was met, None where nothing could be run, and the runs that did not finish.
    """
    target, plain = partners(name)
    lost: list[Outcome] = []
    usable = [s for s in seeds if all(finished(folder, n, s) for n in (target, plain))]
    for seed in sorted(set(seeds) - set(usable)):
        lacking = Outcome(job_of(config, folder, name, seed))
        lacking.error = f"left out: {plain} or {target} did not finish on this seed"
        lost.append(lacking)
    if not usable:
        return None, lost
    guard_steps = steps_of(folder, target, usable)
    factor = matched_factor(guard_steps, steps_of(folder, plain, usable))
    jobs = [job_of(config, folder, name, seed, factor) for seed in usable]
    lost += failed(run_jobs(jobs, n_parallel, report))
    matched = [seed for seed in usable if finished(folder, name, seed)]
    if not matched:
        return None, lost
    ratio = achieved_ratio(steps_of(folder, name, matched), steps_of(folder, target, matched))
    for seed in matched:
        _note(run_folder(folder, name, seed), achieved_ratio=ratio)
    return Match(name, target, factor, ratio), lost


def partners(name: str) -> tuple[str, str]:
    """The guarded arm that an arm is matched to, and the same without its guard."""
    target = matched_target(name)
    plain = None if target is None else unguarded(target)
    if target is None or plain is None:
        raise ValueError(f"{name} is no arm at matched effort")
    return target, plain


def _note(folder: Path, **extra: float) -> None:
    """Add facts to a finished run's manifest."""
    manifest = read_manifest(folder)
    manifest.extra.update(extra)
    with whole(folder / FILE_NAME) as temporary:
        temporary.write_bytes(encode(manifest))
