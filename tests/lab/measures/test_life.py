import numpy as np
import pandas as pd
import pytest

from lab.base.errors import UserError
from lab.measures.problems import problem_life, true_answer, vote_areas

# Problem 1 of replicate 0: the true answer 4 loses to answer 9; one response cannot be read.
COUNTS = {4: [40, 30, 10], 9: [20, 30, 50], 2: [3, 3, 3]}


@pytest.fixture
def build(in_memory, make_manifest, make_visits, make_steps, make_evals):
    def trace(*, votes=True, **columns):
        accuracy = np.array([[[0.5] * 3, [c / 64 for c in COUNTS[4]]]])
        own = np.array([4, 9, 9])
        filled = {
            "label": np.concatenate([[0] * 3, own]),
            "label_correct": np.concatenate([[False] * 3, own == 4]),
            "match_rate": np.concatenate([[0.5] * 3, np.array([40, 30, 50]) / 64]),
            "n_unparseable": np.concatenate([[0] * 3, [1, 1, 1]]),
        }
        rows = [
            {"step": v, "epoch": v, "visit": v, "problem": 1, "answer": a, "count": c[v]}
            for a, c in COUNTS.items()
            for v in range(3)
        ]
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        tables = {
            "visits": make_visits(accuracy, **(filled | columns)),
            "steps": make_steps([0], 2),
            "evals": make_evals([[0.5] * 3]),
        }
        given = {"votes": {"replicate": 0, **table}} if votes else {}
        return in_memory(make_manifest(), **tables, **given)

    return trace


def test_life_is_in_order(build):
    life = problem_life(build().visits.sample(frac=1, random_state=1), 0, 1)
    assert life["visit"].tolist() == [0, 1, 2] and life["label"].tolist() == [4, 9, 9]


def test_every_answer_has_an_area_and_they_fill_the_visit(build):
    areas = vote_areas(build(), 0, 1)
    np.testing.assert_allclose(areas.groupby("visit")["share"].sum(), 1)
    kinds = areas.drop_duplicates("area").set_index("area")["kind"].to_dict()
    assert kinds == {
        "answer 4": "correct",
        "answer 9": "label",
        "answer 2": "answer",
        "other answers": "other",
        "unparseable": "unparseable",
    }
    nine = areas[areas["area"] == "answer 9"]["share"]
    np.testing.assert_allclose(nine, np.array(COUNTS[9]) / 64)
    assert areas[areas["area"] == "unparseable"]["share"].tolist() == [1 / 64] * 3


def test_texts_of_the_trace_name_the_answers_and_the_rest_share_an_area(build):
    trace = build()
    rows = {"step": 0, "epoch": 0, "visit": 0, "problem": 1, "answer": [4, 9], "text": ["½", ""]}
    trace.answers = pd.DataFrame({"replicate": 0, **rows})
    areas = vote_areas(trace, 0, 1, top=2)
    assert areas["area"].unique().tolist() == ["½", "answer 9", "other answers", "unparseable"]
    np.testing.assert_allclose(areas[areas["kind"] == "other"]["share"], 3 / 64)


def test_a_truth_that_was_never_the_label_is_found_by_its_share(build):
    never = build(label_correct=[False] * 6)
    life = problem_life(never.visits, 0, 1)
    assert true_answer(life, never.votes[never.votes["problem"] == 1]) == 4
    assert true_answer(life) is None


def test_an_unknown_truth_stays_unknown(build):
    unknown = build(label_correct=[False] * 6, label_accuracy=[np.nan] * 6)
    assert true_answer(problem_life(unknown.visits, 0, 1), unknown.votes) is None
    kinds = set(vote_areas(unknown, 0, 1)["kind"])
    assert "correct" not in kinds


def test_without_votes_the_label_and_the_truth_have_areas(build):
    areas = vote_areas(build(votes=False), 0, 1).pivot(
        index="visit", columns="area", values="share"
    )
    np.testing.assert_allclose(areas.sum(axis=1), 1)
    np.testing.assert_allclose(areas["true answer"], np.array(COUNTS[4]) / 64)
    # At visit 0 the label is the true answer: its votes are not counted twice.
    np.testing.assert_allclose(areas["wrong label"], [0, 30 / 64, 50 / 64])
    np.testing.assert_allclose(areas["unparseable"], 1 / 64)


def test_a_problem_that_was_never_visited_is_an_error(build):
    with pytest.raises(UserError, match="replicate 0 has no visit of problem 7"):
        problem_life(build().visits, 0, 7)
    with pytest.raises(UserError, match="missing columns route"):
        problem_life(pd.DataFrame(build().visits).drop(columns="route"), 0, 1)
