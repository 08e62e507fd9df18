import inspect
import re
import warnings
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from guard_histories import checked
from hypothesis import given
from hypothesis import strategies as st
from rule_sights import BY_RESPONSE, Sight, sight, sights, top

from guard_core import Votes
from guard_core.rules import RULES, Observations, Rule, make_rule

VARIANTS = [
    *[(name, {}) for name in RULES],
    ("scope", {"confidence": "release"}),
    ("empo", {"unparseable": "alone"}),
    ("scrl_continuous", {"positive_from": "t_pos"}),
]
ALL = [make_rule(name, settings) for name, settings in VARIANTS]
BY_PLACE = {"scope", "random", "ddrl"}
"""Subgroups are cut by place; random rewards and DDRL's equal answers are drawn by place."""
SEEDS = st.integers(0, 2**32 - 1)
every_rule = pytest.mark.parametrize("rule", ALL, ids=lambda r: f"{r.name}-{list(asdict(r))}")


def outcome(rule: Rule, shown: Sight, label: np.ndarray | None = None) -> dict[str, np.ndarray]:
    seen = shown.seen()
    scores = np.asarray(rule.scores(seen))
    label = top(scores) if label is None else label
    direct = rule.is_direct(seen, label)
    return {
        "scores": scores,
        "label": label,
        "rewards": np.asarray(rule.pay(seen, label)),
        "weight": np.asarray(rule.weigh(seen, label)),
        "direct": np.zeros(label.shape, bool) if direct is None else np.asarray(direct),
    }


def close(got: np.ndarray, want: np.ndarray, name: str) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9, err_msg=name)


@every_rule
@checked(15)
@given(shown=sights(), seed=SEEDS)
def test_problems_in_another_order(rule: Rule, shown: Sight, seed: int):
    """SCOPE's one size is that of the batch, in whatever order it stands."""
    order = np.random.default_rng(seed).permutation(shown.answers.shape[0])
    one = outcome(rule, shown)
    two = outcome(rule, shown.rows(order))
    for name, value in one.items():
        close(two[name], value[order], name)


@every_rule
@checked(15)
@given(shown=sights(), seed=SEEDS)
def test_responses_in_another_order(rule: Rule, shown: Sight, seed: int):
    """Within the trained ones and within the rest, with all that was observed of them.

    Verdicts keep their order: they belong to questions, and which responses are asked about goes
    by place.
    """
    rng = np.random.default_rng(seed)
    K, V = shown.n_samples, shown.answers.shape[-1]
    order = np.concatenate([rng.permutation(K), K + rng.permutation(V - K)])
    held = {name: array[..., order] for name in BY_RESPONSE if (array := vars(shown)[name]).size}
    assert shown.similarity is not None
    similarity = shown.similarity[..., order[:K], :][..., order[:K]]
    one = outcome(rule, shown)
    two = outcome(rule, replace(shown, similarity=similarity, **held), one["label"])
    # As released, SCOPE's confidences meet answers by place.
    if asdict(rule).get("confidence") != "release":
        close(two["scores"], one["scores"], "scores")
    if rule.name not in BY_PLACE:
        close(two["rewards"], one["rewards"][..., order[:K]], "rewards")
        close(two["weight"], one["weight"], "weight")


@every_rule
@checked(15)
@given(shown=sights(), seed=SEEDS)
def test_answers_by_other_ids(rule: Rule, shown: Sight, seed: int):
    """Ids are names; SCOPE alone settles equal scores by them, which random ones never are."""
    A = shown.n_answers
    ids = np.random.default_rng(seed).permutation(A)
    # The last entry keeps -1, for unparseable responses and missing labels.
    new = np.append(ids, -1)
    prior = None if shown.prior is None else shown.prior[..., np.argsort(ids)]
    assert shown.second is not None
    renamed = replace(shown, answers=new[shown.answers], second=new[shown.second], prior=prior)
    one = outcome(rule, shown)
    two = outcome(rule, renamed, new[one["label"]])
    close(two["scores"][..., ids], one["scores"], "scores")
    for name in ("rewards", "weight", "direct"):
        close(two[name], one[name], name)


@every_rule
@checked(10)
@given(shown=sights(leading=(2, 3)))
def test_replicates_do_not_see_each_other(rule: Rule, shown: Sight):
    """SCOPE chooses one size per replicate."""
    together = outcome(rule, shown)
    for index in np.ndindex(2, 3):
        alone = replace(shown, **{name: array[index] for name, array in shown.arrays().items()})
        for name, value in outcome(rule, alone).items():
            close(together[name][index], value, name)


@every_rule
@checked(20)
@given(shown=sights(), seed=SEEDS)
def test_rewards_are_finite_whatever_is_observed(rule: Rule, shown: Sight, seed: int):
    rng = np.random.default_rng(seed)

    def spoiled(array: np.ndarray) -> np.ndarray:
        odd = rng.choice([np.nan, np.inf, -np.inf], size=array.shape)
        return np.where(rng.random(array.shape) < 0.4, odd, array)

    names = ("step_logprob", "entropy", "certainty", "similarity")
    shown = replace(shown, **{name: spoiled(vars(shown)[name]) for name in names})
    made = outcome(rule, shown)
    assert np.isfinite(made["rewards"]).all() and np.isfinite(made["scores"]).all()
    assert (made["scores"] >= 0).all()
    assert set(np.unique(made["weight"])) <= {0.0, 1.0}
    assert np.isfinite(rule.pay(shown.seen(), made["label"])).all()
    K = shown.n_samples
    assert made["rewards"].shape == (*shown.answers.shape[:-1], K)


@every_rule
def test_a_batch_of_silent_problems(rule: Rule):
    """No answer was ever given, so there is not even an id."""
    shown = sight(np.random.default_rng(1), n_answers=1)
    silent = replace(shown, answers=shown.answers * 0 - 1, second=shown.answers * 0 - 1)
    for n_answers in (1, 0):
        made = outcome(rule, replace(silent, n_answers=n_answers))
        assert (made["label"] == -1).all() and (made["scores"] == 0).all()
        assert np.isfinite(made["rewards"]).all()
        assert made["scores"].shape[-1] == 1
    if rule.has_label and rule.name not in ("mm_upt", "evol_rl", "scrl", "scrl_continuous"):
        assert (made["rewards"] == 0).all()


@every_rule
def test_a_batch_without_problems(rule: Rule):
    shown = sight(np.random.default_rng(1)).rows(np.zeros(0, int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means over the batch
        made = outcome(rule, shown)
    assert made["rewards"].shape == (0, shown.n_samples) and made["weight"].shape == (0,)


@every_rule
def test_narrow_and_unsigned_integers_are_read_as_wide_ones(rule: Rule):
    rng = np.random.default_rng(4)
    shown = replace(sight(rng, n_problems=12), n_answers=200)
    seen = shown.seen()
    counts, samples = (a.astype(np.uint8) for a in (seen.votes.counts, seen.votes.samples))
    votes = Votes(counts, samples, seen.votes.n_votes, seen.votes.n_samples)
    ids = {name: getattr(seen, name).astype(np.int8) for name in ("answers", "second")}
    narrow, label = replace(seen, votes=votes, **ids), top(rule.scores(seen))
    np.testing.assert_array_equal(rule.scores(narrow), rule.scores(seen))
    np.testing.assert_array_equal(rule.pay(narrow, label), rule.pay(seen, label))


@every_rule
def test_no_rule_can_see_the_truth(rule: Rule):
    secret = re.compile("truth|correct|gold|solution")
    assert not [field.name for field in fields(Observations) if secret.search(field.name)]
    for name in ("scores", "questions", "pay", "weigh", "is_direct", "n_draws"):
        taken = list(inspect.signature(getattr(rule, name)).parameters)
        assert taken in (["obs"], ["obs", "label"], ["n_votes", "n_samples"])
    assert not secret.search(" ".join(asdict(rule)))


@every_rule
def test_a_rule_says_what_it_is(rule: Rule):
    assert RULES[rule.name] is type(rule)
    assert rule.title and rule.__doc__
    assert type(rule).from_dict(asdict(rule)) == rule
    assert hash(rule) == hash(make_rule(rule.name, asdict(rule)))
    # What is not asked for is not read.
    shown = sight(np.random.default_rng(2))
    second = {"paraphrase", "teacher"}
    asked = {"second" if need in second else str(need) for need in rule.needs}
    kept = {"answers", "n_samples", "n_answers", "draws", *asked}
    hidden = {n: None for n in vars(shown) if n not in kept}
    same = outcome(rule, replace(shown, **hidden))
    for name, value in outcome(rule, shown).items():
        np.testing.assert_array_equal(same[name], value, err_msg=name)
