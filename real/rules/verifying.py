"""CoVerRL's verifier pass: the trained model judges responses of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from real.batches import Batch
from real.engines.rollouts import Rollouts
from real.observations.verifier import Asked, ask
from real.problems import Problem
from real.problems.prompts import longest_prompt, prompt_tokens
from real.seeds import Stream, torch_generator

if TYPE_CHECKING:
    from real.run import Run

Ints = NDArray[np.int64]


class Verification:
    """Asks about responses of one batch, and keeps what was answered, to be trained on."""

    def __init__(self, run: Run, batch: Batch, rollouts: Rollouts) -> None:
        """Ask nothing yet.

        Args:
            run: whose engine still has the weights that drew the rollouts.
            batch: of problems.
            rollouts: the responses.
        """
        self._run, self._batch, self._rollouts = run, batch, rollouts
        self.asked: Asked | None = None
        """None before `ask`."""

    def ask(self, questions_PQ: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Let the model judge.

        Args:
            questions_PQ: responses as places among the V; -1 asks nothing.

        Returns:
            (P, Q) verdicts, 1 right, 0 wrong, -1 not asked or not readable; and what was asked.
        """
        run, batch = self._run, self._batch
        rows = zip(self._rollouts.tokens_PNT, self._rollouts.lengths_PN, strict=True)
        self.asked = ask(
            run.engine,
            run.policy,
            [run.prompts.problems[problem] for problem in batch.problems_P],
            [run.policy.texts(tokens_VT, lengths_V) for tokens_VT, lengths_V in rows],
            questions_PQ,
            self._encode,
            longest_prompt(run.config, run.policy),
            run.sampling,
            torch_generator(run.config.seed, Stream.VERIFIER, batch.step, device=run.policy.device),
            version=batch.step - 1,
        )
        return self.asked.verdicts_PQ, self.asked.places_PQ >= 0

    def _encode(self, question: Problem) -> list[int]:
        return prompt_tokens(question, self._run.config, self._run.policy, suffix="")
