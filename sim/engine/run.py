"""The simulation: R replicates side by side, one batch of problems after the other.

Before training every problem is voted on once (visit 0). Then each epoch visits all problems in a
fresh order per replicate, in batches: votes are drawn from the policy, the guard decides, and the
policy takes one gradient step per problem that was not skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guard_core import Votes
from guard_core.rules.rule import at_label
from lab.arm_settings import Treatments, arm_of
from lab.base.arms import BASELINE, OWN, Arm, trains
from lab.base.errors import UserError
from lab.base.named_arms import PERMUTED
from lab.base.roles import roles_of
from lab.base.settings import to_values
from lab.measures import MEASURES
from lab.measures.fate import FATES, FIRST, LAST, MIN_VISITS, classify, fate_shares
from lab.progress import Bar
from lab.trace.manifest import Manifest
from lab.trace.trace import MemoryRun, RunFolder, Trace, load
from sim.engine.kernel import Plain, visit_all
from sim.engine.learner import Learner
from sim.engine.rows import RECORD, Epoch, Tables, majority_right
from sim.settings.config import SimConfig
from sim.settings.machine_code import compilation_shown
from sim.world.measured import Measured
from sim.world.policies import POLICIES, Policy
from sim.world.populations import draw_population, measured_population
from sim.world.sampling import (
    DEAL,
    ORDER,
    PICK,
    SKIP,
    TIE,
    Floats,
    Ints,
    Population,
    orders,
    uniforms,
)
from sim.world.tree import read_measured

_AT_ONCE = 1024
"""Visits whose probabilities are computed at once for evaluations; they fit a processor's cache."""
_SUMMED = 64
"""Problems whose chances are summed at once; a sum's order is part of its bits."""


class Simulation:
    """One run: `for part in Simulation(config).run()` yields the rows of every epoch.

    Raises:
        UserError: a file of the settings has a defect; later, the logits stopped being finite.
    """

    def __init__(self, config: SimConfig, population: Population | None = None) -> None:
        self.config = config
        self.policy: Policy
        if config.policy == "measured":
            self.population = measured_population(config)
            self.policy = Measured(config)
        else:
            self.population = population or draw_population(config)
            self.policy = POLICIES[config.policy](config, self.population)
        self.truth_RN = self.population.truth_RN.astype(np.int32)
        sizes = config.epochs, config.n_problems
        self._treatments = Treatments(
            config.treatment, config.seed, config.replicate_numbers, sizes
        )
        self._problems_RN = np.tile(np.arange(config.n_problems), (config.replicates, 1))
        self._right_RN = np.empty(self.truth_RN.shape)
        """Chance that a response to each problem is right, at the end of the latest epoch."""
        self._batch = 0
        self._steps = config.steps()
        self._scale_R = np.ones(config.replicates)

    def run(self) -> Iterator[Tables]:
        """Visit 0 first, then one epoch after the other."""
        yield self.before()
        for number in range(1, self.config.epochs + 1):
            yield self.epoch(number)

    def before(self) -> Tables:
        """Vote on every problem before training and start the guard with it."""
        c, epoch = self.config, self._epoch(0)
        votes, p_RNA = self._vote(epoch.problems_RN, 0)
        self.learner = Learner(c, self._treatments, epoch, votes, p_RNA)
        policy = self.policy.plain if self.is_plain() else None
        self._plain = None if policy is None else self.learner.plain(policy, self._right_RN)
        epoch.tally(slice(None), votes)
        epoch.records_RN["mean_match_rate"] = np.nan
        epoch.records_RN["weight"] = 1
        right_R = majority_right(votes.counts, self.truth_RN).mean(axis=1)
        self._evaluate()
        return Tables(c, epoch, self.pass_at_1(), right_R)

    def epoch(self, number: int) -> Tables:
        """Visit every problem once and learn from it."""
        c, epoch = self.config, self._epoch(number)
        if self._plain is not None:
            self._visit_all(epoch, self._plain)
        else:
            for start in range(0, c.n_problems, c.batch_size):
                self._visit(epoch, start)
            self._evaluate()
        last = number == c.epochs
        majority_R = self.majority_accuracy() if last else np.full(c.replicates, np.nan)
        return Tables(c, epoch, self.pass_at_1(), majority_R)

    def probabilities(self) -> Floats:
        """(R, N, A) probability of every answer now; 1 - sum is the unparseable probability."""
        return self._probabilities(self._problems_RN, self._batch // self.config.n_batches)

    def is_plain(self) -> bool:
        """Nothing between a visit's votes and its update needs more than compiled code."""
        c = self.config
        usual = c.rule == BASELINE and c.update == "sampled"
        return usual and c.treatment == OWN and not c.skip_rate

    def _visit_all(self, epoch: Epoch, plain: Plain) -> None:
        c, bad_R = self.config, np.empty(self.config.replicates, np.int64)
        visit_all(plain, epoch, bad_R)
        batch_R = np.where(bad_R < 0, c.n_batches, bad_R // c.batch_size)
        r = int(batch_R.argmin())
        self._batch += int(batch_R[r])
        if bad_R[r] >= 0:
            place = r * c.n_problems + int(bad_R[r])
            raise self._exploded(place, epoch.problems_RN, epoch.epoch)

    def _visit(self, epoch: Epoch, start: int) -> None:
        c, number = self.config, epoch.epoch
        at = slice(start, min(start + c.batch_size, c.n_problems))
        problems_RP = epoch.problems_RN[:, at].copy()
        votes, p_RPA = self._vote(problems_RP, number)
        epoch.tally(at, votes)
        update = self.learner.step(epoch, start, votes, p_RPA)
        if c.guard.brake.brake < 1:
            self._scale_R *= self.learner.brake_factor()
        epoch.lr_RB[:, start // c.batch_size] *= self._scale_R
        place = (number, self._batch)
        norm_RP = self.policy.train(place, self._scale_R, problems_RP, votes, update)
        if not np.isfinite(norm_RP).all():
            bad = int(np.flatnonzero(~np.isfinite(norm_RP))[0])
            raise self._exploded(bad, problems_RP, number)
        epoch.norm_RN[:, at] = norm_RP
        self._batch += 1

    def _epoch(self, number: int) -> Epoch:
        c, (R, N) = self.config, self.truth_RN.shape
        problems_RN = orders(self._uniforms(ORDER, number)) if number else self._problems_RN
        tie_RN, skip_RN, pick_RN = (self._uniforms(way, number) for way in (TIE, SKIP, PICK))
        return Epoch(
            number,
            problems_RN,
            np.take_along_axis(self.truth_RN, problems_RN, axis=1),
            tie_RN,
            skip_RN,
            pick_RN,
            (np.empty if number else np.zeros)((R, N), RECORD),
            np.tile(self._steps[self._batch : self._batch + c.n_batches], (R, 1)),
            np.zeros((R, N)),
            np.zeros((min(c.vote_replicates, R), N, c.n_answers), np.int32),
            self._uniforms(DEAL, number) if c.treatment == PERMUTED else None,
        )

    def majority_accuracy(self) -> Floats:
        """(R,) share of problems whose majority of V new votes, drawn after training, is right."""
        right_RN = np.empty(self.truth_RN.shape)
        for at, problems_RP in self._chunks():
            # The random numbers of the epoch after the last, which no visit uses.
            votes, _ = self._vote(problems_RP, self.config.epochs + 1, evaluated=True)
            right_RN[:, at] = majority_right(votes.counts, self.truth_RN[:, at])
        return _summed(right_RN) / self.config.n_problems

    def pass_at_1(self) -> Floats:
        """(R,) chance that one response to a problem is right, mean over all problems."""
        return (1 - self.config.unparseable) * _summed(self._right_RN) / self.config.n_problems

    def _evaluate(self) -> None:
        epoch = self._batch // self.config.n_batches
        for at, problems_RP in self._chunks():
            p_RPA = self._probabilities(problems_RP, epoch, evaluated=True)
            self._right_RN[:, at] = at_label(p_RPA, self.truth_RN[:, at])

    def _chunks(self) -> Iterator[tuple[slice, Ints]]:
        """Some problems after others: their place and numbers."""
        R, N = self.truth_RN.shape
        size = max(_AT_ONCE // R, 1)
        for start in range(0, N, size):
            at = slice(start, min(start + size, N))
            yield at, np.ascontiguousarray(self._problems_RN[:, at])

    def _vote(self, problems_RP: Ints, epoch: int, evaluated: bool = False) -> tuple[Votes, Floats]:
        p_RPA = self._probabilities(problems_RP, epoch, evaluated)
        return self.policy.draw(epoch, problems_RP, p_RPA)

    def _probabilities(self, problems_RP: Ints, epoch: int, evaluated: bool = False) -> Floats:
        p_RPA = np.empty((*problems_RP.shape, self.config.n_answers))
        policy = self.policy.evaluated() if evaluated else self.policy
        bad = policy.probabilities(problems_RP, p_RPA)
        if bad >= 0:
            raise self._exploded(bad, problems_RP, epoch)
        return p_RPA

    def _uniforms(self, purpose: int, epoch: int) -> Floats:
        c = self.config
        return uniforms(c.seed, c.first_replicate, c.replicates, purpose, epoch, c.n_problems)

    def _exploded(self, place: int, problems_RP: Ints, visit: int) -> UserError:
        c, (r, p) = self.config, divmod(place, problems_RP.shape[1])
        rate = f"step = {c.step}" if c.lr is None else f"lr = {c.lr}"
        return UserError(
            f"{rate}: the logits of problem {problems_RP[r, p]} are not finite "
            f"at visit {visit} (replicate {c.first_replicate + r}, batch "
            f"{self._batch + 1}); take a smaller step"
        )


def _summed(chances_RN: Floats) -> Floats:
    """(R,) sums of chances over the problems."""
    R, N = chances_RN.shape
    parts = (chances_RN[:, n : n + _SUMMED].sum(axis=1) for n in range(0, N, _SUMMED))
    return sum(parts, start=np.zeros(R))


def simulate(
    config: SimConfig,
    folder: Path | str | None = None,
    progress: bool = False,
    *,
    arm: Arm | None = None,
) -> Trace:
    """Run a simulation; the trace begins with visit 0, before training.

    Args:
        folder: a new or empty folder for the trace, which is written while the run goes on; in
            memory if left out.
        arm: names the run in comparisons; found from the guard's settings if left out.

    Raises:
        UserError: a file of the settings has a defect or the folder is in use, and nothing is
            written; or the logits stopped being finite.
    """
    # First: a bad histogram, trace or response file must be refused before anything is written.
    simulation = Simulation(config)
    manifest = _manifest(config, arm or arm_of(config))
    n = config.epochs + 1
    recorder = MemoryRun(manifest, n) if folder is None else RunFolder.create(folder, manifest, n)
    bar = Bar(desc=manifest.title, total=config.epochs, unit="epoch", disable=not progress)
    with recorder, bar, compilation_shown(bar.set_postfix_str):
        for done, part in enumerate(simulation.run()):
            for name in ("visits", "steps", "evals", "votes"):
                if (columns := getattr(part, name)) is not None:
                    recorder.write(name, columns)
            recorder.note(progress=done / config.epochs)
            bar.update(done > 0)  # visit 0 is no epoch
        recorder.note(**simulation.policy.notes())
    return Trace.of(recorder) if isinstance(recorder, MemoryRun) else load(recorder.path)


def measure(
    config: SimConfig, accuracy: str = "label_accuracy", population: Population | None = None
) -> pd.DataFrame:
    """Simulate without keeping a trace.

    Args:
        accuracy: column of the visits by which a problem has its fate.
        population: problems of all replicates; those that the settings draw if left out.

    Returns:
        One row per replicate, indexed by its number, one column per entry of `MEASURES`.
    """
    R, N, epochs = config.replicates, config.n_problems, config.epochs
    first_RN, last_RN = np.zeros((2, R, N))
    skipped_R, moved_R, right_R = np.zeros((3, R))
    scores: list[Any] = []
    simulation = Simulation(replace(config, vote_replicates=0), population)
    for epoch, part in enumerate(simulation.run()):
        scores.append((part.evals["pass_at_1"], part.evals["maj_accuracy"]))
        if part.steps is None:
            continue
        names = ("problem", "skipped", "label_correct", accuracy)
        visits = {name: part.visits[name].reshape(R, N) for name in names}
        for sum_RN, counts in ((first_RN, epoch <= FIRST), (last_RN, epoch > epochs - LAST)):
            if counts:
                sum_RN[np.arange(R)[:, None], visits["problem"]] += visits[accuracy]
        skipped_R += visits["skipped"].sum(axis=1)
        right_R = visits["label_correct"].sum(axis=1)
        norms_M = part.steps["update_norm"] * part.steps["n_problems"]
        moved_R += np.cumsum(norms_M.reshape(R, -1), axis=1)[:, -1]
    passes_ER, majority_ER = 100 * np.stack(scores, axis=1)
    label_final_R = 100 * right_R / N
    table = pd.DataFrame(
        {
            "pass_start": passes_ER[0],
            "pass_final": passes_ER[-1] if trains(arm_of(config).name) else label_final_R,
            "pass_best": passes_ER.max(axis=0),
            "maj_start": majority_ER[0],
            "maj_final": majority_ER[-1],
            "label_final": label_final_R,
            "update_norm": moved_R / (N * epochs),
            "skipped": 100 * skipped_R / (N * epochs),
        },
        pd.Index(config.first_replicate + np.arange(R), name="replicate"),
    )
    if epochs >= MIN_VISITS:
        codes: Any = classify(first_RN / FIRST, last_RN / LAST).reshape(-1)
        fate = pd.Categorical.from_codes(codes, pd.Index(FATES), ordered=True)
        problems = pd.DataFrame({"replicate": np.repeat(table.index, N), "fate": fate})
        table = table.join(fate_shares(problems))
    return table.reindex(columns=list(MEASURES))


def _manifest(config: SimConfig, arm: Arm) -> Manifest:
    task, facts = config.population, dict[str, Any](step_factor=config.step_factor)
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
        roles=roles_of(config),
        seeds=[config.seed],
        task=task,
        backend="numba",
        extra=facts,
    )
