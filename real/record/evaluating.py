"""One evaluation of the policy in a run: draw, judge, write down."""

from __future__ import annotations

from typing import Any

from real.answers import AnswerBook
from real.record.completions import Completions
from real.record.curve import summary
from real.record.evaluation import evaluate, sample_answers
from real.record.journal import Journal
from real.run import Run
from real.settings.seeds import Stream, torch_generator


def log_evaluation(run: Run, log: Journal, step: int, epoch: int, full: bool) -> None:
    """Evaluate, write the row, and note what the curve of evaluations comes to so far.

    Args:
        run: whose policy is evaluated.
        log: gets a row of the trace's evals and a few responses to read.
        step: batches so far; the version of the weights.
        epoch: of the last batch.
        full: before and after training all V responses are drawn, for the majority vote besides
            pass@1; in between `eval_samples`, unless `eval_majority` is "always".
    """
    seen = Completions(run.prompts, run.config.eval_completions)
    row = evaluation(run, step, epoch, full or run.config.eval_majority == "always", seen)
    log.write_evals(row)
    log.write_completions(step, seen.rows)
    log.note(evaluation=summary(log.manifest.extra.get("evaluation"), row))


def evaluation(run: Run, step: int, epoch: int, full: bool, seen: Completions) -> dict[str, Any]:
    """One row of the trace's evals, see `log_evaluation`."""
    config, book = run.config, AnswerBook(run.prompts.truths, run.supervisor.equality)
    generator = torch_generator(config.seed, Stream.EVALUATION, step, device=run.policy.device)
    answers_NV = sample_answers(
        run.engine,
        run.policy,
        run.prompts,
        book,
        config.n_votes if full else config.eval_samples,
        run.eval_sampling,
        config.max_rows * run.ranks.world,
        generator,
        version=step,
        seen=seen,
    )
    found = evaluate(answers_NV, book, with_majority=full, ks=config.eval_pass_at or ())
    return {"replicate": 0, "step": step, "epoch": epoch, **found.columns()}
