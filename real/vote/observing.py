"""What a rule asks to be told of responses, gathered for one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core.rules import Need, Rule
from real.engines.rollouts import Prompts, Rollouts
from real.model.policy import Policy
from real.record.batches import Batch
from real.settings.config import TrainConfig, rule_of
from real.settings.seeds import Stream, torch_generator
from real.vote.between_ranks import asked_by_all
from real.vote.observations.embedding import load_embedder
from real.vote.observations.similarity import similarities
from real.vote.observations.steps import step_logprobs
from real.vote.observations.token_stats import token_stats
from real.vote.observations.tool import tool_verdicts
from real.vote.paying import Observed
from real.vote.second_votes import (
    Drawn,
    SecondVotes,
    draw_second,
    make_second,
    second_of,
)
from real.vote.verifying import Verification

if TYPE_CHECKING:
    from real.engines.rollouts import Engine
    from real.run import Run

Ints = NDArray[np.int64]
Fields = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Observer:
    """The parts of a run that its rule alone needs."""

    rule: Rule
    second: SecondVotes | None
    """Draws a second vote set."""
    embedder: Any
    """Embeds texts; None where texts are compared by their letters."""


@dataclass(frozen=True, slots=True)
class Look:
    """A batch's observations, and the responses that were drawn to make them."""

    observed: Observed
    second: Drawn | None = None
    verification: Verification | None = None

    @property
    def n_sampled(self) -> int:
        """Tokens of the second votes, of verifications and of what was solved anew."""
        second = 0 if self.second is None else int(self.second.rollouts.lengths_PN.sum())
        return second + (0 if self.verification is None else self.verification.n_sampled)


def make_observer(
    config: TrainConfig, policy: Policy, engine: Engine, n_steps: int
) -> Observer | None:
    """The observer of a run's rule; None for plain TTRL.

    Raises:
        UserError: the folder of `similarity_model` holds no model.
    """
    rule = rule_of(config)
    if rule is None:
        return None
    embedder = None
    if Need.SIMILARITY in rule.needs and config.similarity_model is not None:
        embedder = load_embedder(config.similarity_model, config.device)
    return Observer(rule, make_second(rule, policy, engine, n_steps), embedder)


def observe(run: Run, batch: Batch, rollouts: Rollouts) -> Look | None:
    """What the run's rule wants to know of a batch; None under plain TTRL."""
    observer, version = run.observer, batch.step - 1
    if observer is None:
        return None
    second = None
    if observer.second is not None:
        place = torch_generator(
            run.config.seed, Stream.SECOND, batch.step, device=run.policy.device
        )
        problems = batch.problems_P.tolist()
        second = draw_second(run, observer.second, problems, version, place)
    verification = None
    if Need.VERDICTS in observer.rule.needs:
        verification = Verification(run, batch, rollouts)
    observed = _observed(run, observer, batch.problems_P.tolist(), rollouts, second, verification)
    return Look(observed, second, verification)


def after_step(run: Run, batch: Batch) -> None:
    """What a rule does once a batch was trained on."""
    if (second := second_of(run)) is not None:
        second.after_step(batch.step)


def _observed(
    run: Run,
    observer: Observer,
    problems: list[int],
    rollouts: Rollouts,
    second: Drawn | None,
    verification: Verification | None,
) -> Observed:
    fields = fields_of(run, observer, observer.rule.needs, problems, rollouts)
    if second is not None:
        fields["second"] = np.stack(
            [_read(run, problem, second.rollouts, place) for place, problem in enumerate(problems)]
        )
    # The verifier is asked once the label is known, if at all.
    asks = None if verification is None else asked_by_all(run.ranks, verification.ask)
    return Observed(fields, asks)


def fields_of(
    run: Run,
    observer: Observer,
    needs: frozenset[Need],
    problems: Sequence[int],
    rollouts: Rollouts,
) -> Fields:
    """The observations of the responses themselves, by their names in `Observations`.

    Args:
        run: whose policy drew them.
        observer: of the run.
        needs: what is wanted; others are left out.
        problems: (P,) places of the problems.
        rollouts: their responses.
    """
    n_samples = run.config.n_samples
    makers: dict[Need, Callable[[], Any]] = {
        Need.STEP_LOGPROB: lambda: step_logprobs(rollouts, run.policy.tokenizer),
        Need.TOOL: lambda: np.array(
            [
                tool_verdicts(texts, run.prompts.problems[problem].prompt)
                for texts, problem in zip(_texts(run, rollouts), problems, strict=True)
            ]
        ),
        Need.SIMILARITY: lambda: similarities(_texts(run, rollouts, n_samples), observer.embedder),
    }
    found = {str(need): _array(make()) for need, make in makers.items() if need in needs}
    if needs & {Need.ENTROPY, Need.CERTAINTY}:
        prompts = [run.prompts.tokens[problem] for problem in problems]
        stats = _token_stats(run, prompts, rollouts)
        found |= {str(need): _array(stats[need]) for need in stats if need in needs}
    return found


def _token_stats(run: Run, prompts: Prompts, rollouts: Rollouts) -> dict[Need, torch.Tensor]:
    """The engine's own, or those of a pass of the trainer."""
    entropy_PV, certainty_PV = rollouts.entropy_PV, rollouts.certainty_PV
    if entropy_PV is None or certainty_PV is None:
        config = run.config
        entropy_PV, certainty_PV = token_stats(
            run.optimizer.scorer,
            prompts,
            rollouts,
            config.temperature,
            config.micro_tokens,
            run.ranks.share,
        )
    return {Need.ENTROPY: entropy_PV, Need.CERTAINTY: certainty_PV}


def _texts(run: Run, rollouts: Rollouts, n: int | None = None) -> list[list[str]]:
    """(P,) texts of the first n responses, or of all."""
    pairs = zip(rollouts.tokens_PNT[:, :n], rollouts.lengths_PN[:, :n], strict=True)
    return [run.policy.texts(tokens_NT, lengths_N) for tokens_NT, lengths_N in pairs]


def _read(run: Run, problem: int, rollouts: Rollouts, place: int) -> Ints:
    """(V,) answer ids of one problem's responses."""
    texts = run.policy.texts(rollouts.tokens_PNT[place], rollouts.lengths_PN[place])
    return run.supervisor.answer_ids.ids(problem, texts)


def _array(values: Any) -> NDArray[Any]:
    """As NumPy; numbers in double precision."""
    array = values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return array if array.dtype == bool else array.astype(np.float64)
