import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_groups import CONFIG, gradient, logprobs_of, make_group, random_model

import guard_core
from guard_core import Draws, Guard, GuardConfig, Votes, policy_streams
from guard_core.rules import Observations, make_rule, response_streams
from real.update.logprobs import Scorer

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def visits(names):
    """Repeat the README's example on answers that flip, then agree, until all parts act."""
    (block,) = (text for text in PYTHON.findall((ROOT / "README.md").read_text()) if "loss" in text)
    once, again = block.partition("state = guard.init(100)")[::2]
    exec(once + "state = guard.init(100)", names)
    again = "".join(line for line in again.splitlines(True) if not line.startswith("answers ="))
    rng = np.random.default_rng(2)
    for visit in range(9):
        leader = visit % 2 if visit < 5 else 0
        others = rng.integers(-1, 3, (8, 64))
        names["answers"] = np.where(rng.random((8, 64)) < 0.45, leader, others)
        exec(again.replace("default_rng(1)", f"default_rng({visit})"), names)


def test_the_example_of_readme_trains_what_the_trainer_trains(monkeypatch):
    names = {}
    visits(names)
    decision, guard = names["decision"], names["guard"]
    assert decision.skip.any() and not decision.skip.all()
    assert ((decision.beta > 0) & ~decision.skip).any() and (decision.weight < 1).any()
    scorer = Scorer(random_model(1))
    groups = [make_group(scorer, seed, rows=32) for seed in range(8)]
    obs = Observations(votes=names["votes"], draws=np.zeros((8, 0)), answers=names["answers"])
    pair = response_streams(make_rule("ttrl"), obs, decision, guard.config)
    streams = policy_streams(*pair, decision, guard.config)
    trained = [
        replace(
            group,
            majority_K=torch.tensor(streams.majority[p]),
            minority_K=torch.tensor(streams.minority[p]),
            weight=float(streams.weight[p]),
            dropped=bool(streams.drop[p]),
        )
        for p, group in enumerate(groups)
    ]
    loss, expected = gradient(scorer, [g for g in trained if not g.dropped], CONFIG)

    scorer.zero_grad()
    logp = [logprobs_of(scorer, g.prompt_L, g.tokens_KT, CONFIG.temperature) for g in groups]
    old, mask = (torch.stack([getattr(g, name) for g in groups]) for name in ("old_KT", "real_KT"))
    own = names["loss"](torch.stack(logp), old, mask)
    own.backward()
    found = torch.cat([p.grad.flatten() for p in scorer.parameters() if p.grad is not None])
    assert own.item() == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for part in ("minority", "weight", "drop"):  # each is needed for that
        monkeypatch.setitem(names, part, torch.zeros_like(names[part]))
        assert names["loss"](torch.stack(logp), old, mask).item() != pytest.approx(loss, rel=1e-3)


def test_the_example_of_guard_core_ends_in_what_is_trained():
    (_, example, _) = str(guard_core.__doc__).split("\n\n")
    answers = np.random.default_rng(0).integers(-1, 3, (4, 8))
    names = {
        **{name: getattr(guard_core, name) for name in guard_core.__all__},
        **{"n_problems": 4, "problems": np.arange(4), "answers": answers},
        "votes": Votes.from_answers(answers, n_samples=8, n_answers=3),
        "draws": Draws(*np.full((3, 4), 0.5)),
    }
    exec(textwrap.dedent(example), names)
    guard = Guard(GuardConfig.paper())
    state = guard.prime(guard.init(4), names["votes"], names["draws"])
    _, decision = guard.step(state, names["votes"], names["draws"])
    pair = guard_core.group_advantages(answers, decision, guard.config)
    for name, own in policy_streams(*pair, decision, guard.config)._asdict().items():
        assert np.array_equal(names[name], own)
