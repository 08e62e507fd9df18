"""Comparisons with and without votes, for the table of problems."""

from dataclasses import replace

import numpy as np
import pytest

from lab.arm_settings import with_arm
from lab.base.arms import arm
from lab.compare.collection import gather
from lab.report.digest import digest
from sim import SimConfig, simulate

EVIL = "<img src=x onerror=\"document.title='owned'\"></script><b>1/2</b>"
SIZES = {"n_problems": 10, "epochs": 11, "replicates": 2, "n_votes": 16, "n_samples": 8}
SIZES |= {"n_answers": 7, "unparseable": 0.1, "step": 0.03, "population": "qwen-amc"}
TEXTS = {0: EVIL, 3: "<b>1/3</b>", 6: "x" * 99}


def traced(name, votes, **changes):
    """A trace of one arm with changes of its manifest.

    The true answer of problem 1 is not known, and has no label at first. Answer ids are three times
    those of the simulator, and the texts of two answers hold markup.
    """
    # Of this seed problem 4 changes its label.
    config = SimConfig(**SIZES, seed=28, vote_replicates=2 if votes else 0)
    trace = simulate(with_arm(config, arm(name)))
    ids = [*(f"id-{n}-{EVIL if n == 3 else ''}" for n in range(9)), "62"]
    facts = {"title": name.upper(), "config": {"step": 0.1}, "extra": {"problem_ids": ids}}
    trace.run = replace(trace.run, **facts | {"task": "test", "seeds": [0, 0]} | changes)
    visits, unknown = trace.visits, trace.visits["problem"] == 1
    visits.loc[unknown, ["label_accuracy", "label_correct"]] = np.nan, False
    visits["label"] *= 3
    routes = np.random.default_rng(0).integers(0, 4, len(visits))
    visits["route"] = np.where(visits["visit"] > 0, routes, 0).astype(np.int8)
    visits.loc[unknown & (visits["visit"] == 0), "label"] = -1
    trace.visits = visits.sample(frac=1, random_state=0)
    if votes:
        trace.votes["answer"] *= 3
        once = trace.votes.drop_duplicates(["replicate", "problem", "answer"])
        once = once[once["answer"].isin(list(TEXTS))].drop(columns="count")
        trace.answers = once.assign(text=once["answer"].map(TEXTS).astype("str"))
    return trace


@pytest.fixture(scope="session")
def compared():
    """The digest of some arms: `compared(votes=True, **changes of the manifest)`."""

    def build(*, votes, arms=("ttrl", "guard"), **changes):
        ((found,), skipped) = gather([traced(name, votes, **changes) for name in arms])
        assert not skipped
        return digest(found)

    return build


@pytest.fixture(scope="session")
def with_texts(compared):
    return compared(votes=True, world="real")


@pytest.fixture(scope="session")
def without_votes(compared):
    return compared(votes=False)


evil = pytest.fixture(lambda: EVIL, scope="session")
