"""The lives on the page are those that `life_figure` draws, and stay within their budget."""

import numpy as np
import pandas as pd
import pytest

from lab.figures.problems import life_figure
from lab.measures.problems import problem_life, vote_areas
from lab.report.html import plain
from lab.report.problems import TOP, life_template, packed_lives, replicate_lives

LOOK = ("line", "fillcolor", "hovertemplate", "mode", "xaxis", "yaxis", "stackgroup")


def drawn(own):
    """The traces of a life, as the page's script makes them from the template."""
    template = plain(life_template().to_plotly_json())["data"]
    for place, name, x, y, custom in own["traces"]:
        given = {"name": name} if name is not None else {}
        x = x or own["visit"]
        if isinstance(y, str):
            y = [100 * (ord(c) - ord("0")) / n for c, n in zip(y, own["votes"], strict=True)]
        yield template[place] | given | {"x": x, "y": y or [0] * len(x), "customdata": custom}


@pytest.mark.parametrize("kind", ["with_texts", "without_votes"])
def test_every_life_is_that_of_the_figure(kind, request):
    world = request.getfixturevalue(kind)
    for arm, replicate in (("ttrl", 0), ("guard", 1)):
        trace = world.comparison.traces[arm]
        lives = replicate_lives(trace, replicate)
        assert list(lives) == list(range(10))
        for problem, own in list(lives.items())[1:4]:
            life = problem_life(trace.visits, replicate, problem)
            areas = vote_areas(trace, replicate, problem, top=TOP)
            names = trace.answer_texts(replicate, problem)
            wanted = plain(life_figure(life, areas, names).to_plotly_json())["data"]
            assert own["visit"] == life["visit"].tolist()
            assert own["flips"] == life["flipped"].iloc[1:].sum()
            found = list(drawn(own))
            assert [trace["name"] for trace in found] == [trace["name"] for trace in wanted]
            for ours, theirs in zip(found, wanted, strict=True):
                assert {k: ours.get(k) for k in LOOK} == {k: theirs.get(k) for k in LOOK}
                assert ours["x"] == theirs["x"]
                y, wanted_y = (np.array(each["y"], float) for each in (ours, theirs))
                np.testing.assert_allclose(y, wanted_y, atol=6e-3)
                if (custom := theirs.get("customdata")) is not None:
                    exact = isinstance(custom[0], str)
                    shown = ours["customdata"]
                    assert shown == (custom if exact else pytest.approx(custom, abs=1e-3))


def test_visits_may_start_late_and_have_gaps(without_votes):
    trace = without_votes.comparison.traces["ttrl"]
    visits = trace.visits[~trace.visits["visit"].isin([0, 4])]
    changed = type(trace)(visits, trace.steps, trace.evals, run=trace.run)
    assert replicate_lives(changed, 1)[9]["visit"] == [1, 2, 3, *range(5, 12)]
    assert replicate_lives(changed, 7) == {}


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
    # One seed has the lives of all arms, whatever that takes.
    least = packed_lives([with_texts, without_votes], 0)
    assert [list(own) for own in least] == [[(0, 0), (1, 0)]] * 2


def test_votes_of_a_visit_that_is_not_there_are_left_out(with_texts):
    trace = with_texts.comparison.traces["ttrl"]
    stray = pd.concat([trace.votes, trace.votes.head(1).assign(visit=99)], ignore_index=True)
    changed = type(trace)(trace.visits, trace.steps, trace.evals, run=trace.run, votes=stray)
    changed.answers = trace.answers
    assert replicate_lives(changed, 0) == replicate_lives(trace, 0)
