"""The training loop: sample, vote, ask the guard, update; once per batch of problems.

Shapes end in their axes: N problems, P problems of the batch, V votes, K trained samples, T tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.store import MemoryRun, Recorder, RunFolder
from lab.trace import Trace, load
from real.answers import AnswerBook
from real.config import TrainConfig
from real.evaluation import evaluate, sample_answers
from real.grpo import Group
from real.meter import Clock, Progress, reporter, torch_threads
from real.optimizer import Step
from real.prompts import as_tensor
from real.rollouts import Rollouts
from real.run import Run, new_manifest, prepare
from real.seeds import Stream, generator, torch_generator
from real.supervision import Supervision


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
    with torch_threads(config.threads):
        run = prepare(config)
        manifest = new_manifest(run, arm)
        if folder is None:
            memory = MemoryRun(manifest)
            run_loop(run, memory, progress)
            return Trace.of(memory)
        with RunFolder.create(folder, manifest) as written:
            run_loop(run, written, progress)
    return load(folder)


def run_loop(run: Run, log: Recorder, progress: Progress = False) -> None:
    """The whole run: votes before training, then epochs over the shuffled problems."""
    config, n_problems = run.config, len(run.prompts)
    step, n_refused = 0, 0
    with reporter(progress, run.n_steps, log) as report:
        log.write_visits({**first_votes(run), "step": 0, "epoch": 0})
        log.write_evals(evaluation(run, 0, 0, full=True))
        for epoch in range(1, config.epochs + 1):
            order_N = generator(config.seed, Stream.ORDER, epoch).permutation(n_problems)
            for start in range(0, n_problems, config.batch_size):
                step += 1
                problems_P = order_N[start : start + config.batch_size]
                visits, row, refused = train_batch(run, problems_P, step, epoch)
                log.write_visits({**visits, "step": step, "epoch": epoch})
                log.write_steps({**row, "step": step, "epoch": epoch})
                n_refused += refused
                log.note(refused_steps=n_refused)
                report(step)
            last = epoch == config.epochs
            if last or (config.eval_every and epoch % config.eval_every == 0):
                log.write_evals(evaluation(run, step, epoch, full=last))


def first_votes(run: Run) -> dict[str, Any]:
    """Visit 0: the votes of all problems before training."""
    answers_NV = sample_answers(
        run.engine,
        run.policy,
        run.prompts,
        run.supervisor.book,
        run.config.n_votes,
        run.config.max_rows,
        _generator(run, Stream.VOTES, 0),
    )
    return run.supervisor.prime(answers_NV)


def train_batch(
    run: Run, problems_P: np.ndarray, step: int, epoch: int
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Sample, vote, decide and update for one batch of problems.

    Returns:
        Rows of the trace's visits and steps, and how many optimizer steps were refused.
    """
    clock = Clock(run.policy.device)
    with clock.phase("rollout"):
        prompts = [run.prompts.tokens[i] for i in problems_P]
        votes = _generator(run, Stream.VOTES, step)
        rollouts = run.engine.sample(prompts, run.config.n_votes, votes)
    with clock.phase("grade"):
        answers_PV = read_answers(run, problems_P, rollouts)
    with clock.phase("guard"):
        supervision = run.supervisor.visit(problems_P, answers_PV, visit=epoch)
    with clock.phase("update"):
        groups = trained_groups(run, problems_P, rollouts, supervision)
        size = run.config.mini_batch
        done = [run.optimizer.step(groups[i : i + size]) for i in range(0, len(groups), size)]
    row = {
        **_step_row(done),
        "replicate": 0,
        "n_problems": len(groups),
        "n_skipped": supervision.n_skipped,
        "n_uniform": sum(group.silent and not group.dropped for group in groups),
        "tokens_sampled": int(rollouts.lengths_PN.sum()),
        "mean_length": float(rollouts.lengths_PN.float().mean()),
        **clock.seconds,
    }
    return supervision.rows, row, sum(s.refused for s in done)


def read_answers(run: Run, problems_P: np.ndarray, rollouts: Rollouts) -> np.ndarray:
    """(P, V) answer ids of the responses, -1 unparseable."""
    return np.stack(
        [
            run.supervisor.book.ids(int(problem), run.policy.texts(tokens_VT, lengths_V))
            for problem, tokens_VT, lengths_V in zip(
                problems_P, rollouts.tokens_PNT, rollouts.lengths_PN, strict=True
            )
        ]
    )


def trained_groups(
    run: Run, problems_P: np.ndarray, rollouts: Rollouts, supervision: Supervision
) -> list[Group]:
    """The first K responses of every problem with their advantages."""
    n_samples, device = run.config.n_samples, run.policy.device
    streams = supervision.streams
    return [
        Group(
            prompt_L=as_tensor(run.prompts.tokens[problem], device),
            tokens_KT=rollouts.tokens_PNT[place, :n_samples],
            old_KT=rollouts.logprobs_PNT[place, :n_samples],
            lengths_K=rollouts.lengths_PN[place, :n_samples],
            majority_K=torch.as_tensor(streams.majority[place], device=device).float(),
            minority_K=torch.as_tensor(streams.minority[place], device=device).float(),
            weight=float(streams.weight[place]),
            dropped=bool(streams.drop[place]),
        )
        for place, problem in enumerate(problems_P)
    ]


def evaluation(run: Run, step: int, epoch: int, full: bool) -> dict[str, Any]:
    """One row of the trace's evals.

    Before and after training (`full`) all V responses are drawn, for pass@1 and for the majority
    vote; in between `eval_samples`, for pass@1 alone.
    """
    book = AnswerBook(run.prompts.truths)
    answers_NV = sample_answers(
        run.eval_engine,
        run.policy,
        run.prompts,
        book,
        run.config.n_votes if full else run.config.eval_samples,
        run.config.max_rows,
        _generator(run, Stream.EVALUATION, step),
    )
    found = evaluate(answers_NV, book, with_majority=full)
    return {
        "replicate": 0,
        "step": step,
        "epoch": epoch,
        "pass_at_1": found.pass_at_1,
        "maj_accuracy": found.maj_accuracy,
    }


def _step_row(done: list[Step]) -> dict[str, float]:
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
    }


def _generator(run: Run, stream: Stream, *place: int) -> torch.Generator:
    return torch_generator(run.config.seed, stream, *place, device=run.policy.device)
