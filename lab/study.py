"""Studies: arms on the same seeds, each run in a folder of its own, in either world.

Arms that need no other run come first, then those that replay the decisions of others, then the
controls. A control runs an arm without its guard, with one number that is found from the runs of
both and pooled over the seeds:

matched      the factor on the step size that gives the guard's mean norm of the update per
             scheduled step, see `lab.compare.effort.search`
random_skip  the chance that a problem sits a visit out, which is the share that the guard skipped

A study that was stopped goes on when it is asked for again: finished runs of the same settings are
kept, and begun ones are gone on with. A number is searched in a hidden folder of the study, which a
stopped search finds again; the closest runs move to the other arms. Further seeds get that number.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pandas as pd

from lab.base.arms import Arm, arm, control_target, replayed_target, title, with_rule, without_guard
from lab.base.columns import floats
from lab.base.errors import UserError
from lab.base.files import remove_folder
from lab.base.named_arms import BASELINE, CONTROLS, GUARD, MATCHED
from lab.base.settings import to_values
from lab.compare.effort import CLOSE, MAX_TRIES, RatioAt, achieved_ratio, mean_update, search
from lab.trace.manifest import FILE_NAME, read_manifest, write_manifest
from lab.trace.trace import Trace, load

Report = Callable[[float], None]
"""Called with the number of runs done, fractions of running ones included."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    arm: str
    config: Any
    """Of the world, with the settings of the arm and the seed."""
    folder: Path

    @property
    def name(self) -> str:
        """Name for readers."""
        return f"{self.arm}, seed {self.config.seed}"

    @property
    def log(self) -> Path:
        """File for the output of the run's process."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def begun(self) -> bool:
        """The folder holds a run, finished or not."""
        return (self.folder / FILE_NAME).is_file()

    @property
    def finished(self) -> bool:
        """The run was completed."""
        return self.begun and read_manifest(self.folder).status == "finished"


@dataclass(slots=True)
class Outcome:
    """Outcome of a run."""

    job: Job
    done: float = 0.0
    """Share of the run that was made."""
    error: str | None = None
    """Reason of its failure in one line; None if it did not fail."""


class Effort(NamedTuple):
    """How far some runs moved, and how many visits they left out."""

    update: float
    """Mean norm of the update per scheduled optimizer step."""
    skipped: float
    """Share of the visits that sat out."""


@dataclass(frozen=True, slots=True)
class Control:
    """An arm whose one free number comes from the runs of two others."""

    name: str
    kind: Literal["matched", "random_skip"]
    target: str
    """The guarded arm that it is matched to."""

    @property
    def unguarded(self) -> str:
        """The arm that it runs, before its number is set."""
        return without_guard(self.name, self.target)

    @property
    def setting(self) -> str:
        """The setting of its number."""
        return "step_factor" if self.kind == MATCHED else "skip_rate"

    def ratio(self, effort: Effort, target: Effort) -> float:
        """Mean update norm, or share of skipped visits, divided by the target's.

        NaN where the target skipped nothing; a UserError where it did not move.
        """
        if self.kind == MATCHED:
            return achieved_ratio(effort.update, target.update)
        return effort.skipped / target.skipped if target.skipped else math.nan

    def find(
        self,
        unguarded: Effort,
        target: Effort,
        ratio_at: RatioAt,
        close: float = CLOSE,
        max_tries: int = MAX_TRIES,
    ) -> float:
        """Return the control's number; it has been run, unless it is the factor 1."""
        if self.kind == MATCHED:
            ratio = self.ratio(unguarded, target)
            return search(ratio_at, ratio, close=close, max_tries=max_tries)
        ratio_at(target.skipped)
        return target.skipped

    @property
    def arm(self) -> Arm:
        """As an arm for run folders and reports."""
        if self.kind == MATCHED:
            return arm(self.name)
        plain = arm(self.unguarded)
        of = "" if self.target == GUARD else f" of {title(self.target)}"
        return replace(plain, name=self.name, title=f"{plain.title} at random skips{of}")


def control(name: str) -> Control | None:
    """The control of that name; None where it names none, a UserError where it has no guard."""
    for kind in CONTROLS:
        if (target := control_target(name, kind)) is not None:
            without_guard(name, target)  # refuses what has none
            return Control(name, kind, target)
    return None


def needs(name: str) -> tuple[str, ...]:
    """The arms whose runs an arm needs."""
    if (known := control(name)) is not None:
        return known.unguarded, known.target
    replayed = replayed_target(name)
    return () if replayed is None else (replayed,)


def check_arms(names: Sequence[str], there: Callable[[str], bool] = lambda _: False) -> None:
    """Refuse arms that are unknown, given twice, or lack those that they need.

    `there` tells whether all runs of an arm that is not given are finished.
    """
    if not names or isinstance(names, str):
        raise UserError("arms: give at least one, in a list")
    names = [with_rule(name, BASELINE) for name in names]  # one spelling of each
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"arms: {name} is there twice")
        if control(name) is None:
            arm(name)
        if not all(other in names or there(other) for other in needs(name)):
            raise UserError(f"arms: {name} needs {' and '.join(needs(name))}; add them")


@dataclass(frozen=True, slots=True)
class Match:
    """The number of a control and how well it meets the target."""

    control: Control
    number: float
    """Factor on the step size, or chance to sit a visit out."""
    achieved_ratio: float
    """As `Control.ratio`."""
    tries: int
    """Factors that were tried; the closest one's runs are kept."""

    @property
    def line(self) -> str:
        """The match in one line."""
        name, target = title(self.control.name), title(self.control.target)
        if self.control.kind != MATCHED:
            return f"{name}: chance to skip {self.number:.3f}"
        tries = f" ({self.tries} tries)" if self.tries > 1 else ""
        return (
            f"{name}: learning rate x {self.number:.3f}, mean update {self.achieved_ratio:.3f} of "
            f"that of {target}{tries}"
        )


@dataclass(slots=True)
class Done:
    """Failed runs and matched controls, beside the run folders."""

    failed: list[Outcome] = field(default_factory=list)
    """Runs that did not finish."""
    matches: list[Match] = field(default_factory=list)
    """How each control was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Arms times seeds; a UserError as of `check_arms`."""

    folder: Path
    arms: Sequence[str]
    seeds: Sequence[int]
    config_of: Callable[[str], Any]
    """The settings of an arm, whose seed is replaced."""
    run_jobs: Callable[[Sequence[Job], Report], list[Outcome]]
    """Run what is left of some jobs; the folders around theirs exist."""
    replicates: bool = False
    """One run holds several replicates of one seed: it lies in ARM instead of ARM/seed-SEED, and
    replays another replicate of the same run."""
    close: float = CLOSE
    """Relative error of the matched effort above which another factor is tried."""
    max_tries: int = MAX_TRIES
    """Factors that are tried, with runs on all seeds each."""

    def __post_init__(self) -> None:
        check_arms(self.arms, lambda name: all(job.finished for job in self.jobs([name])))
        replaying = [name for name in self.arms if replayed_target(name) is not None]
        n, runs = len(self.seeds), "seeds"
        if replaying and self.replicates:
            n, runs = self.config_of(replaying[0]).replicates, "replicates"
        if replaying and n < 2:
            needed = f"needs two {runs}, since each replays another one"
            raise UserError(f"arms: {replaying[0]} {needed}")

    def folder_of(self, name: str, seed: int, root: Path | None = None) -> Path:
        """Folder of a run, in the study's folder or that of a try."""
        place = (root or self.folder) / name
        return place if self.replicates else place / f"seed-{seed}"

    def job(
        self, name: str, seed: int, numbers: Mapping[str, float] = {}, root: Path | None = None
    ) -> Job:
        """The run of an arm and a seed, in the study's folder or that of a try.

        An arm that replays decisions gets those of the next seed, the last one those of the first;
        a control the numbers by their settings.
        """
        config = replace(self.config_of(name), seed=seed, **numbers)
        if (target := replayed_target(name)) is not None:
            other = self.seeds[(list(self.seeds).index(seed) + 1) % len(self.seeds)]
            config = replace(config, treatment=str(self.folder_of(target, other).resolve()))
        return Job(name, config, self.folder_of(name, seed, root))

    def jobs(self, names: Sequence[str]) -> list[Job]:
        """The runs of some arms; a control has the number of its runs that are there."""
        return [
            self.job(name, seed, numbers)
            for name in names
            for numbers in [self._stored(name)]
            for seed in self.seeds
        ]

    def all_jobs(self) -> list[Job]:
        """The runs of all arms, and those of other arms that they need."""
        others = {other for name in self.arms for other in needs(name)} - set(self.arms)
        return self.jobs([*self.arms, *sorted(others)])

    def _stored(self, name: str) -> dict[str, float]:
        """The number of a control by its setting; empty where no run has one."""
        if (known := control(name)) is None:
            return {}
        paths = [self.folder_of(name, seed) for seed in self.seeds]
        begun = next((path for path in paths if (path / FILE_NAME).is_file()), None)
        return {} if begun is None else {known.setting: read_manifest(begun).config[known.setting]}

    def run(self, report: Report = lambda _: None) -> Done:
        """Run what is left of the study."""
        controls = {name: of for name in self.arms if (of := control(name)) is not None}
        replaying = [name for name in self.arms if replayed_target(name) is not None]
        first = [name for name in self.arms if name not in (*controls, *replaying)]
        done, before = Done(), 0

        def shifted(now: float) -> None:
            report(before + now)

        for names in (first, replaying):
            for name in names:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            outcomes = self.run_jobs(self.jobs(names), shifted)
            done.failed += [outcome for outcome in outcomes if outcome.error is not None]
            before += len(names) * len(self.seeds)
        for of in controls.values():
            match, lost = self._run_control(of, shifted)
            done.matches += [match] if match else []
            done.failed += lost
            before += len(self.seeds)
        return done

    def _run_control(self, of: Control, report: Report) -> tuple[Match | None, list[Outcome]]:
        """Run a control at its number, or search that, on seeds on which both partners finished.

        Returns its match, None where no run finishes, and the runs that did not finish.
        """
        name, partners = of.name, needs(of.name)
        usable = [s for s in self.seeds if all(self.job(n, s).finished for n in partners)]
        missing = f"left out: {partners[0]} or {partners[1]} did not finish on this seed"
        lost = [
            Outcome(self.job(name, seed), error=missing)
            for seed in sorted(set(self.seeds) - set(usable))
        ]
        if not usable:
            return None, lost
        given, n_missing = self._stored(name).get(of.setting), len(lost)
        hidden, tried = self.folder / f".{name}", dict[float, float]()
        settings = msgspec.json.encode(to_values(self.config_of(name)), order="deterministic")
        searched = hidden / hashlib.sha256(settings).hexdigest()[:12]

        def root(number: float) -> Path:
            """Folder of the runs at a number: in a search one that only the same settings have."""
            return self.folder if given is not None else searched / f"x{number!r}"

        def ratio_at(number: float) -> float:
            """Finish the runs at a number and return how their effort compares with the target's.

            Only the first number may lose seeds; at a later one that ends the search.
            """
            nonlocal usable
            place, first = root(number), not tried
            (place / name).mkdir(parents=True, exist_ok=True)
            jobs = [self.job(name, seed, {of.setting: number}, place) for seed in usable]
            outcomes = self.run_jobs(jobs, report if first else lambda _: None)
            failed = [outcome for outcome in outcomes if outcome.error is not None]
            if first:
                lost.extend(failed)
                usable = [job.config.seed for job in jobs if job.finished]
            if not usable or (failed and not first):
                raise _RunsLostError
            moved, target = self.effort(name, usable, place), self.effort(of.target, usable)
            tried[number] = of.ratio(moved, target)
            return tried[number]

        with contextlib.suppress(_RunsLostError):
            if given is not None:
                ratio_at(given)
            else:
                plain, target = (self.effort(n, usable) for n in partners)
                best = of.find(plain, target, ratio_at, self.close, self.max_tries)
                if best not in tried:  # the plain runs are close already, or closer than all tries
                    ratio_at(best if tried else 1 / of.ratio(plain, target))
        if not tried:
            return None, lost
        number = min(tried, key=lambda n: abs(tried[n] - 1))
        made = [self.folder_of(name, seed, root(number)) for seed in usable]
        runs = [read_manifest(folder) for folder in made]
        noted = (run.extra.get("matched_tries", 1) for run in runs)
        match = Match(of, number, tried[number], max(len(tried), *noted))
        facts = {"achieved_ratio": tried[number], "matched_tries": match.tries, of.setting: number}
        for seed, folder, run in zip(usable, made, runs, strict=True):
            run.extra |= facts
            write_manifest(folder, run)
            if (kept := self.folder_of(name, seed)) != folder:
                kept.parent.mkdir(exist_ok=True)
                remove_folder(kept)  # what a start that was killed left
                folder.rename(kept)
        if len(lost) == n_missing:  # else their logs stay
            remove_folder(hidden)
        return match, lost

    def effort(self, name: str, seeds: Sequence[int], root: Path | None = None) -> Effort:
        """The effort of one arm, all seeds together."""
        steps = pd.concat([load(self.folder_of(name, seed, root)).steps for seed in seeds])
        skipped = floats(steps, "n_skipped").sum() / floats(steps, "n_problems").sum()
        return Effort(mean_update(steps), float(skipped))

    def traces(self, name: str) -> list[Trace]:
        """The finished runs of an arm."""
        jobs = [self.job(name, seed) for seed in self.seeds]
        return [load(job.folder) for job in jobs if job.finished]


class _RunsLostError(Exception):
    """Runs at a number did not finish, so there is nothing to search on."""
