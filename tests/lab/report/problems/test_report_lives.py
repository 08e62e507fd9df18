import pandas as pd

from lab.report.problems import packed_lives, replicate_lives


def test_visits_may_start_late_and_have_gaps(without_votes):
    trace = without_votes.comparison.traces["ttrl"]
    visits = trace.visits[~trace.visits["visit"].isin([0, 4])]
    changed = type(trace)(visits, trace.steps, trace.evals, run=trace.run)
    assert replicate_lives(changed, 1)[9]["visit"] == [1, 2, 3, *range(5, 12)]
    assert replicate_lives(changed, 7) == {}


def test_replicates_fill_the_budget_with_all_arms_or_none(with_texts, without_votes):
    both = [with_texts, without_votes]
    everything = packed_lives(both)
    assert [sorted(own) for own in everything] == [[(0, 0), (0, 1), (1, 0), (1, 1)]] * 2
    sizes = [{key: len(text) for key, text in own.items()} for own in everything]
    first = sum(sizes[0][arm, 0] + sizes[1][arm, 0] for arm in (0, 1))
    assert [sorted(own) for own in packed_lives(both, first)] == [[(0, 0), (1, 0)]] * 2
    more = first + sizes[0][0, 1] + sizes[0][1, 1] - 1
    second = packed_lives(both, more)
    assert (0, 1) not in second[0] and (1, 1) not in second[0]
    # One seed has the lives of all arms, whatever that takes.
    least = packed_lives(both, 0)
    assert [list(own) for own in least] == [[(0, 0), (1, 0)]] * 2


def test_votes_of_a_visit_that_is_not_there_are_left_out(with_texts):
    trace = with_texts.comparison.traces["ttrl"]
    stray = pd.concat([trace.votes, trace.votes.head(1).assign(visit=99)], ignore_index=True)
    changed = type(trace)(trace.visits, trace.steps, trace.evals, run=trace.run, votes=stray)
    changed.answers = trace.answers
    assert replicate_lives(changed, 0) == replicate_lives(trace, 0)
