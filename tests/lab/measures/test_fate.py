from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lab
from lab.base.errors import UserError
from lab.measures.fate import FATES, classify, fate_shares, fates


def reference(votes, n_votes=64):
    """The table of the paper, first match first, in exact fractions."""
    accuracy = [Fraction(v, n_votes) for v in votes]
    ila, fla = sum(accuracy[:3]) / 3, sum(accuracy[-5:]) / 5
    of = Fraction
    if ila >= of("0.7") and fla >= of("0.6"):
        return "Stable Always Right"
    if ila >= of("0.5") and fla < ila - of("0.2"):
        return "Degraded"
    if ila < of("0.15") and fla >= of("0.5"):
        return "Learned"
    if of("0.15") <= ila < of("0.7"):
        return "Marginal Degraded" if fla < ila - of("0.15") else "Marginal Stable"
    if ila < of("0.15") and fla < of("0.5"):
        return "Always Wrong"
    return "Unclassified"


def fate_of(ila, fla):
    return FATES[int(classify(np.array(ila), np.array(fla)))]


@pytest.mark.parametrize(
    ("ila", "fla", "fate"),
    [
        # The three cases that show the table to be neither exclusive nor exhaustive.
        (0.6, 0.3, "Degraded"),
        (0.9, 0.65, "Stable Always Right"),
        (0.75, 0.58, "Unclassified"),
        # Bounds belong to the side that the table gives them.
        (0.7, 0.6, "Stable Always Right"),
        (0.5, 0.3, "Marginal Degraded"),
        (0.5, 0.299, "Degraded"),
        (0.7, 0.5, "Unclassified"),
        (0.15, 0.0, "Marginal Stable"),
        (0.3, 0.15, "Marginal Stable"),
        (0.3, 0.149, "Marginal Degraded"),
        (0.149, 0.5, "Learned"),
        (0.149, 0.499, "Always Wrong"),
    ],
)
def test_the_first_match_counts(ila, fla, fate):
    assert fate_of(ila, fla) == fate


def test_a_value_on_a_bound_is_not_decided_by_its_last_bit():
    # In exact numbers each of these lies on "fla < ila - 0.2", which is then false.
    for tenths in range(50, 101, 5):
        ila = tenths / 100
        assert fate_of(ila, (tenths - 20) / 100) != "Degraded", ila


histories_of_votes = st.lists(st.integers(0, 64), min_size=8, max_size=14)


@settings(max_examples=60, deadline=None)
@given(st.lists(histories_of_votes, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_fates_agree_with_the_scalar_reference(problems, random):
    rows = []
    for problem, votes in enumerate(problems):
        # Visit 0 is set to the opposite, so that reading it would show.
        accuracy = [1.0 - votes[0] / 64, *(vote / 64 for vote in votes)]
        rows += [(problem % 2, problem, visit, own) for visit, own in enumerate(accuracy)]
    random.shuffle(rows)
    columns = ["replicate", "problem", "visit", "label_accuracy"]
    found = lab.fates(pd.DataFrame(rows, columns=columns))
    assert len(found) == len(problems)
    for row in found.itertuples():
        votes = problems[row.problem]
        assert row.replicate == row.problem % 2 and row.fate == reference(votes)
        assert row.ila == pytest.approx(sum(votes[:3]) / 192, abs=1e-12)
        assert row.fla == pytest.approx(sum(votes[-5:]) / 320, abs=1e-12)


def test_eight_visits_are_enough_and_others_are_refused(make_visits):
    visits = pd.DataFrame(make_visits(np.full((1, 2, 9), 0.5)))
    assert len(fates(visits)) == 2
    lacking = visits.drop(columns=["problem", "label_accuracy"])
    for wrong, said in (
        (visits[(visits["problem"] == 0) | (visits["visit"] < 8)], "problem 1 has 7 visits, at le"),
        (visits[visits["visit"] == 0], "no visit of training"),
        (pd.concat([visits, visits.iloc[-1:]]), "replicate 0, problem 1 has visit 8 twice"),
        (lacking, "missing columns problem, label_accuracy"),
        (visits.assign(label_accuracy=np.nan), "need the true answers"),
    ):
        with pytest.raises(UserError, match=said):
            fates(wrong)


def test_problems_without_a_known_answer_are_left_out(make_visits):
    accuracy = np.full((1, 2, 9), 0.5)
    accuracy[0, 0] = np.nan
    assert fates(pd.DataFrame(make_visits(accuracy)))["problem"].tolist() == [1]


def fate_table(*names, replicate=0):
    categories = pd.Categorical(names, categories=list(FATES), ordered=True)
    return pd.DataFrame({"replicate": replicate, "problem": range(len(names)), "fate": categories})


def test_shares_are_percent_of_the_problems_of_each_replicate():
    first = fate_table("Degraded", "Degraded", "Marginal Degraded", "Learned")
    second = fate_table("Always Wrong", "Learned", "Unclassified", "Learned", replicate=3)
    shares = fate_shares(pd.concat([first, second]))
    assert shares.index.tolist() == [0, 3] and shares.loc[0, "Degraded"] == 50
    assert shares.loc[0, "TotalDeg"] == 75 and shares.loc[0, "L/D"] == 0.5
    assert shares.loc[3, "Unclassified"] == 25
    assert np.isnan(shares.loc[3, "L/D"]), "nothing degraded: undefined, never infinite"
    assert shares[list(FATES)].sum(axis=1).tolist() == [100, 100]
