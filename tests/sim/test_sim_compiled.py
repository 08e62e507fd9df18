"""The compiled guard gives the bits of guard_core, whatever the settings, votes and draws."""

from dataclasses import astuple, replace
from typing import Literal, get_args, get_origin

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from one_visit import gradient

from guard_core import Draws, Guard, GuardConfig, Votes
from guard_core.config import KINDS, USUAL
from guard_core.decision import Treatment
from lab.trace.schema import DECIDED
from sim import SimConfig
from sim.engine.kernel import expected_samples
from sim.engine.learner import GuardLearner
from sim.engine.rows import RECORD, Epoch

UNIT = st.one_of(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.6, 1]), st.floats(0, 1))
ABOVE_0 = st.one_of(st.sampled_from([0.1, 0.7, 1, 1.0]), st.floats(1e-3, 1))
COUNT = st.sampled_from([1, 2, 2, 3, 3, 5, 20])


def of_field(name: str, kind: object) -> st.SearchStrategy:
    if name == "brake":  # the measured policy's alone
        return st.just(1.0)
    if name == "margin_power":
        return st.sampled_from([0, 0, 1, 2, 8])
    if name == "min_share":  # a high one would skip nearly every visit
        return st.sampled_from([0.0, 0.0, 0.3, 0.6, 1.0])
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if type(USUAL[name]) is int:
        return COUNT
    return ABOVE_0 if name in ("discount", "minority_reward") else UNIT


GUARDS = st.fixed_dictionaries({name: of_field(name, kind) for name, kind in KINDS.items()}).map(
    GuardConfig.from_dict
)


@st.composite
def sim_configs(draw: st.DrawFn) -> SimConfig:
    n_votes = draw(st.integers(1, 40))
    return SimConfig(
        guard=draw(GUARDS),
        labels=draw(st.sampled_from(["votes", "votes", "truth"])),
        update=draw(st.sampled_from(["sampled", "sampled", "expected"])),
        treatment=draw(st.sampled_from(["own", "own", "permuted"])),
        n_problems=draw(st.integers(1, 30)),
        batch_size=draw(st.sampled_from([1, 2, 5, 8, 12, 30])),
        epochs=draw(st.integers(1, 14)),
        n_votes=n_votes,
        n_samples=draw(st.integers(1, n_votes)),
        n_answers=draw(st.integers(2, 12)),
        unparseable=draw(st.sampled_from([0.0, 0.0, 0.5])),
        replicates=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**31)),
    )


def bits(array: np.ndarray) -> np.ndarray:
    """Content of an array, where -0.0 differs from 0.0 and nan equals itself."""
    return np.ascontiguousarray(array).view(np.uint8)


def coarse(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers of which many are equal, 0 or just below 1."""
    return np.minimum(rng.integers(0, 5, shape) / 4, 1 - 2.0**-53)


def drawn_votes(config, rng, favourite_RP):
    """Votes with a favourite answer per problem, and the probabilities they come from.

    Problems are quiet, contested and tied in turn, so that every state of the guard comes up.
    """
    shape = favourite_RP.shape
    law_A = np.full(config.n_answers, rng.choice([0.1, 1.0, 50.0]))
    lead_RP1 = rng.choice([0.0, 0.5, 0.9, 1.0], (*shape, 1))
    is_favourite_RPA = np.arange(config.n_answers) == favourite_RP[..., None]
    p_RPA = (1 - lead_RP1) * rng.dirichlet(law_A, shape) + lead_RP1 * is_favourite_RPA
    whole_RPA = np.append((1 - config.unparseable) * p_RPA, np.full((*shape, 1), 0.0), axis=2)
    whole_RPA[..., -1] = 1 - whole_RPA[..., :-1].sum(axis=2)
    whole_RPA = np.clip(whole_RPA, 0, 1)
    K, V = config.n_samples, config.n_votes
    samples_RPA = rng.multinomial(K, whole_RPA)[..., :-1]
    counts_RPA = samples_RPA + rng.multinomial(V - K, whole_RPA)[..., :-1]
    return Votes(np.ascontiguousarray(counts_RPA), np.ascontiguousarray(samples_RPA), V, K), p_RPA


class Uncompiled:
    """`GuardLearner` by the law as guard_core runs it, on Python's numbers."""

    def __init__(self, config: SimConfig, votes: Votes, draws: Draws) -> None:
        self.config, self.guard = config, Guard(config.guard)
        shape = {"leading": (config.replicates,), "n_answers": config.n_answers}
        self.state = self.guard.init(config.n_problems, **shape)
        _, self.first = self.guard.step(self.state, votes, draws)
        self.state = self.guard.prime(self.state, votes, draws)

    def decide(self, epoch, at, votes, scores_RPA):
        problems_RP = epoch.problems_RN[:, at]

        def own(of_problem_RN: np.ndarray) -> np.ndarray:
            return np.take_along_axis(of_problem_RN, problems_RP, axis=1)

        draws = Draws(*map(own, (epoch.draws.tie, epoch.draws.skip, epoch.draws.pick)))
        rows = self.state.take(problems_RP)
        rows, decision = self.guard.step(rows, votes, draws, scores_RPA)
        self.state = self.state.put(problems_RP, rows)
        if epoch.deal_RN is None:
            return decision
        return decision.treated(*Treatment.of(decision).permuted(problems_RP, own(epoch.deal_RN)))


@given(sim_configs(), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_every_decision_and_gradient_is_guard_cores(config, scored, seed):
    rng = np.random.default_rng(seed)
    shape = (config.replicates, config.n_problems)

    def visits(number: int) -> Epoch:
        order_RN = np.argsort(rng.random(shape), axis=1) if number else np.indices(shape)[1]
        truth_RN = rng.integers(0, config.n_answers, shape, np.int32)
        draws = Draws(*(coarse(rng, shape) for _ in range(3)))
        empty = (np.zeros(0), np.zeros(shape), np.zeros((0, *shape[1:], config.n_answers), int))
        deal_RN = rng.random(shape) if config.treatment == "permuted" else None
        return Epoch(number, order_RN, truth_RN, draws, np.zeros(shape, RECORD), *empty, deal_RN)

    favourite_RN = rng.integers(0, config.n_answers, shape)
    votes, _ = drawn_votes(config, rng, favourite_RN)
    before = visits(0)
    compiled = GuardLearner(config, before, votes, None)
    plain = Uncompiled(config, votes, before.draws)
    for name, field in (("label", "label"), ("tie", "tied"), ("match_rate", "match_rate")):
        assert (before.records_RN[name] == getattr(plain.first, field)).all()
    for number in range(1, config.epochs + 1):
        moved_RN = rng.random(shape) < 0.2
        favourite_RN = np.where(moved_RN, rng.integers(0, config.n_answers, shape), favourite_RN)
        epoch = visits(number)
        for start in range(0, shape[1], config.batch_size):
            at = slice(start, start + config.batch_size)
            favourite_RP = np.take_along_axis(favourite_RN, epoch.problems_RN[:, at], axis=1)
            votes, p_RPA = drawn_votes(config, rng, favourite_RP)
            scores_RPA = coarse(rng, p_RPA.shape) if scored else None
            wanted = plain.decide(epoch, at, votes, scores_RPA)
            if scored:
                decision = compiled.decide(epoch, start, votes, scores_RPA)
                if config.labels == "truth":  # which the compiled minority does not hold
                    truth_RP = epoch.truth_RN[:, at]
                    wanted, decision = (d.trained_on(truth_RP) for d in (wanted, decision))
                for one, two in zip(astuple(wanted), astuple(decision), strict=True):
                    assert (np.asarray(one) == two).all()
                continue
            trained_RPA = votes.samples
            if config.update == "expected":
                trained_RPA = expected_samples(p_RPA, 1 - config.unparseable, config.n_samples)
            update = compiled.step(epoch, start, votes, trained_RPA, p_RPA)
            for name, field in DECIDED.items():
                found = epoch.records_RN[name][:, at]
                assert (bits(found) == bits(getattr(wanted, field).astype(found.dtype))).all(), name
            n_minority = wanted.minority.sum(axis=-1)
            assert (epoch.records_RN["n_minority"][:, at] == n_minority).all()
            if config.labels == "truth":
                wanted = wanted.trained_on(epoch.truth_RN[:, at])
            trained = replace(votes, samples=trained_RPA)
            gradient_RPA = gradient(trained, wanted, p_RPA, config.guard)
            assert (bits(update.gradient_RPA) == bits(gradient_RPA)).all()
            assert (
                update.drop_RP == (wanted.skip & (config.guard.advantages.skip_by == "drop"))
            ).all()
