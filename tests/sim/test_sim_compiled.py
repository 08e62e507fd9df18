"""The compiled guard gives the bits of guard_core, whatever the settings, votes and draws."""

from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core import Draws, Guard, GuardConfig, Votes
from sim import SimConfig
from sim.engine.kernel import expected_samples, settings_record
from sim.engine.learner import CompiledGuard, ReferenceGuard
from sim.engine.rows import RECORD, Epoch
from sim.engine.simulation import Simulation

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
    if get_args(kind):
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return COUNT
    return ABOVE_0 if name in ("discount", "minority_reward") else UNIT


GUARDS = st.builds(
    GuardConfig,
    **{
        n: of_field(n, k)
        for n, k in get_type_hints(GuardConfig).items()
        if n not in ("GROUPS", "SHORT")
    },
)


@st.composite
def sim_configs(draw: st.DrawFn) -> SimConfig:
    n_votes = draw(st.integers(1, 40))
    return SimConfig(
        guard=draw(GUARDS),
        labels=draw(st.sampled_from(["votes", "votes", "truth"])),
        update=draw(st.sampled_from(["sampled", "sampled", "expected"])),
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


def drawn_votes(
    config: SimConfig, rng: np.random.Generator, favourite_RP: np.ndarray
) -> tuple[Votes, np.ndarray]:
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


@given(sim_configs(), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_every_decision_and_gradient_is_guard_cores(config, seed):
    rng = np.random.default_rng(seed)
    shape = (config.replicates, config.n_problems)
    guard = Guard(config.guard)
    state = guard.init(shape[1], np.empty(0), leading=shape[:1], n_answers=config.n_answers)
    favourite_RN = rng.integers(0, config.n_answers, shape)
    votes, _ = drawn_votes(config, rng, favourite_RN)
    state = guard.prime(state, votes, Draws(*(coarse(rng, shape) for _ in range(3))))
    pair = (ReferenceGuard(config, state), CompiledGuard(config, state))
    for _ in range(config.epochs):
        moved_RN = rng.random(shape) < 0.2
        favourite_RN = np.where(moved_RN, rng.integers(0, config.n_answers, shape), favourite_RN)
        order_RN = np.argsort(rng.random(shape), axis=1)
        truth_RN = rng.integers(0, config.n_answers, shape, np.int32)
        draws = Draws(*(coarse(rng, shape) for _ in range(3)))
        empty = (np.zeros(0), np.zeros(shape), np.zeros((0, *shape[1:], config.n_answers), int))
        epochs = [
            Epoch(1, order_RN, truth_RN, draws, np.zeros(shape, RECORD), *empty) for _ in pair
        ]
        for start in range(0, shape[1], config.batch_size):
            problems_RP = order_RN[:, start : start + config.batch_size]
            votes, p_RPA = drawn_votes(
                config, rng, np.take_along_axis(favourite_RN, problems_RP, axis=1)
            )
            trained_RPA = votes.samples
            if config.update == "expected":
                trained_RPA = expected_samples(p_RPA, 1 - config.unparseable, config.n_samples)
            one, two = (
                learner.step(epoch, start, votes, trained_RPA, p_RPA)
                for learner, epoch in zip(pair, epochs, strict=True)
            )
            assert (bits(one.gradient_RPA) == bits(two.gradient_RPA)).all()
            assert (one.drop_RP == two.drop_RP).all()
        for name in RECORD.names:
            first, second = (bits(epoch.records_RN[name]) for epoch in epochs)
            assert (first == second).all(), name


@given(sim_configs())
@settings(max_examples=10, deadline=None)
def test_both_engines_leave_the_same_trace(config):
    runs = [Simulation(replace(config, engine=name)).run() for name in ("reference", "compiled")]
    for one, two in zip(*runs, strict=True):
        for table in ("visits", "steps", "evals"):
            first, second = getattr(one, table), getattr(two, table)
            assert (first is None) == (second is None)
            for name in first or ():
                assert (bits(first[name]) == bits(second[name])).all(), name


def test_rules_are_those_of_the_settings():
    record = settings_record(GuardConfig.release(), 64, 32)[0]
    assert record["bonus"] and record["instant"] and not record["drop"]
    assert record["theta_MR"] == 0.7 and record["W"] == 5
