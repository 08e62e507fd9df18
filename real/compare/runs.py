"""The runs of a comparison: their settings, their folders, and what of them is on disk already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from lab.arm_settings import with_arm
from lab.arms import arm
from lab.errors import UserError
from lab.settings import to_values
from lab.trace.lock import locked
from lab.trace.manifest import FILE_NAME, read_manifest
from lab.trace.parts import is_unused
from lab.trace.trace import load
from real.model.folder import changed_files, model_digests
from real.problems.problem import ProblemSet, fingerprint
from real.record.stored import check_same, stored_config
from real.settings.config import TrainConfig

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
    config: TrainConfig, folder: Path, name: str, seed: int, step_factor: float = 1.0
) -> Job:
    """Return the run of one arm and seed; `rule_options` apply to arms with the settings' rule."""
    settings = replace(with_arm(config, arm(name, step_factor)), seed=seed)
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


def steps_of(folder: Path, name: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Return the steps of one arm, all seeds together."""
    return pd.concat([load(run_folder(folder, name, seed)).steps for seed in seeds])


def check_sources(job: Job, problems: ProblemSet | None, model: Path | None) -> None:
    """Refuse a run that was begun on other problems or another model than those of today.

    Args:
        job: the run.
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
