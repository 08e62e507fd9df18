"""CoVerRL's verifier pass: the trained model judges responses, and solves anew what it rejects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from guard_core.rules.coverrl import CoVerRL
from real.engines.rollouts import Rollouts
from real.problems import Problem
from real.problems.prompts import longest_prompt, prompt_tokens
from real.record.batches import Batch
from real.settings.seeds import Stream, torch_generator
from real.update.group import Group
from real.vote.observations.regeneration import Regenerated, regenerate
from real.vote.observations.verifier import Asked, Wording, ask
from real.vote.paying import standardised
from real.vote.tiny_wording import TinyWording

if TYPE_CHECKING:
    from real.run import Run

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_AGAIN = 1
"""Last place of the random numbers of regenerations, in the verifier's stream."""


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
        self._problems_P = [run.prompts.problems[problem] for problem in batch.problems_P]
        self._wording = TinyWording() if run.config.tiny_verifies else Wording()
        self.asked: Asked | None = None
        """None before `ask`."""
        self.n_sampled = 0
        """Tokens of verifications and of what was solved anew."""

    def ask(self, questions_PQ: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Let the model judge, and solve anew what it finds wrong; all ranks must call this.

        Args:
            questions_PQ: responses as places among the V; -1 asks nothing. The first question
                about a problem is about a response that gives the label.

        Returns:
            (P, Q) verdicts, 1 right, 0 wrong, -1 not asked or not readable; and what was asked.
        """
        run = self._run
        rows = zip(self._rollouts.tokens_PNT, self._rollouts.lengths_PN, strict=True)
        texts_PV = [run.policy.texts(tokens_VT, lengths_V) for tokens_VT, lengths_V in rows]
        max_tokens = self._wording.max_tokens or run.sampling.max_tokens
        self.asked = ask(
            run.engine,
            run.policy,
            self._problems_P,
            texts_PV,
            questions_PQ,
            self._encode,
            longest_prompt(run.config, run.policy),
            replace(run.sampling, max_tokens=max_tokens),
            self._generator(),
            self._batch.step - 1,
            self._wording,
        )
        self._count(self.asked.rollouts)
        rule = run.observer.rule if run.observer else None
        if isinstance(rule, CoVerRL) and rule.regenerations:
            again_P = self._again(rule, self.asked, texts_PV, questions_PQ)
            self.asked = replace(self.asked, again_P=again_P)
        return self.asked.verdicts_PQ, self.asked.places_PQ >= 0

    def _again(
        self, rule: CoVerRL, asked: Asked, texts_PV: Sequence[Sequence[str]], questions_PQ: Ints
    ) -> list[list[Group]] | None:
        """What is solved anew behind verdicts, with its advantages; None where nothing is."""
        run = self._run
        found = regenerate(
            run.engine,
            run.policy,
            self._problems_P,
            texts_PV,
            questions_PQ,
            asked,
            rule.trusts(asked.verdicts_PQ),
            rule.regenerations,
            self._encode,
            longest_prompt(run.config, run.policy),
            run.sampling,
            self._generator(_AGAIN),
            self._batch.step - 1,
            self._wording,
        )
        if found is None:
            return None
        self._count(found.rollouts)
        advantages_MN = np.zeros(found.rollouts.lengths_PN.shape)
        if run.ranks.first:
            labels_M = [texts_PV[row][int(questions_PQ[row, 0])] for row in found.rows_M]
            advantages_MN = standardised(self._rewards(rule, found, labels_M))
        told_MN = run.ranks.broadcast(torch.from_numpy(advantages_MN)).numpy()
        return found.groups(told_MN, len(self._problems_P))

    def _rewards(self, rule: CoVerRL, found: Regenerated, labels_M: list[str]) -> Floats:
        """(M, N) rewards of what was solved anew; `labels_M` are responses that give the label."""
        problems_M = self._batch.problems_P[found.rows_M].tolist()
        rows = zip(problems_M, labels_M, found.texts_MN, strict=True)
        ids = [self._run.supervisor.answer_ids.ids(n, [label, *texts]) for n, label, texts in rows]
        return rule.regeneration_rewards(np.stack(ids)[:, 1:], np.stack(ids)[:, 0])

    def _encode(self, question: Problem) -> list[int]:
        return prompt_tokens(question, self._run.config, self._run.policy, suffix="")

    def _generator(self, *place: int) -> torch.Generator:
        config, device = self._run.config, self._run.policy.device
        return torch_generator(
            config.seed, Stream.VERIFIER, self._batch.step, *place, device=device
        )

    def _count(self, rollouts: Rollouts | None) -> None:
        self.n_sampled += 0 if rollouts is None else int(rollouts.lengths_PN.sum())
