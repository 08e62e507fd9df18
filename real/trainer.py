"""The training loop: read, observe, decide, pay and update, once per batch of problems.

Shapes end in their axes: N problems, P problems of the batch, V votes, K trained samples, T tokens.
"""

from __future__ import annotations

import shlex
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.measures.fate import MIN_VISITS
from lab.signals import stop
from lab.trace.manifest import locked
from lab.trace.trace import MemoryRun, RunFolder, Trace, load
from real.answers import UNPARSEABLE, repeats
from real.engines.make import RestartingEngine
from real.engines.rollouts import EngineDied
from real.model.machine import card_held, in_phase, pick_device, torch_threads
from real.plan import checkpoint_bytes
from real.problems.prompts import PROMPTS, prompt_rows
from real.ranks.distributed import joined_ranks, lost_ranks_named
from real.record.alarms import check_flips, check_mismatch, check_unread, watch_labels
from real.record.checkpoint import Checkpoints, check_room, model_bytes, save_model
from real.record.journal import LOGGERS, Journal, Unwritten, Visited
from real.record.metrics import Clock, Progress, reporter, sampled_row, step_row
from real.record.resuming import fingerprint, resume_point, stop_requests
from real.record.terminal import say
from real.record.trial import check_saving
from real.run import Batch, Run, batches, new_manifest, prepare, restore, state_of
from real.settings.config import TrainConfig
from real.settings.resolve import require_loggers, settled_for
from real.settings.seeds import Stream
from real.settings.stored import stored_config
from real.speed import peak_flops
from real.update.correction import rescore
from real.update.optimizer import Fault
from real.vote.decide import Fields, pay, shared_streams
from real.vote.observe import observe
from real.vote.pilot import check_readable


def train(
    config: TrainConfig,
    folder: str | Path | None = None,
    progress: Progress = True,
    arm: str | None = None,
) -> Trace:
    """Train a language model on the votes of its own responses; returns the trace.

    Visit 0 and step 0 are before training. The same settings give the same bits on one CPU.

    Args:
        folder: where the run folder is written; nothing is left on disk if None.
        progress: whether to draw a bar on stderr, or a function to call with the share done.
        arm: name under which reports show the run; found from the settings if None.

    Raises:
        UserError: model, problems or folder are wrong.
    """
    config, chosen = settled_for(config, pick_device(config.device).type)
    if folder is None and config.log:
        raise UserError(f"log = {config.log[0]!r}: needs a run folder; name one")
    with (
        joined_ranks(config.device, config.rank_timeout) as ranks,
        card_held(config, config.device),
        torch_threads(config.threads),
        in_phase("run"),
    ):
        if folder is None and ranks.world > 1:
            raise UserError(f"ranks: {ranks.world} of them need a run folder; name one")
        require_loggers(config.log)
        with in_phase("start"):
            run = prepare(config, ranks, chosen, None if folder is None else Path(folder))
        with closing(run.engine):
            with in_phase("start"):
                ranks.wait()  # all are ready before one makes the folder
                check_readable(run)
            manifest = new_manifest(run, arm)
            if folder is None:
                with MemoryRun(manifest) as memory:
                    run_loop(run, Journal(memory), progress)
                return Trace.of(memory)
            if ranks.first:
                manifest.extra["sources"] = fingerprint(run.policy.folder, run.prompt_sets)
                notices = check_disk(run, Path(folder))
                manifest.extra["notices"] = [*manifest.extra["notices"], *notices]
                written = RunFolder.create(folder, manifest)
                if config.epochs < MIN_VISITS:
                    few = f"epochs = {config.epochs}: too few for the fates of problems"
                    notices.append(f"{few} (Degraded, Learned, lost), which need {MIN_VISITS}")
                say(notices)
                with locked(written.path), written:
                    run_in_folder(run, written, written.path, progress)
            else:
                run_in_folder(run, None, Path(folder))
    return load(folder)


def resume(
    folder: str | Path, config: TrainConfig | None = None, progress: Progress = True
) -> Trace:
    """Go on with a run that was stopped or killed, from its last checkpoint; returns its trace.

    On a CPU the trace and the weights end equal, bit for bit, to those of a run never stopped.

    Args:
        folder: the run folder; a finished run stays as it is, unless its model is yet to be saved.
        config: settings to go on with; those of the run if None. Only those
            whose role is one of `lab.base.roles.CHANGEABLE` may differ.

    Raises:
        UserError: the folder holds no run that can go on, or settings, model or problems differ.
    """
    folder = Path(folder)
    stored = stored_config(folder)  # before the lock, which would write into any folder
    config = config or stored
    config = settled_for(config, pick_device(config.device).type)[0]
    with (
        joined_ranks(config.device, config.rank_timeout) as ranks,
        card_held(config, config.device),
        locked(folder) if ranks.first else nullcontext(),
        torch_threads(config.threads),
        in_phase("run"),
    ):
        point = resume_point(folder, config, ranks)
        ranks.wait()  # all have read the folder before one changes it
        if point is not None:
            require_loggers(config.log)
            with in_phase("start"):
                run = prepare(config, ranks, run_folder=folder)
            with closing(run.engine):
                if ranks.first:
                    sources = fingerprint(run.policy.folder, run.prompt_sets)
                    point.check_sources(config.model, sources)
                if point.checkpoint_folder is not None:
                    restore(run, point.checkpoint_folder)
                done = None if point.checkpoint is None else point.checkpoint.step
                with point.reopened(config) if ranks.first else nullcontext() as written:
                    run_in_folder(run, written, folder, progress, done)
    return load(folder)


def checkpoint_interval(run: Run) -> int:
    """Return the number of batches between checkpoints; 0 if none are written."""
    every = run.config.checkpoint_every
    return run.n_steps // run.config.epochs if every is None else every


def check_disk(run: Run, folder: Path) -> list[str]:
    """Return a notice of the disk space that a run will take; none if it is little."""
    config, every = run.config, checkpoint_interval(run)
    least = 1 if config.checkpoint_minutes else every
    return check_room(
        folder,
        checkpoint_bytes(sum(p.numel() for p in run.optimizer.parameters), config),
        keep=config.checkpoint_keep,
        n_written=1 - (-run.n_steps // least) if every else 0,
        final=model_bytes(run.policy.model) if config.save_model else 0,
    )


def run_in_folder(
    run: Run,
    written: RunFolder | None,
    path: Path,
    progress: Progress = False,
    done: int | None = None,
) -> None:
    """Do the whole run with all that it leaves on disk."""
    every = checkpoint_interval(run)
    kept = Checkpoints(path, written, run.config, every, run.ranks) if every else None
    names = run.config.log if written else ()
    recorder, place = written or Unwritten(new_manifest(run, None)), path if written else None
    loggers = [(name, LOGGERS[name](path, recorder.manifest, done)) for name in names]
    with lost_ranks_named():
        if run.config.save_model and done is None:
            with in_phase("save"):
                check_saving(run.policy, place)
        try:
            with Journal(recorder, loggers, kept) as log:
                run_loop(run, log, progress if written else False, done)
        except EngineDied as error:
            if kept is None:
                raise
            command = f"guard-train resume {shlex.quote(str(path))}"
            raise EngineDied(f"{error}; go on with {command}") from error
        if run.config.save_model:
            with in_phase("save"):
                save_model(run.policy, place, run.optimizer.average)


def run_loop(run: Run, log: Journal, progress: Progress = False, done: int | None = None) -> None:
    """Do the whole run, or what is left of it where `done` batches were done and restored."""
    if done is None:
        say(run.prompts.notices)
    if run.config.keep_votes and run.supervisor.reads:
        log.keep_votes(run.supervisor.answer_ids)
    state = partial(state_of, run)
    if isinstance(run.engine, RestartingEngine):
        run.engine.notice = log.notice
    with reporter(progress, run.n_steps, log, done or 0) as report, stop_requests() as signals:
        with log.phase("sync"):
            run.engine.update_weights(run.policy.model, version=done or 0)
        if done is None:
            log.write_json(PROMPTS, prompt_rows(run.prompt_sets, run.policy.tokenizer))
            log.note(**run.extra_rollouts.begin())
            if (name := run.extra_rollouts.file) and (kept := run.extra_rollouts.state()):
                log.write_json(name, kept[1])
            with log.phase("votes before training"):
                first = prime(run)
            log.note(n_labels_before=run.supervisor.n_labels())
            log.write_visited(first, {"step": 0, "epoch": 0})
            run.evaluator.log(log, step=0, epoch=0, full=True)
            log.checkpoint(state, 0)
        signals.deferred = log.checkpoints is not None
        left = list(batches(run.config, len(run.prompts)))[done or 0 :]
        for batch, following in zip(left, [*left[1:], None], strict=False):
            position = {"step": batch.step, "epoch": batch.epoch}
            try:
                visited, row = train_batch(run, batch, following)
            finally:  # an error may follow from them
                faults = +run.optimizer.faults  # without zeros
                refused = faults.total() - faults[Fault.LOG_PROB]
                log.note_faults(refused, {f.notice: n for f, n in faults.items()}, batch.step)
                run.optimizer.faults.clear()
            log.write_visited(visited, position)
            row |= position
            log.write("steps", row)
            report(batch.step, visited, row)
            if batch.is_evaluated(run.config):
                run.evaluator.log(log, **position, full=batch.ends_run)
            log.note(answers_given_up=run.supervisor.answers_given_up)
            # Before the checkpoint: a resumed run has all alarms, and gets round no end.
            if batch.step == 1 or not run.config.async_level:  # votes ahead are of older weights
                check_mismatch(log, row, run.config.dtype, run.config.max_mismatch)
            by_votes = run.config.labels != "truth"
            if run.supervisor.reads and by_votes:
                watch_labels(log, row, len(run.prompts))
            if not batch.ends_run:
                n_unread = run.ranks.highest(row.get("n_unread", 0))
                # The last batch of an epoch may hold a single problem, and is no whole one.
                whole = min(run.config.batch_size, len(run.prompts))
                check_unread(n_unread / whole, run.config.max_unread)
            if by_votes and batch.epoch == 2 and batch.ends_epoch:
                n_flipped = run.ranks.highest(int(run.supervisor.state.flips[:, -1].sum()))
                check_flips(n_flipped / len(run.prompts), run.config.lr, run.config.flips_below)
            signal = run.ranks.highest(signals.signal or 0)
            waits = run.dynamic_sampler.waits
            log.checkpoint(state, batch.step, batch.ends_run or bool(signal), waits)
            if signal and not waits:
                stop(signal)


def prime(run: Run) -> Visited:
    """Visit 0: sample the votes of all problems before training and start the guard with them."""
    scorer = run.optimizer.scorer
    # Where votes decide, what a rule observes matters to rewards alone.
    needs = frozenset() if run.rule.labels_by_votes() else run.rule.needs
    answers: list[NDArray[np.int64]] = []
    observed: list[Fields] = []
    for responses in run.first_votes(run.prompts, Stream.VOTES):
        answers.append(run.supervisor.read(responses))
        observed.append(observe(run, scorer, responses, needs))
    fields = {name: np.concatenate([part[name] for part in observed]) for name in observed[0]}
    answers_NV = np.concatenate(answers)
    columns = run.supervisor.prime(answers_NV, {**fields, **run.extra_rollouts.first()})
    return Visited(np.arange(len(answers_NV)), answers_NV, columns)


def train_batch(run: Run, batch: Batch, following: Batch | None) -> tuple[Visited, dict[str, Any]]:
    """Train on one batch of problems; returns its votes, and a row of the trace's steps."""
    config, extra, scorer = run.config, run.extra_rollouts, run.optimizer.scorer
    clock, problems_P = Clock(run.policy.device), batch.problems_P
    with clock.phase("rollout"):
        responses = run.votes.sample(problems_P, batch.step)
        if following is not None:
            run.votes.begin(following.problems_P, following.step)
    with clock.phase("further"):
        fields = extra.before(problems_P, batch.step)
    with clock.phase("grade"):
        answers_PV = run.supervisor.read(responses)
        observed = {**fields, **observe(run, scorer, responses, run.rule.needs)}
    with clock.phase("guard"):
        decided = run.supervisor.decide(problems_P, answers_PV, batch.epoch, observed)
    with clock.phase("further"):
        decided = extra.ask(decided, responses)
    with clock.phase("guard"):
        paid = pay(run.rule, decided, config.guard) if decided else None
        streams = shared_streams(run.ranks, paid)
    run.votes.release()
    run.optimizer.rate_scale *= run.supervisor.brake()
    with clock.phase("update"):
        groups = responses.groups(streams, config.mask_truncated)
        extra_groups = extra.groups(decided, streams)
        parts = run.dynamic_sampler.mini_batches(groups, extra_groups, batch.ends_run)
        trained, matched = rescore(scorer, list(chain(*parts)), config, cap=config.tis_cap or 0.0)
        left = iter(trained)
        steps = [run.optimizer.step(list(islice(left, len(part)))) for part in parts]
    with clock.phase("rollout"):
        run.votes.finish()
    with clock.phase("sync"):
        extra.after_step(batch.step)
        stages = run.engine.update_weights(run.policy.model, version=batch.step)
    means = step_row(steps, config.kl_coef > 0)
    unread_P = run.supervisor.reads & (answers_PV == UNPARSEABLE).all(axis=1)
    pairs = zip(groups, unread_P, strict=True)
    n_sampled = responses.n_tokens + extra.n_sampled
    flops = run.token_flops * sum(step.n_inputs for step in steps)
    peak = peak_flops(run.policy.device)
    row = {
        **means,
        "replicate": 0,
        "n_uniform": sum(g.silent and not g.dropped and not unread for g, unread in pairs),
        **matched,
        "tokens_sampled": n_sampled,
        **sampled_row(responses.rollouts, config.top_p),
        **(decided.step_columns if decided else {}),
        **clock.columns(n_sampled, means["tokens"], flops, peak=peak, world=run.ranks.world),
        **stages,
        **run.dynamic_sampler.columns,
        **run.votes.columns(responses.n_tokens),
    }
    if decided:
        questions = (run.prompts.problems[problem].prompt for problem in responses.problems)
        row["repeated"] = sum(map(repeats, questions, responses.texts)) / answers_PV.size
    return Visited(problems_P, answers_PV, decided.rows if decided else {}), row
