"""From responses to what the loss wants: answer ids for the vote, groups with their advantages."""

from __future__ import annotations

import numpy as np
import torch

from guard_core import PolicyStreams
from real.engines.rollouts import Rollouts
from real.problems.prompts import as_tensor
from real.run import Run
from real.update.group import Group
from real.vote.supervision import Supervision


def read_answers(run: Run, problems_P: np.ndarray, rollouts: Rollouts) -> np.ndarray:
    """(P, V) answer ids of the responses, -1 unparseable."""
    return np.stack(
        [
            run.supervisor.answer_ids.ids(int(problem), run.policy.texts(tokens_VT, lengths_V))
            for problem, tokens_VT, lengths_V in zip(
                problems_P, rollouts.tokens_PNT, rollouts.lengths_PN, strict=True
            )
        ]
    )


def trained_groups(
    run: Run, problems_P: np.ndarray, rollouts: Rollouts, supervision: Supervision
) -> list[Group]:
    """The first K responses of every problem with their advantages."""
    prompts = [run.prompts.tokens[problem] for problem in problems_P]
    return groups_of(prompts, rollouts, supervision.streams, run)


def groups_of(
    prompts: list[list[int]], rollouts: Rollouts, streams: PolicyStreams, run: Run
) -> list[Group]:
    """The first K responses to every prompt with the advantages of (P, K) streams."""
    n_samples, device = run.config.n_samples, run.policy.device
    return [
        Group(
            prompt_L=as_tensor(prompt, device),
            tokens_KT=rollouts.tokens_PNT[place, :n_samples],
            old_KT=rollouts.logprobs_PNT[place, :n_samples],
            lengths_K=rollouts.lengths_PN[place, :n_samples],
            majority_K=torch.as_tensor(streams.majority[place], device=device).float(),
            minority_K=torch.as_tensor(streams.minority[place], device=device).float(),
            weight=float(streams.weight[place]),
            dropped=bool(streams.drop[place]),
        )
        for place, prompt in enumerate(prompts)
    ]
