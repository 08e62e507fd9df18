"""The pilot: a few responses before training, of which enough must hold a readable answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from lab.base.errors import Unfit
from real.answers import UNPARSEABLE, AnswerIds
from real.model.machine import in_phase
from real.vote.sample import Parts

_PROBLEMS, _EACH = 16, 4
"""Problems of the pilot, spread over the set, and responses to each."""
_SHOWN, _CHARACTERS = 3, 60
"""Responses in the message, and characters of the end of each, where an answer would stand."""


def check_readable(parts: Parts) -> None:
    """Refuse a model of which few responses hold an answer: its votes would be empty.

    The pilot's random numbers are the same for all seeds and arms. There is none for an embedded
    task and model or where `max_unread` is 1.
    """
    config, prompts, sampler = parts.config, parts.prompts, parts.sampler
    if (config.is_tiny and config.own_model is None) or config.max_unread == 1:
        return
    chosen = sorted({int(i) for i in np.linspace(0, len(prompts) - 1, _PROBLEMS).round()})
    generator = torch.Generator(sampler.policy.device).manual_seed(0)
    sampling = replace(parts.sampling, stats=False, logprobs=False)
    tokens = [prompts.tokens[i] for i in chosen]
    sampler.hand_over(0)
    with in_phase("rollout"):
        drawn = sampler.sample(chosen, tokens, _EACH, sampling, 0, generator)
    answer_ids = AnswerIds(prompts.truths)
    pairs = zip(chosen, drawn.texts, strict=True)
    read = [answer_ids.ids(i, texts, config.extract) for i, texts in pairs]
    unread_PN = np.stack(read) == UNPARSEABLE
    if unread_PN.mean() <= config.max_unread:
        return
    places = np.argwhere(unread_PN)
    shown = places[np.linspace(0, len(places) - 1, _SHOWN).astype(int)]
    ends = ", ".join(repr(drawn.texts[p][n][-_CHARACTERS:]) for p, n in shown)
    cut = int((~drawn.rollouts.finished_PN).sum())
    raise Unfit(
        f"{unread_PN.mean():.0%} of {unread_PN.size} responses of a pilot have no answer in a "
        f"\\boxed{{}}, such as those that end in {ends}; try --extract flexible, which reads the "
        "last number where there is no box, another --prompt-suffix (it is "
        f"{config.prompt_suffix!r}), a longer --max-response-tokens ({cut} were cut at "
        f"{config.max_response_tokens}), a --stop text or a --chat-template, or train all the "
        "same with --max-unread 1"
    )
