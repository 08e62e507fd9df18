"""The packed lives say what `lab.measures.life` says, and stay within their budget."""

import numpy as np
import pandas as pd
import pytest

from lab.figures.life import shortened
from lab.measures.life import problem_life, vote_areas
from lab.report.problems.life_data import TOP, ArmLives, packed_lives
from lab.report.problems.packing import pack, unpack


def test_numbers_and_texts_survive_packing():
    rng = np.random.default_rng(0)
    columns = {
        "flags": np.array([True, False]),
        "small": np.array([0, 255]),
        "wide": np.array([0, 256, 65_535]),
        "signed": np.array([-1, 70_000]),
        "shares": np.array([0.1, np.nan, 1 / 3, 0.1]),
        "weights": rng.random(300),
        "none": np.empty(0),
        "texts": ["", "½ <b>", "\u202e"],
        "mappings": [{}, {"3": "</script>"}],
    }
    found = unpack(pack(columns))
    assert list(found) == list(columns)
    for name, values in columns.items():
        np.testing.assert_array_equal(found[name], values)
    assert [found[n].dtype.itemsize for n in ("flags", "small", "wide", "signed")] == [1, 1, 2, 4]


def test_floats_of_many_values_are_rounded_to_32_bits():
    values = np.random.default_rng(0).random(70_000)
    np.testing.assert_array_equal(unpack(pack({"x": values}))["x"], values.astype(np.float32))


def test_a_number_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="big: 0 to 4294967296 does not fit"):
        pack({"big": np.array([0, 2**32])})


def life_of(columns, problem):
    """One problem's columns, as the page's script cuts them out."""
    place = columns["problem"].tolist().index(problem)
    start = int(columns["length"][:place].sum())
    rows = slice(start, start + int(columns["length"][place]))
    per_life = {"problem", "length", "correct", "texts"}
    return {
        name: values[place] if name in per_life or name.startswith("answer_") else values[rows]
        for name, values in columns.items()
    }


def areas_of(own):
    """Name, kind and shares of the areas with a vote, as the page's script makes them."""
    n = np.maximum(own["n_votes"], 1)
    unparseable = own["n_unparseable"] / n
    found = []
    if "votes_0" in own:
        for k in range(TOP):
            if own[f"answer_{k}"]:
                answer = int(own[f"answer_{k}"]) - 1
                name = own["texts"].get(str(answer)) or f"answer {answer}"
                kind = "correct" if k == 0 and own["correct"] else "answer"
                found.append((name, kind, own[f"votes_{k}"] / n))
    else:
        right = np.nan_to_num(own["label_accuracy"])
        found.append(("true answer", "correct", right))
        wrong = np.where(own["label_correct"], 0, own["match_rate"])
        found.append(("wrong label", "label", wrong))
    left = np.maximum(1 - unparseable - sum(share for _, _, share in found), 0)
    found += [("other answers", "other", left), ("unparseable", "unparseable", unparseable)]
    return [(name, kind, share) for name, kind, share in found if (share > 1e-9).any()]


def expected_areas(trace, replicate, problem):
    table = vote_areas(trace, replicate, problem, top=TOP)
    found = []
    for area, kind in table[["area", "kind"]].drop_duplicates().itertuples(index=False):
        share = table[(table["area"] == area) & (table["kind"] == kind)]["share"].to_numpy()
        known = kind if kind != "label" or trace.votes.empty else "answer"
        if (share > 1e-9).any():
            found.append((shortened(area), known, share))
    return found


@pytest.mark.parametrize("kind", ["with_texts", "without_votes"])
def test_every_life_is_that_of_lab_life(kind, request):
    world = request.getfixturevalue(kind)
    for arm, replicate in (("ttrl", 0), ("guard", 1)):
        trace = world.comparison.traces[arm]
        columns = unpack(str(ArmLives(trace).packed(replicate)))
        for problem in range(10):
            own, life = life_of(columns, problem), problem_life(trace.visits, replicate, problem)
            np.testing.assert_array_equal(np.cumsum(own["step"]) - 1, life["visit"])
            np.testing.assert_array_equal(own["label"].astype(int) - 1, life["label"])
            for name in ("route", "flip_rate", "weight", "flipped", "label_correct"):
                np.testing.assert_array_equal(own[name], life[name])
            wanted = expected_areas(trace, replicate, problem)
            found = areas_of(own)
            assert [area[:2] for area in found] == [area[:2] for area in wanted]
            np.testing.assert_allclose([a[2] for a in found], [a[2] for a in wanted], atol=1e-12)


def test_the_kinds_of_truth_are_all_among_them(with_texts):
    columns = unpack(str(ArmLives(with_texts.comparison.traces["ttrl"]).packed(0)))
    correct = dict(zip(columns["problem"].tolist(), columns["correct"].tolist(), strict=True))
    assert correct[1] == 0  # not known
    assert correct[2] == 1  # never the label, known by its share
    assert correct[0] == 1


def test_visits_may_start_late_and_have_gaps(without_votes):
    trace = without_votes.comparison.traces["ttrl"]
    visits = trace.visits[~trace.visits["visit"].isin([0, 4])]
    changed = type(trace)(visits, trace.steps, trace.evals, run=trace.run)
    own = life_of(unpack(str(ArmLives(changed).packed(1))), 9)
    assert (np.cumsum(own["step"].astype(int)) - 1).tolist() == [1, 2, 3, *range(5, 12)]
    assert ArmLives(changed).packed(7) is None


def test_replicates_fill_the_budget_with_all_arms_or_none(with_texts, without_votes):
    everything = packed_lives([with_texts, without_votes])
    assert [sorted(own) for own in everything] == [[(0, 0), (0, 1), (1, 0), (1, 1)]] * 2
    sizes = [{key: len(text) for key, text in own.items()} for own in everything]
    first = sum(sizes[0][arm, 0] + sizes[1][arm, 0] for arm in (0, 1))
    assert [sorted(own) for own in packed_lives([with_texts, without_votes], first)] == [
        [(0, 0), (1, 0)]
    ] * 2
    more = first + sizes[0][0, 1] + sizes[0][1, 1] - 1
    second = packed_lives([with_texts, without_votes], more)
    assert (0, 1) not in second[0] and (1, 1) not in second[0]


def test_the_first_arm_of_each_world_always_has_a_life(with_texts, without_votes):
    assert [list(own) for own in packed_lives([with_texts, without_votes], 0)] == [[(0, 0)]] * 2


def test_votes_of_a_visit_that_is_not_there_are_left_out(with_texts):
    trace = with_texts.comparison.traces["ttrl"]
    stray = pd.concat([trace.votes, trace.votes.head(1).assign(visit=99)], ignore_index=True)
    changed = type(trace)(trace.visits, trace.steps, trace.evals, run=trace.run, votes=stray)
    changed.answers = trace.answers
    assert ArmLives(changed).packed(0) == ArmLives(trace).packed(0)
