"""The training loop: read, observe, decide, pay and update, once per batch of problems.

Shapes end in their axes: N problems, P problems of the batch, V votes, K trained samples, T tokens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.base.errors import UserError
from lab.progress import Bar
from lab.signals import stop
from lab.trace.manifest import locked
from lab.trace.trace import MemoryRun, RunFolder, Trace, load
from real.answers import UNPARSEABLE
from real.engines.make import RestartingEngine
from real.engines.rollouts import Rollouts
from real.model.machine import card_held, in_phase, pick_device, torch_threads
from real.problems.prompts import PROMPTS, prompt_rows
from real.ranks.distributed import joined_ranks, lost_ranks_named
from real.record.alarms import check_mismatch, watch_labels
from real.record.checkpoint import Checkpoints, save_model
from real.record.journal import LOGGERS, Journal, Unwritten, Visited, VoteRows
from real.record.resuming import advised, fingerprint, reopened, resume_point, stop_requests
from real.record.terminal import say, show_numbers, unread
from real.run import Run, check_disk, few_epochs, new_manifest, prepare, restore, state_of
from real.settings.config import TrainConfig
from real.settings.presets import require_loggers, settled_for, stored_config
from real.settings.seeds import Batch, batches, checkpoint_interval
from real.speed import peak_flops
from real.trial import check_saving
from real.update.correction import rescore
from real.update.optimizer import Fault, Step
from real.vote.decide import Fields, pay, shared_streams
from real.vote.observe import OF_LABELS
from real.vote.pilot import check_readable

Progress = bool | Callable[[float], None]
"""Draw a bar, draw none, or call with the share of the run that is done."""


class Clock:
    """Adds up seconds per phase; a GPU is waited for at the end of each."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._start = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase, which errors name, see `in_phase`."""
        start = time.perf_counter()
        with in_phase(name):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        column = f"seconds_{name}"
        self.seconds[column] = self.seconds.get(column, 0.0) + time.perf_counter() - start

    def columns(
        self, n_sampled: float, n_trained: float, flops: float, world: int
    ) -> dict[str, float]:
        """Seconds per phase and of the whole step, tokens per second, and the use of a GPU.

        The phases `rollout` and `further` sampled `n_sampled` tokens; `update` trained `n_trained`,
        with `flops` operations. Each of `world` ranks has a GPU.
        """
        seconds, further = self.seconds, self.seconds.get("seconds_further", 0.0)
        whole = time.perf_counter() - self._start
        columns = {
            **seconds,
            "seconds_step": whole,
            "sampled_per_second": n_sampled / (seconds["seconds_rollout"] + further),
            "trained_per_second": n_trained / seconds["seconds_update"],
        }
        if self._device.type == "cuda":
            peak = peak_flops(self._device) * world
            columns |= {
                "gpu_memory_gb": torch.cuda.max_memory_allocated(self._device) / 1e9,
                "tokens_per_gpu_second": n_sampled / (whole * world),
                "share_of_peak": flops / (seconds["seconds_update"] * peak),
            }
        return columns


@contextlib.contextmanager
def reporter(
    progress: Progress, total: int, log: Journal, done: int = 0
) -> Iterator[Callable[[int, Visited, Mapping[str, Any]], None]]:
    """Show how far the run is, by a function of a batch's number, votes and row of the steps."""
    recent: deque[Mapping[str, Any]] = deque(maxlen=max(1, total // 20))
    shown = [""]
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
    how: Any = {"unit": "step", "bar_format": form, "disable": progress is not True}
    with Bar(total=total, initial=done, **how) as bar:

        def show(phase: str, words: str = "") -> None:
            shown[:] = [words or shown[0]]
            bar.set_postfix_str(phase or shown[0], refresh=bool(phase))

        def report(step: int, visited: Visited, row: Mapping[str, Any]) -> None:
            log.note(progress=step / total)
            if visited.columns:  # there are none on ranks that read no answers
                recent.append({**row, "unread": unread(visited.columns)})
            words = _in_words(log.manifest.extra.get("evaluation", {}).get("last", {}), recent)
            show("", words)
            bar.update()
            show_numbers(f"step {step}/{total}, {words}")
            if callable(progress):
                progress(step / total)

        log.show = show
        yield report


_SHOWN = {
    "match rate": ("majority_ratio", ".2f"),
    "labels": ("n_labels", ".0f"),
    "unread": ("unread", ".0%"),
    "loss": ("loss", ".2g"),
    "reward": ("reward", ".2f"),
}


def _in_words(evaluation: Mapping[str, Any], recent: Iterable[Mapping[str, Any]]) -> str:
    words = [f"pass@1 {evaluation['pass_at_1']:.3f}"] if "pass_at_1" in evaluation else []
    for name, (column, form) in _SHOWN.items():
        known = [row[column] for row in recent if math.isfinite(row.get(column, math.nan))]
        words += [f"{name} {np.mean(known):{form}}"] if known else []
    return ", ".join(words)


def note_faults(log: Journal, faults: Counter[Fault], step: int) -> None:
    """Note numbers of a batch that were not finite, and forget them."""
    counted = {fault: n for fault, n in faults.items() if n}
    if counted:
        refused = sum(n for fault, n in counted.items() if fault is not Fault.LOG_PROB)
        log.note_faults(refused, {fault.notice: n for fault, n in counted.items()}, step)
    faults.clear()


def sampled_row(rollouts: Rollouts, top_p: float) -> dict[str, float]:
    """Return length, truncated share and token entropy of the sampled responses.

    The entropy is the engine's mean per token, or else its unbiased estimate, in nats: the mean of
    minus the log-prob, unless a nucleus cut the distribution.
    """
    entropy = np.nan
    if rollouts.entropy_PV is not None:
        lengths_PV = rollouts.lengths_PN.double()
        entropy = float((rollouts.entropy_PV * lengths_PV).sum() / lengths_PV.sum())
    elif top_p == 1:
        logprobs_n = rollouts.logprobs_PNT[rollouts.mask_PNT()].double()
        entropy = -float(logprobs_n[logprobs_n.isfinite()].mean())
    return {
        "mean_length": float(rollouts.lengths_PN.float().mean()),
        "truncated": 1.0 - float(rollouts.finished_PN.double().mean()),
        "entropy": entropy,
    }


def step_row(done: list[Step]) -> dict[str, float]:
    """Means over the scheduled steps, or over those taken where only they have a value."""
    taken = [s for s in done if s.taken]
    n_tokens = sum(s.n_tokens for s in taken)

    def mean(values: list[float]) -> float:
        return float(np.mean(values)) if values else np.nan

    return {
        "lr": mean([s.lr for s in done]),
        "update_norm": mean([s.update_norm for s in done]),
        "loss": mean([s.loss for s in taken]),
        "grad_norm": mean([s.grad_norm for s in taken]),
        "clip_fraction": sum(s.n_clipped for s in taken) / n_tokens if n_tokens else np.nan,
        "tokens": sum(s.n_forward for s in done),
        "n_updates": len(taken),
        "n_refused": sum(s.fault is not None for s in done),
        "n_left_out": sum(s.n_left_out for s in done),
    }


def mean_kl(done: list[Step]) -> float:
    """Mean over the tokens of all steps of the KL divergence from the start model, in nats."""
    n_tokens = sum(s.n_forward for s in done)
    return sum(s.kl * s.n_forward for s in done) / n_tokens if n_tokens else np.nan


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
                check_readable(run.sampler, run.prompts, run.sampling, config)
            manifest = new_manifest(run, arm)
            if folder is None:
                with MemoryRun(manifest) as memory:
                    run_loop(run, Journal(memory), progress)
                return Trace.of(memory)
            if ranks.first:
                manifest.extra["sources"] = fingerprint(run.policy.folder, run.prompts)
                notices = check_disk(run, Path(folder))
                manifest.extra["notices"] += notices
                written = RunFolder.create(folder, manifest)
                say([*notices, *few_epochs(config)])
                with locked(written.path), written:
                    if config.save_model and ranks.world == 1:
                        with in_phase("save"):
                            check_saving(run.policy, written.path)
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
        folder: the run folder; a finished run is left as it is.
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
        locked(folder) if ranks.first else contextlib.nullcontext(),
        in_phase("run"),
    ):
        point = resume_point(folder, config, ranks)
        ranks.wait()  # all have read the folder before one changes it
        if point is not None:
            require_loggers(point.config.log)
            with torch_threads(point.config.threads):
                with in_phase("start"):
                    run = prepare(point.config, ranks, logs=folder)
                sources = fingerprint(run.policy.folder, run.prompts) if ranks.first else None
                opened = reopened(point, sources, partial(restore, run))
                with closing(run.engine), opened as written:
                    done = None if point.checkpoint is None else point.checkpoint.step
                    run_in_folder(run, written, folder, progress, done)
    return load(folder)


def run_in_folder(
    run: Run,
    written: RunFolder | None,
    path: Path,
    progress: Progress = False,
    done: int | None = None,
) -> None:
    """Do the whole run with all that it leaves on disk."""
    every = checkpoint_interval(run.config, len(run.prompts))
    kept = Checkpoints(path, written, run.config, every, run.ranks) if every else None
    if written is None:
        journal = Journal(Unwritten(new_manifest(run, None)), checkpoints=kept)
    else:
        where = written.path, written.manifest, done
        made = [(kind, LOGGERS[kind](*where)) for kind in run.config.log]
        journal = Journal(written, written.path, made, kept)
    with lost_ranks_named():
        with journal as log, advised(path, log.keeps_checkpoints):
            run_loop(run, log, progress if written else False, done)
        if run.config.save_model:
            with in_phase("save"):
                save_model(run.policy, written.path if written else None, run.optimizer.average)


def run_loop(run: Run, log: Journal, progress: Progress = False, done: int | None = None) -> None:
    """Do the whole run: votes before training, then epochs over the shuffled problems.

    `done` batches were done before a resumed run, and the run was put there; None for a new one.
    """
    if done is None:
        say(run.prompts.notices)
    keeps = run.config.keep_votes and run.supervisor.reads
    votes = VoteRows(run.supervisor.answer_ids) if keeps else None
    state = partial(state_of, run)
    if isinstance(run.engine, RestartingEngine):
        run.engine.notice = log.notice
    with reporter(progress, run.n_steps, log, done or 0) as report, stop_requests() as signals:
        with log.phase("sync"):
            run.engine.update_weights(run.policy.model, version=done or 0)
        if done is None:
            log.write_json(PROMPTS, prompt_rows(run.prompts, run.policy.tokenizer))
            log.note(**run.extra_rollouts.begin())
            if run.extra_rollouts.file is not None:
                log.write_json(run.extra_rollouts.file, run.extra_rollouts.values())
            with log.phase("votes before training"):
                first = prime(run)
            log.note(n_labels_before=run.supervisor.n_labels())
            log.write_visited(first, {"step": 0, "epoch": 0}, votes)
            run.evaluator.log(log, step=0, epoch=0, full=True)
            log.checkpoint(state, 0)
        signals.deferred = log.keeps_checkpoints
        left = list(batches(run.config, len(run.prompts), after=done or 0))
        for batch, following in zip(left, [*left[1:], None], strict=False):
            position = {"step": batch.step, "epoch": batch.epoch}
            try:
                visited, row = train_batch(run, batch, following)
            finally:  # an error may follow from them
                note_faults(log, run.optimizer.faults, batch.step)
            log.write_visited(visited, position, votes)
            row |= position
            log.write_steps(row)
            report(batch.step, visited, row)
            if batch.is_evaluated(run.config):
                run.evaluator.log(log, **position, full=batch.ends_run)
            log.note(answers_given_up=run.supervisor.answers_given_up)
            asked = run.ranks.highest(signals.asked or 0)
            log.checkpoint(
                state, batch.step, batch.ends_run or bool(asked), run.dynamic_sampler.waits
            )
            if asked and not run.dynamic_sampler.waits:
                stop(asked)
            if batch.step == 1 or not run.config.async_level:  # votes ahead are of older weights
                check_mismatch(log, row, run.policy.model.dtype, run.config.max_mismatch)
            if run.supervisor.reads and run.config.labels != "truth":
                watch_labels(log, row, len(run.prompts))
            if not batch.ends_run:
                check_unread(run, row["n_unread"], len(batch.problems_P))


def check_unread(run: Run, n_unread: int, n_problems: int) -> None:
    """End a run whose policy lost the form of answers: no label can bring it back."""
    share, allowed = run.ranks.highest(n_unread) / n_problems, run.config.max_unread
    if share > allowed:
        raise UserError(
            f"no vote holds an answer in {share:.0%} of a batch's problems; lower lr, read the "
            "last number where there is no box by --extract flexible, or go on with --max-unread 1"
        )


def prime(run: Run) -> Visited:
    """Visit 0: sample the votes of all problems before training and start the guard with them."""
    needs = run.rule.needs & OF_LABELS
    answers: list[NDArray[np.int64]] = []
    observed: list[Fields] = []
    for responses in run.votes.before_training(run.config.max_rows * run.ranks.world):
        answers.append(run.supervisor.read(responses))
        observed.append(run.observer.observe(responses, needs))
    fields = {name: np.concatenate([part[name] for part in observed]) for name in observed[0]}
    answers_NV = np.concatenate(answers)
    columns = run.supervisor.prime(answers_NV, {**fields, **run.extra_rollouts.first()})
    return Visited(np.arange(len(answers_NV)), answers_NV, columns)


def train_batch(run: Run, batch: Batch, following: Batch | None) -> tuple[Visited, dict[str, Any]]:
    """Train on one batch of problems; returns its votes, and a row of the trace's steps."""
    config, extra = run.config, run.extra_rollouts
    clock, problems_P = Clock(run.policy.device), batch.problems_P
    with clock.phase("rollout"):
        responses = run.votes.sample(problems_P, batch.step)
        if following is not None:
            run.votes.begin(following.problems_P, following.step)
    with clock.phase("further"):
        fields = extra.before(problems_P, batch.step)
    with clock.phase("grade"):
        answers_PV = run.supervisor.read(responses)
        observed = {**fields, **run.observer.observe(responses)}
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
        parts = run.dynamic_sampler.mini_batches(
            groups, extra.groups(decided, streams), batch.ends_run
        )
        batch_groups = list(chain(*parts))
        trained, matched = rescore(
            run.optimizer.scorer, batch_groups, config, config.tis_cap or 0.0, run.ranks.share
        )
        left = iter(trained)
        steps = [run.optimizer.step(list(islice(left, len(part)))) for part in parts]
    with clock.phase("rollout"):
        run.votes.finish()
    with clock.phase("sync"):
        extra.after_step(batch.step)
        stages = run.engine.update_weights(run.policy.model, version=batch.step)
    means = step_row(steps)
    unread_P = run.supervisor.reads & (answers_PV == UNPARSEABLE).all(axis=1)
    n_sampled = responses.n_tokens + extra.n_sampled
    flops = run.token_flops * sum(step.n_inputs for step in steps)
    row = {
        **means,
        "replicate": 0,
        "n_uniform": sum(
            group.silent and not group.dropped and not unread
            for group, unread in zip(groups, unread_P, strict=True)
        ),
        "n_unread": int(unread_P.sum()),
        **({"kl": mean_kl(steps)} if config.kl_coef > 0 else {}),
        **matched,
        "tokens_sampled": n_sampled,
        **sampled_row(responses.rollouts, config.top_p),
        **(decided.step_columns if decided else {}),
        **clock.columns(n_sampled, means["tokens"], flops, run.ranks.world),
        **stages,
        **run.dynamic_sampler.columns,
        **run.votes.columns(responses.n_tokens),
    }
    return Visited(problems_P, answers_PV, decided.rows if decided else {}), row
