"""New responses behind verdicts that a response is wrong: the third turn of CoVerRL's conversation.

Problem and response, the verification, and a request to solve the problem again: what follows is
compared with the other responses behind the same verification and trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from real.engines.rollouts import Engine, Rollouts, Sampling
from real.model.policy import Policy
from real.problems import Problem
from real.problems.prompts import as_tensor
from real.update.group import Group
from real.vote.observations.verifier import Asked, Wording

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Regenerated:
    """N new responses behind each of M verdicts."""

    rows_M: list[int]
    """Which of the P problems it is."""
    prompts: list[list[int]]
    """(M,) conversations as token ids."""
    rollouts: Rollouts
    """(M, N) responses."""
    texts_MN: list[list[str]]

    def groups(self, advantages_MN: Floats, n_problems: int) -> list[list[Group]]:
        """(P,) groups of every problem, one of N responses a verdict."""
        found: list[list[Group]] = [[] for _ in range(n_problems)]
        rollouts, device = self.rollouts, self.rollouts.tokens_PNT.device
        for place, (row, prompt) in enumerate(zip(self.rows_M, self.prompts, strict=True)):
            advantages_N = torch.tensor(advantages_MN[place], device=device).float()
            group = Group(
                prompt_L=as_tensor(prompt, device),
                tokens_KT=rollouts.tokens_PNT[place],
                old_KT=rollouts.logprobs_PNT[place],
                lengths_K=rollouts.lengths_PN[place],
                majority_K=advantages_N,
                minority_K=torch.zeros_like(advantages_N),
            )
            found[row].append(group)
        return found


def regenerate(
    engine: Engine,
    policy: Policy,
    problems_P: Sequence[Problem],
    texts_PV: Sequence[Sequence[str]],
    questions_PQ: Ints,
    asked: Asked,
    stays_P: NDArray[np.bool_],
    n: int,
    encode: Callable[[Problem], list[int]],
    longest: int,
    sampling: Sampling,
    generator: torch.Generator,
    version: int,
    wording: Wording,
) -> Regenerated | None:
    """Let the model solve problems again whose responses it judged wrong.

    Args:
        engine: samples the responses.
        policy: whose tokenizer reads them.
        problems_P: the problems.
        texts_PV: texts of their first responses.
        questions_PQ: what was asked about them, as places among the V.
        asked: what was answered; unreadable verdicts are followed by nothing.
        stays_P: problems that are trained on; nothing is drawn for the others.
        n: N, responses behind each verdict.
        encode: token ids of a conversation.
        longest: conversations of more tokens are left out.
        sampling: of the responses.
        generator: decides all of them.
        version: of the weights; other ones are refused.
        wording: of the conversation.

    Returns:
        The responses; None where there are none to draw.
    """
    rows_M: list[int] = []
    prompts: list[list[int]] = []
    for row, column in np.argwhere((asked.verdicts_PQ == 0) & stays_P[:, None]).tolist():
        verification = asked.texts[asked.places_PQ[row, column]]
        response = texts_PV[row][int(questions_PQ[row, column])]
        prompt = encode(wording.request(problems_P[row], response, verification))
        if len(prompt) <= longest:
            rows_M.append(row)
            prompts.append(prompt)
    if not prompts or n == 0:
        return None
    drawn = engine.sample(prompts, n, sampling, generator).of_version(version)
    pairs = zip(drawn.tokens_PNT, drawn.lengths_PN, strict=True)
    return Regenerated(rows_M, prompts, drawn, [policy.texts(*pair) for pair in pairs])
