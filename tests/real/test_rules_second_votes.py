import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_runs import SMALL, Stopped, check_same, of_file, stop_at

from guard_core import Draws, Guard, GuardConfig, Votes
from guard_core.rules import Observations, make_rule
from guard_core.rules.evidence import CoRewarding1
from guard_core.schedule import FIRST_RATE, LAST_RATE, teacher_rate
from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.trace.trace import load
from real import resume, train
from real.run import prepare
from real.tiny import ARITHMETIC
from real.tiny.arithmetic import evaluate, is_expression, reworded
from real.vote.decide import Decided, pay
from real.vote.second_votes import REQUEST, Paraphrases, SecondVotes


def of_rule(name, **changes):
    return replace(with_arm(SMALL, arm(name)), **changes)


def test_rewordings_keep_value_and_form():
    n_same = 0
    for problem in ARITHMETIC.problems(300):
        text = reworded(problem.prompt)
        if text is None:
            n_same += 1
            continue
        assert text != problem.prompt and sorted(text) == sorted(problem.prompt)
        assert is_expression(text) and text.endswith("=")
        assert evaluate(text[:-1]) == problem.answer
    assert 0 < n_same < 30


def test_a_run_with_paraphrases_goes_on_to_the_bit(tmp_path):
    config = of_rule("co_rewarding_1")
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", progress=stop_at(0.75))
    check_same(resume(tmp_path / "run", progress=False), whole)
    texts = json.loads((tmp_path / "run" / "paraphrases.json").read_text())["paraphrases"]
    assert texts == [reworded(p.prompt) for p in ARITHMETIC.problems(4)]
    assert load(tmp_path / "run").run.extra["paraphrases_missing"] == texts.count(None)


def test_truncated_second_votes_leave_the_loss():
    config = of_rule("co_rewarding_1", epochs=1, mask_truncated=True, max_response_tokens=21)
    steps = train(config, progress=False).steps
    assert not steps["tokens"].any() and not steps["update_norm"].any()


def weights(run):
    return {n: p.detach().clone() for n, p in run.policy.model.named_parameters()}


def has(run, expected):
    return all(torch.equal(value, expected[name]) for name, value in weights(run).items())


def test_the_teacher_votes_and_leaves_no_trace():
    run = prepare(of_rule("co_rewarding_2").settled())
    teacher, before = run.extra_rollouts, weights(run)
    with teacher.answering(0) as version:
        assert version == 0  # it is the model itself
    with torch.no_grad():
        for p in run.policy.model.parameters():
            p.add_(0.5)
    teacher.after_step(1)
    moved = weights(run)
    for name, value in teacher.state()[0].items():
        torch.testing.assert_close(value, before[name] + FIRST_RATE * 0.5, rtol=0, atol=1e-6)
    run.engine.update_weights(run.policy.model, version=1)
    with teacher.answering(1) as version:
        assert version == -2 and has(run, teacher.state()[0])
    assert has(run, moved)
    rollouts = run.engine.sample([[3, 4]], 2, run.sampling, torch.Generator())
    assert rollouts.version == 1
    sampled, engine = [], run.engine
    sample = engine.sample
    engine.sample = lambda *given: sampled.append(sample(*given)) or sampled[-1]
    second = teacher.before(np.array([0, 1]), 2)["second"]
    assert second.shape == (2, run.config.n_votes)
    assert [rollouts.version for rollouts in sampled] == [-2]
    assert teacher.n_sampled > 0
    with pytest.raises(Stopped), teacher.answering(2):
        raise Stopped
    assert has(run, moved)


def test_the_rate_follows_a_cosine():
    rates = [teacher_rate(done, 11) for done in range(11)]
    assert rates[0] == FIRST_RATE and rates[-1] == pytest.approx(LAST_RATE)
    assert rates[5] == pytest.approx((FIRST_RATE + LAST_RATE) / 2)
    assert rates == sorted(rates, reverse=True) and math.isfinite(teacher_rate(0, 1))


def twin_streams(guard, answers_PV, second_PV, tie, truth=None):
    """The decision on one problem, and what the second votes are paid."""
    config = of_rule("co_rewarding_1", labels="votes" if truth is None else "truth")
    rule, ties = make_rule("co_rewarding_1"), Draws(*np.full((3, 1), tie))
    votes = Votes.from_answers(answers_PV, n_samples=4, n_answers=3)
    obs = Observations(votes, np.zeros((1, 0)), answers_PV, second=second_PV)
    state = Guard(guard).init(1, n_answers=3)
    _, decision = Guard(guard).step(state, votes, ties, rule.scores(obs))
    decision = decision if truth is None else decision.trained_on(np.array([truth]))
    parts = SimpleNamespace(config=replace(config, guard=guard), rule=rule, prompts=None)
    decided = Decided(obs, decision, np.array([tie]), {}, {})
    return decided, SecondVotes(parts).pay(decided)


@pytest.mark.parametrize(
    ("tie_break", "tie", "truth", "label"),
    [
        ("random", 0.9, None, 2), ("random", 0.1, None, 0), ("first", 0.9, None, 0),
        ("incumbent", 0.1, None, 2), ("first", 0.9, 2, 2), ("first", 0.9, -2, -2),
    ],
)  # fmt: skip
def test_the_twin_is_trained_on_the_truth_or_the_guards_choice_among_equal_votes(
    tie_break, tie, truth, label
):
    # Answers 0 and 2 of the original are equal; the paraphrase elects answer 2.
    guard = GuardConfig().set(tie_break=tie_break, frs=False, mps=False, rcsu=False)
    second_PV = np.array([[0, 1, 2, 2]])
    _, paid = twin_streams(guard, np.array([[0, 0, 2, 2]]), second_PV, tie, truth)
    assert ((paid.majority > 0) == (second_PV == label)).all()


def test_a_language_model_rewords_its_own_problems(tmp_path, monkeypatch):
    settings = of_file(tmp_path) | {"answer_check": "strings", "stop": ("Next", "=Q")}
    run = prepare(of_rule("self_harmony", **settings).settled())
    written = ["<think>hm</think> 1+1=", "2+2=Q: 3", "Next1", "1" * 3000]
    texts = run.policy.texts
    monkeypatch.setattr(
        type(run.policy), "texts", lambda self, t, n: written if len(t) == 4 else texts(t, n)
    )
    second = run.extra_rollouts
    assert second.begin() == {"paraphrases_missing": 2}
    assert second.texts_N == ["1+1=", "2+2", None, None]
    asked = second.prompts.tokens
    assert asked[2:] == run.prompts.tokens[2:] and len(asked[0]) == 4
    other = Paraphrases(second.parts)
    other.restore({}, json.loads(json.dumps(second.state()[1])))
    assert other.prompts.tokens == asked and "Do not solve" in REQUEST
    monkeypatch.undo()
    first, again = Paraphrases(second.parts), Paraphrases(second.parts)
    assert first.begin() == again.begin() and first.texts_N == again.texts_N


def test_the_other_view_is_trained_on_the_votes_of_the_first():
    answers_PV = np.array([[0, 1, 0, 0, 1, 0, 0, 0]])
    second_PV = np.array([[1, 0, 1, 1, 1, 1, 0, -1]])
    guard = of_rule("co_rewarding_1").guard
    decided, twin = twin_streams(guard, answers_PV, second_PV, 0.5)
    assert decided.decision.label.tolist() == [1]
    majority_PK = pay(make_rule("co_rewarding_1"), decided, guard).majority
    assert (np.sign(majority_PK[0]) == [-1, 1, -1, -1]).all()
    assert (np.sign(twin.majority[0]) == [-1, 1, -1, -1]).all()


def test_a_problem_that_a_rule_leaves_out_is_left_out_in_both_views(monkeypatch):
    monkeypatch.setattr(CoRewarding1, "weigh", lambda self, obs, label: np.zeros(label.shape))
    votes = np.array([[0, 0, 0, 1, 1, 1, 1, 1]])
    _, twin = twin_streams(of_rule("co_rewarding_1").guard, votes, 1 - votes, 0.5)
    assert twin.drop.all()
