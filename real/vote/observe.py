"""Observations of single responses that a rule reads in addition to their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core.rules import Need, Rule
from real.problems.problem import PromptSet
from real.settings.config import TrainConfig
from real.update.logprobs import Scorer
from real.vote.decide import Fields
from real.vote.read import Responses
from real.vote.similarity import load_embedder, similarities
from real.vote.token_stats import step_logprobs, token_stats
from real.vote.tool import tool_verdicts

OF_LABELS = frozenset({Need.STEP_LOGPROB, Need.TOOL})
"""Observations that decide labels; the others matter to rewards alone."""


class Observer:
    """Makes the observations that a rule reads."""

    def __init__(
        self,
        rule: Rule,
        config: TrainConfig,
        prompts: PromptSet,
        scorer: Scorer,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Prepare a rule's observations.

        Args:
            rule: of the run.
            config: of the run.
            prompts: its problems.
            scorer: of the trained model.
            share: rank and number of ranks.

        Raises:
            UserError: the folder of `similarity_model` holds no model.
        """
        self.needs = rule.needs
        self._config, self._prompts, self._scorer, self._share = config, prompts, scorer, share
        self._embedder = None
        if Need.SIMILARITY in rule.needs and config.similarity_model is not None:
            self._embedder = load_embedder(config.similarity_model, config.device)

    def observe(self, responses: Responses, needs: frozenset[Need] | None = None) -> Fields:
        """Return observations by their names in `Observations`; all ranks must call this.

        Args:
            responses: (P, V) votes; the trained model must still be the one that sampled them.
            needs: what to observe; the rule's needs if None. Needs that do not follow from the
                responses themselves are left out.
        """
        needs = self.needs if needs is None else needs
        makers: dict[Need, Callable[[], Any]] = {
            Need.STEP_LOGPROB: lambda: step_logprobs(
                responses.rollouts, responses.policy.tokenizer
            ),
            Need.TOOL: lambda: self._tool(responses),
            Need.SIMILARITY: lambda: similarities(
                [texts[: self._config.n_samples] for texts in responses.texts], self._embedder
            ),
        }
        observed = {str(need): _array(make()) for need, make in makers.items() if need in needs}
        if needs & {Need.ENTROPY, Need.CERTAINTY}:
            stats = self._token_stats(responses)
            observed |= {str(need): _array(stats[need]) for need in stats if need in needs}
        return observed

    def _tool(self, responses: Responses) -> NDArray[np.bool_]:
        problems = self._prompts.problems
        pairs = zip(responses.problems, responses.texts, strict=True)
        return np.array([tool_verdicts(texts, problems[p].prompt) for p, texts in pairs])

    def _token_stats(self, responses: Responses) -> dict[Need, torch.Tensor]:
        """Return the engine's statistics, or those of a forward pass of the trainer."""
        rollouts, config = responses.rollouts, self._config
        entropy_PV, certainty_PV = rollouts.entropy_PV, rollouts.certainty_PV
        if entropy_PV is None or certainty_PV is None:
            entropy_PV, certainty_PV = token_stats(
                self._scorer,
                responses.prompts,
                rollouts,
                config.temperature,
                config.micro_tokens,
                self._share,
            )
        return {Need.ENTROPY: entropy_PV, Need.CERTAINTY: certainty_PV}


def _array(values: Any) -> NDArray[Any]:
    """As NumPy; numbers in double precision."""
    array = values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return array if array.dtype == bool else array.astype(np.float64)
