"""The runs of a comparison: what is asked for, their settings, and what is there already.

All is checked without PyTorch, and what is asked for before any folder is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from guard_core.rules import RULES
from lab.arm_settings import with_arm
from lab.base.arms import ALL_ARMS, BASELINE, DEFAULT_GUARD, arm, guard_of, replayed_target
from lab.base.errors import UserError
from lab.base.settings import to_values
from lab.trace.manifest import FILE_NAME, read_manifest
from lab.trace.parts import is_unused, locked
from real.model.folder import PREFIX, changed_files, model_digests, model_folder
from real.problems.load import read_problems
from real.problems.problem import ProblemSet, fingerprint
from real.record.stored import check_same, stored_config
from real.settings.config import TrainConfig

_PER_ARM = ("guard", "labels", "treatment", "step_factor", "seed")
"""Settings that belong to the arm or the seed, so a comparison cannot be given them."""
_DEFAULTS = {field.name: field.default for field in fields(TrainConfig)}


def check_asked(
    config: TrainConfig, arms: Sequence[str], seeds: Sequence[int]
) -> tuple[ProblemSet | None, Path | None]:
    """Refuse mistakes that every run would repeat.

    Args:
        arms: names of `lab.base.arms`.

    Returns:
        The problems and the model's folder; None where the settings name none.

    Raises:
        UserError: a setting belongs to arm or seed, an arm is unknown, or the model or the problems
            cannot be read.
    """
    for name in _PER_ARM:
        usual = guard_of(DEFAULT_GUARD, RULES[config.rule]) if name == "guard" else _DEFAULTS[name]
        if getattr(config, name) != usual:
            raise UserError(f"{name}: every arm and seed has its own in a comparison; leave it out")
    for name in arms:
        with_arm(config, arm(name))
    if config.rule not in (BASELINE, *(arm(name).rule for name in arms)):
        raise UserError(
            f"rule = {config.rule!r}: is that of no arm; name arms with it, or leave out"
        )
    check_list("arms", arms, f"name some of {', '.join(ALL_ARMS)}")
    check_list("seeds", seeds, "give whole numbers from 0")
    if any(seed < 0 for seed in seeds):
        raise UserError(f"seeds = {min(seeds)}: must be at least 0")
    return read_sources(config)


def read_sources(config: TrainConfig, fetch: bool = True) -> tuple[ProblemSet | None, Path | None]:
    """Return problems and model folder of settings; None where they name none.

    Args:
        fetch: fetch what the hub holds; else only local files are read.

    Raises:
        UserError: the model or the problems cannot be read.
    """
    problems, model = config.problems, config.own_model
    if not fetch:
        problems = None if config.hub or (problems or "").startswith(PREFIX) else problems
        model = None if (model or "").startswith(PREFIX) else model
    read = None if problems is None else read_problems(config)
    return read, None if model is None else model_folder(model)


def check_list(name: str, values: Sequence[object], remedy: str) -> None:
    """Refuse an empty list, and one that names something twice."""
    if not values:
        raise UserError(f"{name}: the list is empty; {remedy}")
    if len(set(values)) < len(values):
        raise UserError(f"{name}: the list names one twice; {remedy}")


_SOURCES = frozenset({"model", "problems"})
"""Of a finished run their names are compared, too; of all runs their content."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    arm: str
    config: TrainConfig
    folder: Path

    @property
    def name(self) -> str:
        """Name for readers."""
        return f"{self.arm}, seed {self.config.seed}"

    @property
    def log(self) -> Path:
        """File for the output of the process; removed if it stays empty."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def begun(self) -> bool:
        """The folder holds a run, finished or not."""
        return (self.folder / FILE_NAME).is_file()

    @property
    def finished(self) -> bool:
        """The run was completed."""
        return self.begun and read_manifest(self.folder).status == "finished"

    @property
    def progress(self) -> float:
        """Share of the run that is done, as its folder has it."""
        return read_manifest(self.folder).progress if self.begun else 0.0

    @property
    def notices(self) -> list[str]:
        """Notices of the run, as its folder has them."""
        return read_manifest(self.folder).extra.get("notices", []) if self.begun else []


@dataclass(slots=True)
class Outcome:
    """Outcome of a run."""

    job: Job
    done: float = 0.0
    """Share of the run that was made."""
    error: str | None = None
    """Reason of its failure in one line; None if it did not fail."""


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of runs that failed."""
    return [outcome for outcome in outcomes if outcome.error is not None]


def run_folder(folder: Path, arm_name: str, seed: int) -> Path:
    """Folder of one run of a comparison."""
    return folder / arm_name / f"seed-{seed}"


def job_of(
    config: TrainConfig,
    folder: Path,
    name: str,
    seed: int,
    step_factor: float = 1.0,
    seeds: Sequence[int] = (),
) -> Job:
    """Return the run of one arm and seed; `rule_options` apply to arms with the settings' rule.

    An arm that replays decisions gets those of the seed that follows its own in `seeds`, the last
    one those of the first.
    """
    settings = replace(with_arm(config, arm(name, step_factor)), seed=seed)
    target = replayed_target(name)
    if target is not None and seed in seeds:
        other = seeds[(list(seeds).index(seed) + 1) % len(seeds)]
        settings = replace(settings, treatment=str(run_folder(folder, target, other).resolve()))
    return Job(name, settings, run_folder(folder, name, seed))


def finished(folder: Path, name: str, seed: int) -> bool:
    """Return whether a run was completed."""
    path = run_folder(folder, name, seed)
    return (path / FILE_NAME).is_file() and read_manifest(path).status == "finished"


def stored_factor(folder: Path, name: str, seeds: Sequence[int]) -> float | None:
    """Return the factor on the learning rate of the runs of an arm; None if there are none."""
    paths = [run_folder(folder, name, seed) for seed in seeds]
    found = next((path for path in paths if (path / FILE_NAME).is_file()), None)
    return None if found is None else stored_config(found).step_factor


def check_sources(job: Job, problems: ProblemSet | None, model: Path | None) -> None:
    """Refuse a run that was begun on other problems or another model than those of today.

    Args:
        problems: as they are read today; None for the tiny task's.
        model: folder of today's model; None for the tiny task's.

    Raises:
        UserError: their content differs from what the run noted at its start.
    """
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
    """Refuse a folder in which the run can neither start nor go on nor count as finished.

    Raises:
        UserError: the folder holds something else, a run of other settings, or a run that another
            process writes.
    """
    if not job.begun:
        if job.folder.exists() and not is_unused(job.folder):
            raise UserError(
                f"{job.folder}: exists and holds no run; choose another --out or delete it"
            )
        return
    before, done = to_values(stored_config(job.folder)), job.finished
    check_same(before, job.config.settled(), job.folder, fixed=_SOURCES if done else frozenset())
    if not done:
        with locked(job.folder):
            """Only to learn whether another process holds it."""
