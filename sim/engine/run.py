"""A run from settings to its result: `simulate` gives a trace, `measure` numbers per replicate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lab.arm_settings import arm_of
from lab.base.arms import Arm
from lab.base.settings import to_values
from lab.measures import Tally
from lab.progress import Bar
from lab.trace.manifest import Manifest
from lab.trace.store import MemoryRun, RunFolder
from lab.trace.trace import Trace
from sim.engine.simulation import Simulation
from sim.settings.config import SimConfig
from sim.settings.machine_code import compilation_shown
from sim.world.measured.tree import read_measured
from sim.world.populations import Population


def simulate(
    config: SimConfig,
    folder: Path | str | None = None,
    progress: bool = False,
    *,
    arm: Arm | None = None,
    extra: dict[str, Any] | None = None,
) -> Trace:
    """Run a simulation.

    Args:
        folder: a new or empty folder for the trace, which is written while the run goes on; in
            memory if left out.
        arm: names the run in comparisons; found from the guard's settings if left out.

    Returns:
        The trace, with visit 0 before training.

    Raises:
        UserError: a file of the settings has a defect or the folder is in use, and nothing is
            written; or the logits stopped being finite.
    """
    # First: a bad histogram, trace or response file must be refused before anything is written.
    simulation = Simulation(config)
    parts = simulation.run()
    manifest = _manifest(config, arm or arm_of(config), extra or {})
    recorder: MemoryRun | RunFolder
    recorder = MemoryRun(manifest) if folder is None else RunFolder.create(folder, manifest)
    bar = Bar(parts, manifest.title, config.epochs + 1, unit="epoch", disable=not progress)
    with recorder, compilation_shown(bar.set_postfix_str):
        for done, part in enumerate(bar):
            recorder.write_visits(part.visits, copy=False)
            if part.steps is not None:
                recorder.write_steps(part.steps, copy=False)
            recorder.write_evals(part.evals, copy=False)
            if part.votes is not None:
                recorder.write_votes(part.votes, copy=False)
            recorder.note(progress=done / config.epochs)
        if (trust := simulation.trust()) is not None:
            recorder.note(trust=trust._asdict())
    return Trace.of(recorder)


def measure(
    config: SimConfig, accuracy: str = "label_accuracy", population: Population | None = None
) -> pd.DataFrame:
    """Simulate without keeping a trace.

    Args:
        accuracy: column of the visits by which a problem has its fate.
        population: problems of all replicates; those that the settings draw if left out.

    Returns:
        One row per replicate, see `Tally.table`.

    Raises:
        UserError: the logits stopped being finite.
    """
    simulation = Simulation(replace(config, vote_replicates=0), population)
    tally = Tally(config.first_replicate, config.replicates, config.n_problems, config.epochs)
    for epoch, part in enumerate(simulation.run()):
        visits = {**part.visits, "label_accuracy": part.visits[accuracy]}
        tally.add(epoch, visits, part.steps, part.evals)
    return tally.table()


def _manifest(config: SimConfig, arm: Arm, extra: dict[str, Any]) -> Manifest:
    task, facts = config.population, {"step_factor": config.step_factor, **extra}
    if config.response is not None:
        measured = read_measured(config.response, config.n_problems, config.n_answers).facts
        task = measured.task
        facts["sources"] = {"model": measured.model, "problems": measured.problems}
    return Manifest.new(
        "sim",
        arm.name,
        arm.title,
        n_problems=config.n_problems,
        n_votes=config.n_votes,
        config=to_values(config),
        seeds=[config.seed],
        task=task,
        backend="numba",
        extra=facts,
    )
