"""Arms at matched effort: the unguarded control, moved as far as the guarded arm moves.

One factor on the learning rate is pooled over the seeds. It is searched as in the simulator, by
`lab.compare.effort.search`, with fewer tries and a wider tolerance: each try trains on all seeds.

A search takes place in a hidden folder of the comparison, where it goes on if it was stopped. Its
closest runs are moved to the other arms. Further seeds are run at the factor that was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from lab.base.arms import matched_target, title, unguarded
from lab.base.files import remove_folder, whole
from lab.base.settings import to_values
from lab.compare.effort import achieved_ratio, search
from lab.trace.manifest import FILE_NAME, encode, read_manifest
from lab.trace.trace import load
from real.compare.runs import (
    Job,
    Outcome,
    failed,
    finished,
    job_of,
    run_folder,
    stored_factor,
)
from real.settings.config import TrainConfig

CLOSE = 0.1
"""Relative error of the matched effort above which another factor is tried."""
MAX_TRIES = 3
"""Factors that are tried, with runs on all seeds each."""
_TRIES = "tries.json"

Report = Callable[[float], None]
RunJobs = Callable[[Sequence[Job], Report], list[Outcome]]


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
    run: RunJobs,
    report: Report,
) -> tuple[MatchedArm | None, list[Outcome]]:
    """Run an arm at matched effort on the seeds on which both partners finished.

    Args:
        run: runs jobs, as `real.compare.jobs.run_jobs` with the places of the comparison.
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
    runs = _Runs(config, folder, name, target, run)
    factor = stored_factor(folder, name, seeds)
    if factor is not None:
        match, unfinished = runs.at(factor, usable, report)
    else:
        plain_ratio = achieved_ratio(*(_steps_of(folder, n, usable) for n in (plain, target)))
        match, unfinished = runs.search(plain_ratio, usable, report)
    return match, lost + unfinished


def partners(name: str) -> tuple[str, str]:
    """Return the guarded arm that an arm is matched to, and the same without its guard."""
    target = matched_target(name)
    plain = None if target is None else unguarded(target)
    if target is None or plain is None:
        raise ValueError(f"{name} is no arm at matched effort")
    return target, plain


class _RunsLostError(Exception):
    """Runs of a try did not finish, so there is nothing to search on."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of an arm at matched effort."""

    config: TrainConfig
    folder: Path
    name: str
    target: str
    run: RunJobs

    def at(
        self, factor: float, seeds: list[int], report: Report
    ) -> tuple[MatchedArm | None, list[Outcome]]:
        """Finish the runs at a factor that was found before; no match if none finishes."""
        ratio, seeds, lost = self._run(self.folder, factor, seeds, report)
        if ratio is None:
            return None, lost
        notes = [read_manifest(self._run_folder(seed)).extra for seed in seeds]
        tries = max(int(extra.get("matched_tries", 1)) for extra in notes)
        match = MatchedArm(self.name, self.target, factor, ratio, tries)
        for seed in seeds:
            _note(self._run_folder(seed), match)
        return match, lost

    def search(
        self, plain_ratio: float, seeds: list[int], report: Report
    ) -> tuple[MatchedArm | None, list[Outcome]]:
        """Search the factor, or go on with the search; no match if no run finishes.

        Args:
            plain_ratio: mean update norm without the guard divided by the target's.
        """
        settings = msgspec.json.decode(msgspec.json.encode(to_values(self.config.settled())))
        tries = _Tries.opened(self.folder / f".{self.name}", settings, seeds)
        lost: list[Outcome] = []

        def measure(factor: float) -> float:
            if factor not in tries.ratios:
                first = not tries.ratios
                to_run = seeds if first else tries.complete
                ratio, complete, failures = self._run(
                    tries.root(factor), factor, to_run, report if first else lambda _: None
                )
                lost.extend(failures if first else ())
                if ratio is None or (failures and not first):
                    raise _RunsLostError
                tries.add(factor, ratio, complete)
            return tries.ratios[factor]

        with contextlib.suppress(_RunsLostError):
            search(measure, plain_ratio, close=CLOSE, max_tries=MAX_TRIES)
            if not tries.ratios:  # the plain runs are close already
                measure(1 / plain_ratio)
        if not tries.ratios:
            return None, lost
        factor = tries.closest
        match = MatchedArm(self.name, self.target, factor, tries.ratios[factor], len(tries.ratios))
        for seed in tries.complete:
            self._keep(run_folder(tries.root(factor), self.name, seed), seed, match)
        if not lost:  # else their logs stay
            remove_folder(tries.folder)
        return match, lost

    def _run(
        self, root: Path, factor: float, seeds: list[int], report: Report
    ) -> tuple[float | None, list[int], list[Outcome]]:
        """Run the arm at a factor.

        Returns:
            The mean update norm divided by the target's, None if no run finished; the seeds that
            finished; and the runs that did not.
        """
        (root / self.name).mkdir(parents=True, exist_ok=True)
        jobs = [job_of(self.config, root, self.name, seed, factor) for seed in seeds]
        lost = failed(self.run(jobs, report))
        complete = [seed for seed in seeds if finished(root, self.name, seed)]
        if not complete:
            return None, complete, lost
        steps = _steps_of(root, self.name, complete)
        return achieved_ratio(steps, _steps_of(self.folder, self.target, complete)), complete, lost

    def _keep(self, made: Path, seed: int, match: MatchedArm) -> None:
        """Move a run of the closest try to the other arms."""
        _note(made, match)
        kept = self._run_folder(seed)
        kept.parent.mkdir(exist_ok=True)
        remove_folder(kept)  # what a start that was killed left
        made.rename(kept)

    def _run_folder(self, seed: int) -> Path:
        return run_folder(self.folder, self.name, seed)


@dataclass(slots=True)
class _Tries:
    """The factors tried so far, noted on disk; of their runs those of the closest one are kept."""

    folder: Path
    """A hidden folder of the comparison."""
    settings: dict[str, Any]
    """Of the comparison, as plain values."""
    seeds: list[int]
    complete: list[int] = field(default_factory=list)
    """Seeds of which all runs so far finished."""
    tried: list[tuple[float, float]] = field(default_factory=list)
    """Factors with their achieved ratios."""

    @classmethod
    def opened(cls, folder: Path, settings: dict[str, Any], seeds: list[int]) -> _Tries:
        """Return the tries of a search that was stopped; none where it was another one."""
        new = cls(folder, settings, seeds)
        try:
            old = msgspec.json.decode((folder / _TRIES).read_bytes())
            same = (old["settings"], old["seeds"]) == (settings, seeds)
        except (OSError, msgspec.DecodeError, LookupError, TypeError):
            same, old = False, {}
        if not same:
            remove_folder(folder)
            folder.mkdir()
        elif old["complete"] == seeds:
            new.complete, new.tried = seeds, [(factor, ratio) for factor, ratio in old["tried"]]
        new._write()
        return new

    @property
    def ratios(self) -> dict[float, float]:
        """Achieved ratio of each factor."""
        return dict(self.tried)

    @property
    def closest(self) -> float:
        """The factor whose ratio is closest to 1."""
        return min(self.ratios, key=lambda factor: abs(self.ratios[factor] - 1))

    def root(self, factor: float) -> Path:
        """Folder of the runs at a factor."""
        return self.folder / f"x{factor!r}"

    def add(self, factor: float, ratio: float, complete: list[int]) -> None:
        """Note a factor and delete the runs that are not those of the closest one."""
        self.tried.append((factor, ratio))
        self.complete = complete
        self._write()
        for other in self.ratios:
            if other != self.closest:
                remove_folder(self.root(other))

    def _write(self) -> None:
        values = {"settings": self.settings, "seeds": self.seeds}
        values |= {"complete": self.complete, "tried": self.tried}
        with whole(self.folder / _TRIES) as temporary:
            temporary.write_bytes(msgspec.json.encode(values))


def _note(folder: Path, match: MatchedArm) -> None:
    """Add the match to a finished run's manifest."""
    manifest = read_manifest(folder)
    manifest.extra["achieved_ratio"] = match.achieved_ratio
    manifest.extra["matched_tries"] = match.tries
    with whole(folder / FILE_NAME) as temporary:
        temporary.write_bytes(encode(manifest))


def _steps_of(folder: Path, name: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Return the steps of one arm, all seeds together."""
    return pd.concat([load(run_folder(folder, name, seed)).steps for seed in seeds])
