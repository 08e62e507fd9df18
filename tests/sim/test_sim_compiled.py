from dataclasses import replace

import numpy as np
from guard_histories import configs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guard_core import Draws, Guard, GuardConfig, Votes
from lab.trace.schema import DECIDED
from sim import SimConfig, simulate
from sim.engine.run import Simulation
from sim.world.sampling import PICK, SKIP, TIE, uniforms

KEY = ["replicate", "step", "epoch", "visit", "problem"]


@st.composite
def sim_configs(draw: st.DrawFn) -> SimConfig:
    n_votes = draw(st.integers(1, 40))
    return SimConfig(
        guard=draw(configs()).set(brake=1.0),  # a brake is the measured policy's alone
        labels=draw(st.sampled_from(["votes", "votes", "truth"])),
        n_problems=draw(st.integers(1, 30)),
        batch_size=draw(st.sampled_from([1, 2, 5, 8, 12, 30])),
        epochs=draw(st.integers(1, 8)),
        n_votes=n_votes,
        n_samples=draw(st.integers(1, n_votes)),
        n_answers=draw(st.integers(2, 12)),
        unparseable=draw(st.sampled_from([0.0, 0.0, 0.5])),
        replicates=draw(st.integers(1, 3)),
        vote_replicates=3,
        step=draw(st.sampled_from([0.0, 0.1, 0.5, 3.0])),
        seed=draw(st.integers(0, 2**31)),
    )


class Stepped(Simulation):
    """A simulation that compiles no epoch as a whole: TTRL as one of the rules, on arrays."""

    def is_plain(self) -> bool:
        return False


EAGER = GuardConfig().set(flip_rate="instant", tau_FR=0.0, minority_share=0.1, T_steady=20)
CONTESTED = SimConfig(
    guard=EAGER,
    labels="truth",
    population="point",
    ability_mean=0.4,
    **{"n_problems": 20, "epochs": 6, "n_votes": 16, "n_samples": 8, "n_answers": 3, "step": 0.5},
)
"""The true answer is often a minority candidate of a problem that MPS protects."""
SPARSE = replace(CONTESTED, guard=EAGER.set(advantage_scale="batch", W=1, theta_MR=0.0, p_skip=1.0))
"""Problems that are skipped leave the standard deviation of their batch."""


@given(sim_configs())
@example(CONTESTED)
@example(SPARSE)
@settings(max_examples=40, deadline=None)
def test_a_compiled_epoch_has_the_bits_of_rules_on_arrays(runs, config):
    whole, parts = Simulation(config), Stepped(config)
    tables, p_RNA = runs.finish(whole)
    others, other_RNA = runs.finish(parts)
    assert runs.differences(tables, others) == []
    assert p_RNA.tobytes() == other_RNA.tobytes()


@given(sim_configs())
@settings(max_examples=15, deadline=None)
def test_a_trace_holds_the_decisions_of_the_guard_on_its_votes(config):
    config = replace(config, n_samples=config.n_votes, labels="votes")
    trace, guard = simulate(config), Guard(config.guard)
    R, N, A = config.replicates, config.n_problems, config.n_answers
    counts = np.zeros((R, config.epochs + 1, N, A), np.int64)
    at = (trace.votes[name].to_numpy() for name in ("replicate", "visit", "problem", "answer"))
    counts[*at] = trace.votes["count"]
    assert (trace.votes["count"] > 0).all() and not trace.votes.duplicated([*KEY, "answer"]).any()
    parsed, unparseable = trace.votes.groupby(KEY)["count"].sum(), trace.visits.set_index(KEY)
    found = unparseable["n_unparseable"].add(parsed, fill_value=0)
    assert len(found) == len(trace.visits) and (found == config.n_votes).all()
    state = guard.init(N, leading=(R,), n_answers=A)
    for visit in range(config.epochs + 1):
        rows = trace.visits[trace.visits["visit"] == visit]
        order_RN = rows["problem"].to_numpy().reshape(R, N)
        drawn = [uniforms(config.seed, 0, R, what, visit, N) for what in (TIE, SKIP, PICK)]
        for start in range(0, N, config.batch_size):
            problems_RP = order_RN[:, start : start + config.batch_size]
            take = (np.arange(R)[:, None], problems_RP)
            votes_RPA = counts[:, visit][take]
            votes = Votes(votes_RPA, votes_RPA, config.n_votes, config.n_votes)
            seen, draws = state.take(problems_RP), Draws(*(u_RN[take] for u_RN in drawn))
            if visit == 0:
                state = state.put(problems_RP, guard.prime(seen, votes, draws))
                continue
            seen, decision = guard.step(seen, votes, draws)
            state = state.put(problems_RP, seen)
            for name, field in DECIDED.items():
                column = rows[name].to_numpy().reshape(R, N)[:, start : start + config.batch_size]
                assert (column == getattr(decision, field)).all(), name
