r"""Observations of single responses that a rule reads in addition to their answers.

Entropy and self-certainty are those of the transformers engine; vLLM gives the log-probs of sampled
tokens alone, and then a forward pass of the trainer computes them, over all V responses and without
gradient: about a third of an update on as many rows.

Steps are the parts between blank lines, as SCOPE cuts responses. One token may hold the end of a
step and the blank line (`.\n\n`), or a blank line may be spread over several. So the text is put
together token by token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from guard_core.rules import Need
from lab.base.columns import Floats, Ints, group_mean
from real.engines.rollouts import Prompts, Rollouts
from real.settings.groups import UpdateSettings
from real.update.logprobs import Scorer, group_scores
from real.update.packing import unpaid
from real.vote.decide import Fields
from real.vote.sample import Parts, Responses
from real.vote.similarity import similarities
from real.vote.tool import tool_verdicts

_BLANK_LINES = re.compile(r"\n\s*\n")
_PLAIN = re.compile("[!-~]([ -~]*[!-~])?")
_ANCHORS = 256
"""So many ids of a vocabulary are looked at for a token that is plain text."""


def step_logprobs(rollouts: Rollouts, tokenizer: Any) -> Floats:
    """(P, V) mean over a response's steps of the step's mean token log-prob, in nats.

    A token belongs to the step in which its text begins; blank lines to the step before them,
    those at the ends to the only step there is. Tokens whose log-prob is not finite are left out,
    and so are steps without any other; NaN without any.
    """
    shape, width = rollouts.lengths_PN.shape, rollouts.tokens_PNT.shape[-1]
    tokens_RT = rollouts.tokens_PNT.reshape(-1, width).cpu().numpy()
    logprobs_RT = rollouts.logprobs_PNT.reshape(-1, width).double().cpu().numpy()
    lengths_R = rollouts.lengths_PN.flatten().cpu().numpy()
    inside_RT = np.arange(width) < lengths_R[:, None]
    steps_RT = np.zeros(tokens_RT.shape, np.int64)
    text_of = token_texts(tokenizer, np.flatnonzero(np.bincount(tokens_RT[inside_RT])).tolist())
    lines = [token for token, text in text_of.items() if "\n" in text]
    broken_R = (np.isin(tokens_RT, lines) & inside_RT).any(axis=1) if lines else []
    for row in np.flatnonzero(broken_R):
        length = lengths_R[row]
        steps_RT[row, :length] = steps_of([text_of[i] for i in tokens_RT[row, :length].tolist()])
    n_steps = 1 + int(steps_RT.max(initial=0))
    steps_RT += np.arange(len(steps_RT))[:, None] * n_steps
    means = group_mean(logprobs_RT[inside_RT], steps_RT[inside_RT], len(steps_RT) * n_steps)
    means_RS = means.reshape(-1, n_steps)
    with np.errstate(invalid="ignore"):  # 0 / 0 without any
        means_R = np.nansum(means_RS, axis=1) / np.isfinite(means_RS).sum(axis=1)
    return means_R.reshape(shape)


_TEXTS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()
"""Properties of a tokenizer's tokens; they are few, and the same on every step."""


def token_texts(tokenizer: Any, ids: Collection[int]) -> dict[int, str]:
    """Text that each token adds to the one before; special tokens add nothing."""

    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True)

    known = _TEXTS.setdefault(tokenizer, {})
    if new := set(ids) - known.keys():
        # At the beginning of a text many tokenizers drop a space, so each follows another token.
        firsts = ([i] for i in range(min(len(tokenizer), _ANCHORS)))
        anchor = next((one for one in firsts if _PLAIN.fullmatch(decode(one))), [])
        before = decode(anchor)
        known |= {i: decode([*anchor, i]).removeprefix(before) for i in new}
    return {i: known[i] for i in ids}


def steps_of(texts: list[str]) -> Ints:
    """(T,) number of the step that each token belongs to, from the tokens' texts."""
    whole = "".join(texts)
    first, last = len(whole) - len(whole.lstrip()), len(whole.rstrip())
    ends = [blank.end() for blank in _BLANK_LINES.finditer(whole, first, last)]
    begins_T = np.cumsum([0, *map(len, texts[:-1])])
    return np.searchsorted(ends, begins_T, side="right").astype(np.int64)


def token_stats(
    scorer: Scorer, prompts: Prompts, rollouts: Rollouts, config: UpdateSettings
) -> tuple[Tensor, Tensor]:
    """(P, V) float64 mean entropies and means of KL(uniform || next-token distribution), in nats.

    Logits exist for a chunk of tokens at a time. The scorer has the weights that drew the rollouts.
    Ranks divide the passes and get all values.
    """
    # All tokens count, whatever log-prob the engine gave them.
    nothing_PNT = torch.zeros_like(rollouts.logprobs_PNT)
    groups = list(map(unpaid, prompts, rollouts.tokens_PNT, nothing_PNT, rollouts.lengths_PN))
    stats = group_scores(scorer, groups, config, stats=True)
    means = [
        torch.where(group.real_KT, values_CKT[1:].double(), 0.0).sum(2) / group.lengths_K
        for group, values_CKT in zip(groups, stats, strict=True)
    ]
    entropy_PV, certainty_PV = torch.stack(means, dim=1)
    linear = scorer.head.linear if scorer.head else scorer.model.get_output_embeddings()
    return entropy_PV, certainty_PV - math.log(linear.weight.shape[0])


def observe(parts: Parts, scorer: Scorer, responses: Responses, needs: frozenset[Need]) -> Fields:
    """Return observations by name, while the model is the one that sampled, on all ranks."""
    rollouts, config = responses.rollouts, parts.config
    observed: dict[Need, Any] = {}
    if Need.STEP_LOGPROB in needs:
        observed[Need.STEP_LOGPROB] = step_logprobs(rollouts, responses.policy.tokenizer)
    if Need.TOOL in needs:
        prompts = [parts.prompts.problems[problem].prompt for problem in responses.problems]
        observed[Need.TOOL] = np.array(list(map(tool_verdicts, responses.texts, prompts)))
    if Need.SIMILARITY in needs:
        trained = [texts[: config.n_samples] for texts in responses.texts]
        observed[Need.SIMILARITY] = similarities(trained)
    if needs & {Need.ENTROPY, Need.CERTAINTY}:
        entropy_PV, certainty_PV = rollouts.entropy_PV, rollouts.certainty_PV
        if entropy_PV is None or certainty_PV is None:  # the engine gives none
            entropy_PV, certainty_PV = token_stats(scorer, responses.prompts, rollouts, config)
        observed[Need.ENTROPY] = entropy_PV.cpu().numpy()
        observed[Need.CERTAINTY] = certainty_PV.cpu().numpy()
    return {str(need): values for need, values in observed.items() if need in needs}
