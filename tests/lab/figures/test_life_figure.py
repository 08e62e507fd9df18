import numpy as np
import pytest

from guard_core import Route
from lab.figures.problems import life_figure
from lab.figures.style import GREEN
from lab.measures.problems import problem_life, vote_areas


@pytest.fixture(params=[True, False], ids=["votes", "shares"])
def trace(request, lived):
    return lived(votes=request.param)


def drawn(trace):
    return life_figure(problem_life(trace.visits, 0, 1), vote_areas(trace, 0, 1))


def test_votes_fill_the_visit_the_true_answer_is_green_and_every_trace_says_what_it_draws(trace):
    figure = drawn(trace)
    areas = [t for t in figure.data if t.stackgroup]
    np.testing.assert_allclose(np.sum([t.y for t in areas], axis=0), 100)
    right = areas[0]
    assert right.line.color == GREEN
    np.testing.assert_allclose(right.y, 100 * np.array([40, 30, 10]) / 64)
    expected = "true answer" if trace.votes.empty else "answer 4 (correct)"
    assert right.name == expected
    areas = ["correct", "label", "other" if trace.votes.empty else "answer", "unparseable"]
    marks = ["right", "wrong", "changed", "flip_rate", "weight"]
    routes = [f"route {Route.STABLE:d}", f"route {Route.AT_RISK:d}"]
    assert [t.meta for t in figure.data] == [*areas, *marks, *routes]
    assert figure.layout.yaxis.title.text == "% of votes"
    assert figure.layout.xaxis4.title.text.startswith("visit")


def test_label_rate_weight_and_route_stand_under_it(trace):
    by_name = {t.name: t for t in drawn(trace).data}
    assert list(by_name["label is right"].x) == [0]
    assert list(by_name["label is wrong or unknown"].x) == [1, 2]
    assert list(by_name["label is wrong or unknown"].customdata) == ["answer 9"] * 2
    assert list(by_name["label changed"].x) == [1]
    np.testing.assert_allclose(by_name["FR"].y[1:], [0.2, 0.4])
    np.testing.assert_allclose(by_name["weight"].y[1:], [0.9, 0.7])
    # Before training no guard has spoken.
    assert np.isnan(by_name["FR"].y[0])
    assert list(by_name["Stable"].x) == [1] and list(by_name["At risk"].x) == [2]
    assert by_name["At risk"].customdata[0] == pytest.approx(0.7)


def test_answers_and_labels_with_markup_are_shown_as_text(trace):
    names = {4: "<img src=x onerror=alert(1)>", 9: ""}
    life = problem_life(trace.visits, 0, 1)
    by_name = {t.name: t for t in life_figure(life, vote_areas(trace, 0, 1, names), names).data}
    assert not any("<" in name for name in by_name)
    assert list(by_name["label is right"].customdata) == ["&lt;img src=x onerror=alert(1)&gt;"]
    assert list(by_name["label is wrong or unknown"].customdata) == ["answer 9"] * 2
    if not trace.votes.empty:
        assert next(iter(by_name)).startswith("&lt;img")
