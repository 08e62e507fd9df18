from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_runs import timeless

import real.run
from guard_core.rules import RULES, Need, Rule
from guard_core.rules.confidence import Scope
from guard_core.votes import sum_by_id
from lab.base.arms import arm
from lab.base.errors import UserError
from real import TrainConfig, train
from real.answers import AnswerIds
from real.engines.transformers_engine import TransformersEngine

TINY = TrainConfig(
    n_problems=4, batch_size=4, n_votes=8, n_samples=4, epochs=2, eval_samples=1, eval_every=0
)
TRUTH = ["label_accuracy", "label_correct", "correct_competitive"]


def of_arm(name, **changes):
    chosen = arm(name)
    changes |= {"labels": chosen.labels, "rule": chosen.rule, "tiny_verifies": name == "coverrl"}
    return replace(TINY, guard=chosen.guard, **changes)


@cache
def trained(name):
    return train(of_arm(name), progress=False)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_trains(name):
    trace = trained(name)
    steps = trace.steps
    assert trace.run.arm == name and trace.run.title == RULES[name].title
    assert trace.run.config["rule"] == name and len(steps) == 2
    assert np.isfinite(trace.visits["match_rate"]).all()
    if name == "maj_at_n":
        assert (steps["update_norm"] == 0).all() and (steps["n_updates"] == 0).all()
    elif name == "format":
        same = trace.visits.loc[trace.visits["visit"] > 0, "n_unparseable"] == 0
        assert same.all() and (steps["grad_norm"] == 0).all() and (steps["n_uniform"] == 4).all()
    else:
        assert (steps["grad_norm"] > 0).any() and (steps["update_norm"] > 1e-3).any()


FAMILIES = "ttrl t3rl self_harmony co_rewarding_2 coverrl"


@pytest.mark.parametrize("name", FAMILIES.split())
def test_the_truth_says_nothing(name, monkeypatch):
    """Rules that observe in other ways; first labels decide on the rewards of the second visit."""
    trace = trained(name)
    read = real.run.problems_of

    def shifted(config, with_answers):
        found = read(config, with_answers=with_answers)
        truths = [str((int(p.answer or 0) + 1) % 10) for p in found.problems]
        pairs = zip(found.problems, truths, strict=True)
        return replace(found, problems=[replace(p, answer=t) for p, t in pairs])

    monkeypatch.setattr(real.run, "problems_of", shifted)
    other = train(of_arm(name), progress=False)
    quality = ("label_correct", "reward_correct")
    known = ([timeless(t, quality), t.visits.drop(columns=TRUTH)] for t in (trace, other))
    for found, expected in zip(*known, strict=True):
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
    assert not trace.visits[TRUTH].equals(other.visits[TRUTH])


@dataclass(frozen=True, slots=True, kw_only=True)
class Surest(Rule):
    """A rule of a user's own, whose labels follow from certainties."""

    name: ClassVar[str] = "surest"
    title: ClassVar[str] = "Surest"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CERTAINTY})

    def scores(self, obs):
        return sum_by_id(obs.of("answers"), obs.votes.counts.shape[-1], obs.of("certainty"))


def test_labels_before_training_follow_from_all_that_a_rule_observes(monkeypatch):
    monkeypatch.setitem(RULES, "surest", Surest)
    visits = train(of_arm("surest", epochs=1), progress=False).visits
    assert (visits.loc[visits["visit"] == 0, "label"] >= 0).all()


def test_a_rule_that_asks_without_training_the_verifier_is_refused_before_it_samples(monkeypatch):
    monkeypatch.setitem(RULES, "surest", Surest)
    config = replace(of_arm("surest"), tiny_verifies=True)
    monkeypatch.setattr(Surest, "needs", frozenset({Need.VERDICTS}))
    with pytest.raises(UserError, match=r"surest: asks a verifier, .* derive the rule from"):
        real.run.prepare(config.settled())


def test_settings_of_a_rule_reach_it():
    kept = train(of_arm("srt", rule_options={"keep": 0.5}), progress=False)
    assert (kept.steps["n_updates"] == 2).all() and kept.run.arm == "srt"


def test_a_discounted_memory_weighs_the_same_in_a_rules_own_labels(monkeypatch):
    # With subsets of all responses every subgroup's label is the guard's own.
    matched = []
    pay = Scope.pay

    def watched(rule, seen, label):
        paid = pay(rule, seen, label)
        matched.append((paid == (seen.answers == label[:, None])[:, : paid.shape[-1]]).all())
        return paid

    monkeypatch.setattr(Scope, "pay", watched)
    config = of_arm("scope", rule_options={"subset": 1.0}, epochs=4)
    guard = config.guard.set(label_from="memory", discount=0.2)
    train(replace(config, guard=guard), progress=False)
    assert matched and all(matched)


def test_a_rule_under_true_labels():
    by_truth = train(replace(of_arm("srt"), labels="truth"), progress=False)
    assert (by_truth.steps["reward_correct"] == 1).all()


def test_nobody_gives_an_answer(monkeypatch):
    none = Mock(side_effect=lambda problem, responses, *_: np.full(len(responses), -1))
    monkeypatch.setattr(AnswerIds, "ids", none)
    with pytest.raises(UserError, match="no vote holds an answer in 100% of a batch's problems"):
        train(of_arm("self_harmony"), progress=False)
    trace = train(replace(of_arm("self_harmony"), max_unread=1.0), progress=False)
    assert (trace.visits["label"] == -1).all()
    assert (trace.steps["n_unread"] == trace.steps["n_problems"]).all()
    assert (trace.steps[["n_uniform", "repeated"]] == 0).all(axis=None)
    assert np.isfinite(trace.steps["update_norm"]).all() and (trace.steps["n_refused"] == 0).all()


@pytest.mark.parametrize("name", ["scope", "one_shot_em"])
def test_numbers_that_are_not_finite_spoil_nothing(name, monkeypatch):
    sample = TransformersEngine.sample

    def spoilt(self, *arguments, **options):
        found = sample(self, *arguments, **options)
        for values in (found.logprobs_PNT, found.entropy_PV, found.certainty_PV):
            if values is not None:
                values[:, 0] = torch.nan
        return found

    monkeypatch.setattr(TransformersEngine, "sample", spoilt)
    trace = train(of_arm(name), progress=False)
    assert (trace.steps["n_left_out"] > 0).all() and (trace.steps["n_refused"] == 0).all()
    assert (trace.steps["update_norm"] > 0).all()
