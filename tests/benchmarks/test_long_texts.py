"""The made-up working is what the observations are made for."""

from __future__ import annotations

import random

import numpy as np
from long_texts import Words, cut, seconds_a_token, working

from real.vote.observe import steps_of
from real.vote.tool import tool_verdicts


def test_the_texts_have_claims_and_steps():
    rng = random.Random(0)
    texts = [working(rng, 300) for _ in range(5)]
    assert len(set(texts)) == 5 and all(300 <= len(cut(text)) < 380 for text in texts)
    assert tool_verdicts(texts).all()  # there is something to check in all of them
    assert min(steps_of(cut(text)).max() for text in texts) > 0
    words = Words(texts)
    assert words.decode([words.ids[piece] for piece in cut(texts[0])], True) == texts[0]
    assert len(words) == len(words.ids)


def test_every_observation_is_timed():
    found = seconds_a_token(n_votes=4, n_samples=2, tokens=100, rounds=1)
    assert set(found) == {"tool", "similarity", "step_logprob"}
    assert np.all(np.array(list(found.values())) > 0)
