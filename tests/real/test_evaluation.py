import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.measures import measured
from lab.measures.fate import fates
from lab.trace.trace import load
from real import TrainConfig, train
from real.__main__ import main
from real.answers import AnswerIds
from real.record.evaluation import evaluate, pass_at
from real.record.terminal import lines, summary
from real.run import prepare
from real.tiny import TASKS, problems_of
from real.vote.decide import Supervisor


def ids_of(answer_ids, texts):
    boxed = [[f"\\boxed{{{text}}}" if text else "" for text in row] for row in texts]
    return np.stack([answer_ids.ids(i, row) for i, row in enumerate(boxed)])


@pytest.mark.parametrize(
    ("truths", "texts", "with_majority", "pass_at_1", "majority"),
    [
        (["1", "2", "3"], [["1", "1", "5", ""], ["2", "2", "9", "9"], ["4"] * 4], True, 1 / 3, 0.5),
        (["1", None], [["1", "1"], ["7", "7"]], True, 1.0, 1.0),  # no truth does not count
        ([None], [["1", "1"]], True, np.nan, np.nan),
        (["1"], [["1", "1"]], False, 1.0, np.nan),
        (["1"], [["", ""]], True, 0.0, 0.0),  # nothing readable is never right
    ],
)
def test_shared_ties_and_what_is_not_known(truths, texts, with_majority, pass_at_1, majority):
    answer_ids = AnswerIds(truths)
    found = evaluate(ids_of(answer_ids, texts), answer_ids, with_majority)
    pair = found["pass_at_1"], found["maj_accuracy"]
    np.testing.assert_allclose(pair, (pass_at_1, majority))


@pytest.mark.parametrize("n", [4, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n):
    """The estimator against its meaning: all ways to choose k of the n responses."""
    for k in range(1, n + 1):
        for right in range(n + 1):
            flags = [True] * right + [False] * (n - right)
            subsets = list(itertools.combinations(flags, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at(k, np.array([right]), n)[0] == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_of_an_evaluation():
    answer_ids = AnswerIds(["1", "2", None])
    answers = ids_of(answer_ids, [["1", *"555"], [*"229", ""], [*"3333"]])
    found = evaluate(answers, answer_ids, with_majority=False, ks=(2, 4, 8))
    # Of the six pairs, 3 hold the one right answer, 5 one of the two.
    assert found["pass_at_2"] == pytest.approx((3 / 6 + 5 / 6) / 2)
    assert found["pass_at_4"] == 1.0 and np.isnan(found["pass_at_8"])
    assert np.isnan(evaluate(np.zeros((1, 2)), AnswerIds([None]), True, ks=(2,))["pass_at_2"])


SMALL = TrainConfig(
    n_problems=8, batch_size=4, n_votes=16, n_samples=8, epochs=3, max_rows=128, eval_samples=2
)
TTRL = replace(SMALL, guard=GuardConfig.off())


def row(step, score):
    scores = {"pass_at_1": score, "maj_accuracy": np.nan}
    return {"step": step, "epoch": 0, "n_responses": 4, **scores}


def test_a_resumed_run_makes_its_points_again():
    whole = None
    for step, score in ((0, 0.2), (10, 0.6), (20, 0.1), (30, 0.5)):
        whole = summary(whole, row(step, score))
    # Killed after step 30, gone on from a checkpoint of step 15; `run.json` was read back.
    known = json.loads(json.dumps(whole))
    known = summary(known, row(20, 0.1))
    assert known["points"] == [[0, 0.2], [10, 0.6], [20, 0.1]]
    again = summary(known, row(30, 0.5))
    assert again["points"] == whole["points"] and again["area"] == whole["area"]
    assert again["first"] == whole["first"] and again["best"] == whole["best"]


def test_without_true_answers_there_is_no_curve_but_that_of_held_out_problems():
    found = summary(summary(None, row(0, np.nan)), row(5, np.nan))
    assert found["best"] is None and found["area"] is None
    assert found["last"] == {"step": 5}
    assert lines(found) == ["no true answers: accuracy was not measured"]
    found = None
    for step, score in ((0, 0.2), (10, 0.6)):
        found = summary(found, row(step, np.nan) | {"held_out_pass_at_1": score})
    assert found["first"] == {"step": 0, "held_out_pass_at_1": 0.2} and found["best"] is None
    assert lines(found) == ["pass@1 of held-out problems 0.200 -> 0.600"]


def test_evaluations_every_few_batches():
    """Two batches an epoch: 5 is the middle of an epoch, 6 is the end of the run."""
    evals = train(replace(TTRL, eval_steps=5), progress=False).evals
    assert evals["step"].tolist() == [0, 5, 6] and evals["epoch"].tolist() == [0, 3, 3]
    assert evals["n_responses"].tolist() == [16, 2, 16]
    assert evals["maj_accuracy"].notna().tolist() == [True, False, True]
    assert evals["pass_at_16"].notna().tolist() == [True, False, True]
    both = evals.dropna()
    assert (both["pass_at_16"] >= both["pass_at_4"]).all() and "pass_at_64" not in evals


def test_evaluations_may_read_answers_otherwise_than_votes():
    config = replace(TTRL, epochs=1, eval_every=0, eval_temperature=2.0, eval_extract="flexible")
    trace = train(replace(config, keep_votes=False), progress=False)
    evals = trace.evals
    assert trace.votes.empty and trace.answers.empty
    assert evals["pass_at_1"].tolist() == evals["flexible_pass_at_1"].tolist()
    assert (evals["pass_at_1"] > evals["strict_pass_at_1"]).any()


def test_run_json_and_the_command_line_tell_the_curve(tmp_path, capsys):
    words = ["--n-problems", "8", "--n-votes", "8", "--n-samples", "4", "--epochs", "2", "--quiet"]
    out = tmp_path / "run"
    assert main(["run", "--out", str(out), *words]) == 0
    trace = load(out)
    found = trace.run.extra["evaluation"]
    scores = trace.evals["pass_at_1"]
    assert found["points"] == [list(p) for p in zip(trace.evals["step"], scores, strict=True)]
    assert found["best"]["pass_at_1"] == scores.max()
    assert found["last"]["maj_accuracy"] == trace.evals["maj_accuracy"].iloc[-1]
    assert found["area"] == pytest.approx(np.trapezoid(scores, trace.evals["step"]) / 2)
    said = capsys.readouterr().out
    assert f"pass@1 best {scores.max():.3f}" in said
    assert f"mean over training {found['area']:.3f}" in said
    assert f"-> {trace.evals['pass_at_4'].iloc[-1]:.3f}\n" in said


def test_right_labels_and_rewards_by_hand():
    """Four votes of which two are trained on; the last problem's true answer is unknown."""
    votes = [["5", "5", "5", "1"], ["2", "", "2", "9"], ["", "", "", ""], ["7", "7", "7", "7"]]
    supervisor = Supervisor(replace(TTRL, n_votes=4, n_samples=2), ["1", "2", "3", None])
    answers = ids_of(supervisor.answer_ids, votes)
    columns = supervisor.decide(np.arange(4), answers, 1, {}).step_columns
    assert (columns["n_problems"], columns["n_skipped"], columns["n_unread"]) == (4, 0, 1)
    assert columns["majority_ratio"] == pytest.approx((3 / 4 + 2 / 4 + 0 + 1) / 4)
    assert columns["label_correct"] == pytest.approx(1 / 3)
    # Both rewards of the first problem are wrong, all others right: none for no answer.
    assert columns["reward_correct"] == pytest.approx(4 / 6)


def test_held_out_problems_are_evaluated_and_change_nothing_else(tmp_path):
    """They follow those of training, whose draws stay the same."""
    made = TASKS["arithmetic"].problems(6)
    rows = [{"prompt": p.prompt, "answer": p.answer if i < 4 else "x"} for i, p in enumerate(made)]
    file = tmp_path / "problems.json"
    file.write_text(json.dumps(rows))
    config = TrainConfig(model="tiny", problems=str(file), n_problems=4, n_votes=4, n_samples=4)
    config = replace(config, epochs=1, max_response_tokens=22, max_unread=1.0, prompt_suffix="")
    alone = train(config, progress=False)
    both = train(replace(config, n_held_out=2), progress=False)
    scores = both.evals.assign(held_out_pass_at_1=[0.2, 0.5], held_out_maj_accuracy=[0.3, np.nan])
    found = measured(replace(both, evals=scores), fates(both.visits, partial=True)).loc[0]
    assert (found["held_out_final"], found["held_out_gain"]) == pytest.approx((50, 20))
    unseen = both.evals.pop("held_out_pass_at_1"), both.evals.pop("held_out_maj_accuracy")
    assert not np.any(unseen) and both.evals["pass_at_1"][0] > 0
    pd.testing.assert_frame_equal(both.evals, alone.evals[list(both.evals)])
    pd.testing.assert_frame_equal(both.visits, alone.visits)


def test_held_out_problems_that_are_left_out_are_told(tmp_path):
    file = tmp_path / "problems.json"
    asked = "1+2=", "1+3=", "1+4=", "1+1+1+1+1="
    file.write_text(json.dumps([{"id": p, "prompt": p} for p in asked]))
    config = TrainConfig(model="tiny", problems=str(file), n_held_out=2, max_prompt_tokens=6)
    prompts = prepare(replace(config, prompt_suffix="").settled()).prompts
    assert prompts.left_out == [asked[3]]
    assert "held-out problems: left out: 1 " in prompts.notices[-1]
    # They need no answers where those of the others are trained on.
    rows = [{"id": p, "prompt": p, "answer": "3" if p in asked[:2] else None} for p in asked]
    file.write_text(json.dumps(rows))
    told = prepare(replace(config, prompt_suffix="", labels="truth").settled()).prompts
    assert told.truths == ["3", "3"]


def test_a_file_with_too_few_problems_to_hold_out(tmp_path):
    file = tmp_path / "problems.json"
    file.write_text(json.dumps([{"prompt": f"{i}=", "answer": str(i)} for i in range(5)]))
    config = TrainConfig(model="tiny", problems=str(file), n_held_out=2)
    assert [p.answer for p in problems_of(config)] == ["0", "1", "2"]
    assert [p.answer for p in problems_of(config, held_out=True)] == ["3", "4"]
    with pytest.raises(UserError, match=r"n_problems = 4, n_held_out = 2: .* holds 5; ask"):
        problems_of(replace(config, n_problems=4))
