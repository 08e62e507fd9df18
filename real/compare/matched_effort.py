"""Arms at matched effort: the unguarded control, moved as far as the guarded arm moves.

One factor on the learning rate is pooled over the seeds. It is searched as in the simulator, by
`lab.compare.effort.search`, with fewer tries and a wider tolerance: each try trains on all seeds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.arms import matched_target, title, unguarded
from lab.compare.effort import achieved_ratio, search
from lab.files import remove_folder, whole
from lab.trace.manifest import FILE_NAME, encode, read_manifest
from real.compare.jobs import Outcome, failed, finished, job_of, run_folder, run_jobs, steps_of
from real.settings.config import TrainConfig

CLOSE = 0.1
"""Relative error of the matched effort above which another factor is tried."""
MAX_TRIES = 3
"""Factors that are tried, with runs on all seeds each."""


@dataclass(frozen=True, slots=True)
class MatchedArm:
    """The factor of an arm at matched effort and how well it meets the target."""

    name: str
    target: str
    """The guarded arm that it is matched to."""
    step_factor: float
    """Factor on the learning rate."""
    achieved_ratio: float
    """Mean update norm divided by the target's; 1 is a perfect match."""
    tries: int
    """Factors that were tried; the closest one's runs are kept."""

    @property
    def line(self) -> str:
        """The match in one line."""
        tries = f" ({self.tries} tries)" if self.tries > 1 else ""
        return (
            f"{title(self.name)}: learning rate x {self.step_factor:.3f}, mean update "
            f"{self.achieved_ratio:.3f} of that of {title(self.target)}{tries}"
        )


def run_matched(
    config: TrainConfig,
    folder: Path,
    name: str,
    seeds: Sequence[int],
    n_parallel: int,
    report: Callable[[float], None],
) -> tuple[MatchedArm | None, list[Outcome]]:
    """Run an arm at matched effort on the seeds on which both partners finished.

    Args:
        config: of the comparison.
        folder: of the comparison.
        name: of the arm.
        seeds: of the comparison.
        n_parallel: runs at once.
        report: as for `run_jobs`; called during the first try.

    Returns:
        The match, None where nothing could be run, and the runs that did not finish.
    """
    target, plain = partners(name)
    usable = [s for s in seeds if all(finished(folder, n, s) for n in (target, plain))]
    lost = [
        Outcome(
            job_of(config, folder, name, seed),
            error=f"left out: {plain} or {target} did not finish on this seed",
        )
        for seed in sorted(set(seeds) - set(usable))
    ]
    if not usable:
        return None, lost
    plain_ratio = achieved_ratio(*(steps_of(folder, n, usable) for n in (plain, target)))
    with tempfile.TemporaryDirectory(prefix=".matched-", dir=folder) as scratch:
        tries = _Tries(config, folder, Path(scratch), name, target, usable, n_parallel, report)
        match = tries.closest(plain_ratio)
    if match:
        for seed in tries.seeds:
            _note(run_folder(folder, name, seed), match)
    return match, lost + tries.lost


def partners(name: str) -> tuple[str, str]:
    """Return the guarded arm that an arm is matched to, and the same without its guard."""
    target = matched_target(name)
    plain = None if target is None else unguarded(target)
    if target is None or plain is None:
        raise ValueError(f"{name} is no arm at matched effort")
    return target, plain


class _RunsLostError(Exception):
    """Runs of a try did not finish, so there is nothing to search on."""


@dataclass(slots=True)
class _Tries:
    """The runs of an arm at the factors tried so far; those of the closest one are kept."""

    config: TrainConfig
    folder: Path
    scratch: Path
    """A folder for the runs that may not be kept, on the same disk."""
    name: str
    target: str
    seeds: list[int]
    """Of the runs that are kept."""
    n_parallel: int
    report: Callable[[float], None]
    lost: list[Outcome] = field(default_factory=list)
    ratios: dict[float, float] = field(default_factory=dict)
    """Achieved ratio of each factor tried."""

    def closest(self, plain_ratio: float) -> MatchedArm | None:
        """Search the factor; None if no run finished.

        Args:
            plain_ratio: mean update norm without the guard divided by the target's.
        """
        with contextlib.suppress(_RunsLostError):
            search(self.measure, plain_ratio, close=CLOSE, max_tries=MAX_TRIES)
            if not self.ratios:  # the plain runs are close already
                self.measure(1 / plain_ratio)
        if not self.ratios:
            return None
        factor = min(self.ratios, key=self._distance)
        return MatchedArm(
            self.name, self.target, factor, self.ratios[factor], tries=len(self.ratios)
        )

    def measure(self, factor: float) -> float:
        """Run the arm at a factor and return its mean update norm divided by the target's.

        Raises:
            _RunsLostError: no run of the first try finished, or not all of a later one.
        """
        first = not self.ratios
        root = self.folder if first else self.scratch
        (root / self.name).mkdir(exist_ok=True)
        jobs = [job_of(self.config, root, self.name, seed, factor) for seed in self.seeds]
        report = self.report if first else lambda _: None
        lost = failed(run_jobs(jobs, self.n_parallel, report))
        complete = [seed for seed in self.seeds if finished(root, self.name, seed)]
        if first:
            self.lost, self.seeds = lost, complete
        if not complete or complete != self.seeds:
            raise _RunsLostError
        ratio = achieved_ratio(
            steps_of(root, self.name, self.seeds), steps_of(self.folder, self.target, self.seeds)
        )
        is_closest = all(abs(ratio - 1) < abs(other - 1) for other in self.ratios.values())
        self.ratios[factor] = ratio
        if not first:
            self._keep_or_drop(is_closest)
        return ratio

    def _keep_or_drop(self, is_closest: bool) -> None:
        """Put the runs of the last try in the place of those kept so far, or delete them."""
        for seed in self.seeds:
            new, kept = (run_folder(at, self.name, seed) for at in (self.scratch, self.folder))
            if is_closest:
                remove_folder(kept)
                new.rename(kept)
            else:
                remove_folder(new)

    def _distance(self, factor: float) -> float:
        return abs(self.ratios[factor] - 1)


def _note(folder: Path, match: MatchedArm) -> None:
    """Add the match to a finished run's manifest."""
    manifest = read_manifest(folder)
    manifest.extra["achieved_ratio"] = match.achieved_ratio
    manifest.extra["matched_tries"] = match.tries
    with whole(folder / FILE_NAME) as temporary:
        temporary.write_bytes(encode(manifest))
