"""The training loop: sample, vote, ask the guard, update; once per batch of problems.

Shapes end in their axes: N problems, P problems of the batch, V votes, K trained samples, T tokens.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lab.errors import UserError
from lab.trace.lock import locked
from lab.trace.store import MemoryRun, RunFolder
from lab.trace.trace import Trace, load
from real.model.memory import memory_limit
from real.ranks.distributed import joined_ranks
from real.record.batches import Batch, batches
from real.record.evaluation import Evaluator
from real.record.final_model import save_model
from real.record.interrupts import stop_requests
from real.record.journal import Journal, Unwritten
from real.record.loggers import require_loggers
from real.record.meter import Clock, Progress, reporter, step_row, torch_threads
from real.record.resuming import fingerprint, reopened, resume_point
from real.record.stored import stored_config
from real.record.terminal import say
from real.record.vote_rows import Ballots
from real.run import Run, new_manifest, prepare
from real.saved_state import restore, state_of
from real.settings.config import TrainConfig
from real.settings.seeds import Stream, torch_generator
from real.update.mismatch import compared
from real.vote.first_votes import begin, first_votes
from real.vote.further_groups import mini_batches
from real.vote.grouping import read_answers, trained_groups
from real.vote.observing import after_step, observe


class Seen(NamedTuple):
    """Rows of one batch's votes, without step and epoch."""

    visits: dict[str, Any]
    """Columns of the trace's visits."""
    ballots: Ballots | None
    """None where votes are not kept."""


def train(
    config: TrainConfig,
    folder: str | Path | None = None,
    progress: Progress = True,
    arm: str | None = None,
) -> Trace:
    """Train a language model on the votes of its own responses.

    Args:
        config: what to run; the same settings give the same bits on one CPU.
        folder: where the run folder is written; nothing is left on disk if None.
        progress: whether to draw a bar on stderr, or a function to call with the share done.
        arm: name under which reports show the run; found from the settings if None.

    Returns:
        The trace. Visit 0 and step 0 are before training.

    Raises:
        UserError: model, problems or folder are wrong.
    """
    config = config.settled()
    if folder is None and config.log:
        raise UserError(f"log = {config.log[0]!r}: needs a run folder; name one")
    with joined_ranks(config) as ranks, torch_threads(config.threads):
        if folder is None and ranks.world > 1:
            raise UserError(f"ranks: {ranks.world} of them need a run folder; name one")
        require_loggers(config.log)
        run = prepare(config, ranks)
        with closing(run.engine), closing(run.supervisor):
            manifest = new_manifest(run, arm)
            if folder is None:
                with MemoryRun(manifest) as memory:
                    run_loop(run, Journal(memory), progress)
                return Trace.of(memory)
            if ranks.first:
                manifest.extra["sources"] = _sources(run)
                written = RunFolder.create(folder, manifest)
                with locked(written.path), written:
                    run_in_folder(run, written, progress)
            else:
                run_in_folder(run, None)
        ranks.wait()
    return load(folder)


def resume(
    folder: str | Path, config: TrainConfig | None = None, progress: Progress = True
) -> Trace:
    """Go on with a run that was stopped or killed, from its last checkpoint.

    On a CPU the trace and the weights end equal, bit for bit, to those of a run never stopped.

    Args:
        folder: the run folder; a finished run is left as it is.
        config: settings to go on with; those of the run if None. Only such as
            `real.record.stored.CHANGEABLE` may differ.
        progress: as for `train`.

    Returns:
        The trace of the whole run.

    Raises:
        UserError: the folder holds no run that can go on, or settings, model or problems differ.
    """
    folder = Path(folder)
    before = stored_config(folder)  # before the lock, which would write into any folder
    with joined_ranks(config or before) as ranks, locked(folder) if ranks.first else nullcontext():
        point = resume_point(folder, config)
        ranks.wait()  # all have read the folder before one changes it
        if point is not None:
            require_loggers(point.config.log)
            with torch_threads(point.config.threads):
                run = prepare(point.config, ranks)
                opened = reopened(point, _sources(run), partial(restore, run), run.ranks.first)
                with closing(run.engine), closing(run.supervisor), opened as written:
                    run_in_folder(run, written, progress, point.step)
        ranks.wait()
    return load(folder)


def run_in_folder(
    run: Run, written: RunFolder | None, progress: Progress = False, done: int | None = None
) -> None:
    """The whole run with all that it leaves on disk.

    Args:
        run: from `prepare`.
        written: None on ranks that leave nothing on disk, and only do their share.
        progress: as for `train`.
        done: as for `run_loop`.
    """
    recorder = written or Unwritten(new_manifest(run, None))
    with Journal.of(recorder, run.config, len(run.prompts), done) as log:
        run_loop(run, log, progress if written else False, done)
    if run.config.save_model:
        save_model(run.policy, written and written.path)


def run_loop(run: Run, log: Journal, progress: Progress = False, done: int | None = None) -> None:
    """The whole run: votes before training, then epochs over the shuffled problems.

    Args:
        run: from `prepare`, and if resumed put where the checkpoint was.
        log: records all rows, metrics and checkpoints.
        progress: as for `train`.
        done: batches that were done before a resumed run; None for a new one.
    """
    if done is None:
        say(run.prompts.notices)
    evaluator, state = _evaluator(run), partial(state_of, run)
    with reporter(progress, run.n_steps, log, done or 0) as report, stop_requests() as stop:
        run.engine.update_weights(run.policy.model, version=done or 0)
        if done is None:
            begin(run, log)
            _write(log, prime(run), {"step": 0, "epoch": 0})
            evaluator.log(log, step=0, epoch=0, full=True)
            log.checkpoint(state, 0)
        stop.deferred = log.keeps_checkpoints
        for batch in batches(run.config, len(run.prompts), after=done or 0):
            place = {"step": batch.step, "epoch": batch.epoch}
            seen, row, refused = train_batch(run, batch)
            _write(log, seen, place)
            log.write_steps({**row, **place})
            log.count_refused(refused)
            report(batch.step)
            if batch.is_evaluated(run.config):
                evaluator.log(log, **place, full=batch.ends_run)
            log.note(answer_timeouts=run.supervisor.answer_timeouts)
            asked = stop.agreed(run.ranks.highest)
            log.checkpoint(state, batch.step, asked=batch.ends_run or asked is not None)
            stop.leave_if(asked)


def prime(run: Run) -> Seen:
    """Visit 0: the votes of all problems before training."""
    answers_NV, observed = first_votes(run)
    visits = run.supervisor.prime(answers_NV, observed)
    return Seen(visits, run.supervisor.ballots(np.arange(len(answers_NV)), answers_NV, visit=0))


def train_batch(run: Run, batch: Batch) -> tuple[Seen, dict[str, Any], int]:
    """Sample, vote, decide and update for one batch of problems.

    Returns:
        What was seen, a row of the trace's steps, and how many optimizer steps were refused.
    """
    clock, problems_P = Clock(run.policy.device), batch.problems_P
    with clock.phase("rollout"), memory_limit("rollout"):
        prompts = [run.prompts.tokens[i] for i in problems_P]
        votes = _generator(run, Stream.VOTES, batch.step)
        rollouts = run.engine.sample(prompts, run.config.n_votes, run.sampling, votes)
        rollouts.of_version(batch.step - 1)
        look = observe(run, batch, rollouts)
    with clock.phase("grade"):
        answers_PV = read_answers(run, problems_P, rollouts)
    with clock.phase("guard"):
        supervision = run.supervisor.visit(
            problems_P, answers_PV, visit=batch.epoch, observed=look and look.observed
        )
        ballots = run.supervisor.ballots(problems_P, answers_PV, visit=batch.epoch)
    run.engine.release()
    with clock.phase("update"), memory_limit("update"):
        groups = trained_groups(run, problems_P, rollouts, supervision)
        parts = mini_batches(run, groups, look, supervision)
        found, mismatch = compared(
            run.optimizer.scorer,
            list(chain(*parts)),
            run.config.temperature,
            run.config.micro_tokens,
            run.config.importance_cap,
            run.ranks.share,
        )
        rest = iter(found)
        done = [run.optimizer.step(list(islice(rest, len(part)))) for part in parts]
    with clock.phase("sync"):
        after_step(run, batch)
        run.engine.update_weights(run.policy.model, version=batch.step)
    means = step_row(done)
    n_sampled = int(rollouts.lengths_PN.sum()) + (look.n_sampled if look else 0)
    row = {
        **means,
        "replicate": 0,
        "n_problems": len(groups),
        "n_skipped": supervision.n_skipped,
        "n_uniform": sum(group.silent and not group.dropped for group in groups),
        "mismatch_kl": mismatch,
        "tokens_sampled": n_sampled,
        "mean_length": float(rollouts.lengths_PN.float().mean()),
        **supervision.quality,
        **clock.columns(n_sampled, means["tokens"]),
    }
    return Seen(supervision.rows, ballots), row, sum(s.refused for s in done)


def _write(log: Journal, seen: Seen, place: dict[str, int]) -> None:
    log.write_visits({**seen.visits, **place})
    if seen.ballots is not None:
        log.write_ballots(seen.ballots, place)


def _generator(run: Run, stream: Stream, *place: int) -> torch.Generator:
    return torch_generator(run.config.seed, stream, *place, device=run.policy.device)


def _evaluator(run: Run) -> Evaluator:
    return Evaluator(
        config=run.config,
        engine=run.engine,
        policy=run.policy,
        prompts=run.prompts,
        equality=run.supervisor.equality,
        sampling=run.eval_sampling,
        max_rows=run.config.max_rows * run.ranks.world,
    )


def _sources(run: Run) -> dict[str, Any]:
    return fingerprint(Path(run.policy.tokenizer.name_or_path), run.prompts)
