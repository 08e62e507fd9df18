"""Comparisons with and without votes, for the table of problems."""

import numpy as np
import pytest

from lab.compare.collection import gather
from lab.report.digest import digest

EVIL = "<img src=x onerror=\"document.title='owned'\"></script><b>1/2</b>"
REPLICATES, PROBLEMS, VISITS, ANSWERS, N_VOTES = 2, 10, 12, 8, 16


def vote_counts(rng):
    """(R, N, 1 + E, A) votes; the last answer stands for unparseable responses."""
    shares = rng.dirichlet(np.full(ANSWERS, 0.5), (REPLICATES, PROBLEMS, VISITS))
    return rng.multinomial(N_VOTES, shares)


def with_votes(trace, counts, truth, rng):
    """Fill a trace from its votes; the true answer of problem 1 is not known.

    Answer ids are three times the place, and the texts of two answers hold markup.
    """
    visits = trace.visits
    count = counts.reshape(-1, ANSWERS)
    own = truth[visits["problem"].to_numpy()]
    label = count[:, :-1].argmax(axis=1)
    unknown = (visits["problem"] == 1).to_numpy()
    rows = np.arange(len(visits))
    visits["n_votes"] = np.full(len(visits), N_VOTES, np.int32)
    visits["n_unparseable"] = count[:, -1].astype(np.int32)
    visits["label"] = np.where(unknown & (rows % VISITS == 0), -1, 3 * label).astype(np.int32)
    visits["match_rate"] = count[rows, label] / N_VOTES
    visits["label_accuracy"] = np.where(unknown, np.nan, count[rows, own] / N_VOTES)
    visits["label_correct"] = ~unknown & (label == own)
    training = visits["visit"] > 0
    visits["flipped"] = training & (rng.random(len(visits)) < 0.3)
    visits["flip_rate"] = rng.integers(0, 6, len(visits)) / 5
    visits["weight"] = 1 - rng.random(len(visits))
    visits["route"] = np.where(training, rng.integers(0, 4, len(visits)), 0).astype(np.int8)
    return count


def add_votes(trace, count):
    row, answer = np.nonzero(count[:, :-1])
    keys = trace.visits[["replicate", "step", "epoch", "visit", "problem"]]
    votes = keys.take(row).reset_index(drop=True)
    trace.votes = votes.assign(answer=(3 * answer).astype(np.int32), count=count[row, answer])
    once = trace.votes.drop_duplicates(["replicate", "problem", "answer"])
    texts = {0: EVIL, 3: "<b>1/3</b>", 6: "x" * 99}
    once = once[once["answer"].isin(list(texts))].drop(columns="count")
    trace.answers = once.assign(text=once["answer"].map(texts).astype("str"))


@pytest.fixture(scope="session")
def arm_of(make_trace):
    """A trace of one arm: `arm_of("ttrl", votes=True, seed=0, **changes)`."""

    def build(name, *, votes, seed=0, **changes):
        rng = np.random.default_rng([seed, len(name)])
        values = {
            "seeds": [0] * REPLICATES,
            "title": name.upper(),
            "extra": {"problem_ids": [f"id-{n}-{EVIL if n == 3 else ''}" for n in range(PROBLEMS)]},
        } | changes
        blank = np.full((REPLICATES, PROBLEMS, VISITS), 0.5)
        trace = make_trace(name, blank, np.full((REPLICATES, VISITS), 0.5), **values)
        truth = np.arange(PROBLEMS) % (ANSWERS - 1)
        count = with_votes(trace, vote_counts(rng), truth, rng)
        if votes:
            # The truth of problem 2 is never the label: only its share gives it away.
            hidden = (trace.visits["problem"] == 2).to_numpy()
            trace.visits["label_correct"] &= ~hidden
            add_votes(trace, count)
        trace.visits = trace.visits.sample(frac=1, random_state=seed)
        return trace

    return build


@pytest.fixture(scope="session")
def compared(arm_of):
    """The digest of some arms: `compared(votes=True, **changes of the manifest)`."""

    def build(*, votes, arms=("ttrl", "guard"), **changes):
        found, skipped = gather([arm_of(name, votes=votes, **changes) for name in arms])
        assert not skipped
        return digest(found[0])

    return build


@pytest.fixture(scope="session")
def with_texts(compared):
    return compared(votes=True, world="real")


@pytest.fixture(scope="session")
def without_votes(compared):
    return compared(votes=False)


evil = pytest.fixture(lambda: EVIL, scope="session")
