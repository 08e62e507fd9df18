"""The votes of a simulated trace: every answer of every visit, for as many replicates as asked."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd

from guard_core import GuardConfig
from lab.measures.problems import vote_areas
from lab.trace.trace import load
from sim import SimConfig, simulate
from sim.cli import main

SMALL = SimConfig(
    n_problems=21, epochs=4, batch_size=8, replicates=3, vote_replicates=2, unparseable=0.2
)
KEY = ["replicate", "step", "epoch", "visit", "problem"]


def test_the_votes_of_a_visit_add_up_and_the_label_has_its_share():
    trace = simulate(SMALL)
    kept = trace.visits[trace.visits["replicate"] < 2].set_index(KEY)
    # A visit without any vote would have no row; with 64 votes there is none.
    counted = trace.votes.groupby(KEY)["count"].sum().reindex(kept.index)
    np.testing.assert_array_equal(counted + kept["n_unparseable"], kept["n_votes"])
    assert (trace.votes["count"] > 0).all()
    own = trace.votes.set_index([*KEY, "answer"])["count"]
    assert own.index.is_unique and len(kept) == 2 * 21 * 5
    labels = pd.MultiIndex.from_frame(kept.reset_index()[[*KEY, "label"]])
    np.testing.assert_array_equal(own[labels] / 64, kept["match_rate"])


def test_keeping_votes_changes_nothing_else():
    config = replace(SMALL, guard=GuardConfig(label_from="memory"))
    runs = [simulate(replace(config, vote_replicates=n)) for n in (0, 1, 99)]
    for other in runs[1:]:
        pd.testing.assert_frame_equal(other.visits, runs[0].visits, check_exact=True)
        pd.testing.assert_frame_equal(other.steps, runs[0].steps, check_exact=True)
        pd.testing.assert_frame_equal(other.evals, runs[0].evals, check_exact=True)
    assert runs[0].votes.empty
    assert [sorted(run.votes["replicate"].unique()) for run in runs[1:]] == [[0], [0, 1, 2]]
    first = runs[2].votes[runs[2].votes["replicate"] == 0].reset_index(drop=True)
    columns = ["visit", "problem", "answer", "count"]
    expected = runs[1].votes.sort_values(columns).reset_index(drop=True)
    found = first.sort_values(columns).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_the_first_replicate_of_a_later_part_has_its_own_number():
    trace = simulate(replace(SMALL, first_replicate=5, vote_replicates=1))
    assert trace.votes["replicate"].unique().tolist() == [5]
    whole = simulate(replace(SMALL, replicates=6, vote_replicates=6)).votes
    expected = whole[whole["replicate"] == 5].reset_index(drop=True)
    pd.testing.assert_frame_equal(trace.votes, expected, check_exact=True)


def test_one_replicate_is_kept_unless_asked_and_shown_answer_by_answer(tmp_path):
    few = ["--n-problems", "6", "--epochs", "8", "--quiet"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        line = ["compare", "--out", str(tmp_path / "all"), "--arms", "ttrl", "guard", *few]
        assert main([*line, "--replicates", "2"]) == 0
        assert main(["run", "--out", str(tmp_path / "none"), "--vote-replicates", "0", *few]) == 0
    for arm in ("ttrl", "guard"):
        trace = load(tmp_path / "all" / arm)
        assert trace.votes["replicate"].unique().tolist() == [0]
        areas = vote_areas(trace, 0, 3)
        assert areas["area"].str.startswith("answer ").any()
        np.testing.assert_allclose(areas.groupby("visit")["share"].sum(), 1)
    assert load(tmp_path / "none").votes.empty
    assert trace.answers.empty and trace.answer_texts(0, 3) == {}
