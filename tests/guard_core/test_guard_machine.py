"""A stateful test: any order of visits, silent visits, discarded steps and new answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from guard_histories import arrays, checked, configs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scalar_guard import ScalarGuard, Visit

from guard_core import Draws, Guard, GuardConfig, Votes, count_answers

N_PROBLEMS = 5

batches = st.lists(st.integers(0, N_PROBLEMS - 1), min_size=1, max_size=N_PROBLEMS, unique=True)
seeds = st.integers(0, 2**32 - 1)


class GuardMachine(RuleBasedStateMachine):
    """The guard against the scalar reference, which gets the same votes and draws."""

    @initialize(config=st.one_of(st.just(GuardConfig.paper()), configs()))
    def begin(self, config: GuardConfig) -> None:
        self.config = config
        self.guard = Guard(config)
        self.reference = ScalarGuard(config)
        self.state = self.guard.init(N_PROBLEMS, np.zeros(0))
        self.n_answers = 1
        self.fresh = True
        self.contested: set[int] = set()

    @precondition(lambda self: self.fresh)
    @rule(seed=seeds)
    def prime(self, seed: int) -> None:
        votes, draws, visits = self.vote(list(range(N_PROBLEMS)), seed, None)
        self.state = self.guard.prime(self.state, votes, draws)
        self.reference.prime(visits)
        self.fresh = False

    @rule(batch=batches, seed=seeds)
    def visit(self, batch: list[int], seed: int) -> None:
        self.step(batch, seed, None)

    @rule(batch=batches, answers=st.lists(st.integers(-1, 6), min_size=1, max_size=8))
    def visit_by_hand(self, batch: list[int], answers: list[int]) -> None:
        self.n_answers = max(self.n_answers, max(answers) + 1)
        self.step(batch, 0, answers)

    @rule(batch=batches, seed=seeds, times=st.integers(2, 7))
    def agree(self, batch: list[int], seed: int, times: int) -> None:
        """Consensus for a while, so that locks, C2 and skips come about."""
        answer = seed % self.n_answers
        for place in range(times):
            self.step(batch, seed + place, [answer] * 7 + [-1])

    @rule(batch=batches, seed=seeds)
    def fall_silent(self, batch: list[int], seed: int) -> None:
        self.step(batch, seed, [-1])

    @rule()
    def meet_a_new_answer(self) -> None:
        self.n_answers = min(self.n_answers + 1, 7)

    @rule(batch=batches, seed=seeds)
    def try_and_discard(self, batch: list[int], seed: int) -> None:
        """A step whose rows are not put back leaves no trace."""
        before = arrays(self.state)
        votes, draws, _ = self.vote(batch, seed, None)
        self.guard.step(self.state.take(np.array(batch)), votes, draws)
        for name, value in arrays(self.state).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)

    def step(self, batch: list[int], seed: int, answers: list[int] | None) -> None:
        self.fresh = False
        votes, draws, visits = self.vote(batch, seed, answers)
        problems = np.array(batch)
        rows, decision = self.guard.step(self.state.take(problems), votes, draws)
        self.state = self.state.put(problems, rows)
        verdicts = self.reference.step(visits)
        got = arrays(decision)
        for place, verdict in enumerate(verdicts):
            self.compare({name: value[place] for name, value in got.items()}, verdict)
        self.contested |= {p for p, v in zip(batch, verdicts, strict=True) if v.had_competition}

    def vote(
        self, batch: list[int], seed: int, answers: list[int] | None
    ) -> tuple[Votes, Draws, list[Visit]]:
        rng = np.random.default_rng(seed)
        n_votes = int(rng.choice([4, 8, 16]))
        n_samples = n_votes - int(rng.integers(0, 3))
        ids = rng.integers(-1, self.n_answers, size=(len(batch), n_votes))
        if answers is not None:
            ids[:] = np.resize(answers, n_votes)
        kept = ids[:, :n_samples]
        counts, samples = (count_answers(values, self.n_answers) for values in (ids, kept))
        tie, skip, pick = rng.integers(0, 256, size=(3, len(batch))) / 256
        visits = [
            Visit(problem, ids[place].tolist(), n_samples, tie[place], skip[place], pick[place])
            for place, problem in enumerate(batch)
        ]
        return Votes(counts, samples, n_votes, n_samples), Draws(tie, skip, pick), visits

    def compare(self, got: dict[str, Any], want: Any) -> None:
        for name in ("label", "flipped", "tied", "visits", "route", "had_competition"):
            assert got[name] == getattr(want, name), name
        assert (got["high_risk"], got["skip"]) == (want.high_risk, want.skipped)
        for name in ("match_rate", "flip_rate", "mean_match_rate", "weight", "beta"):
            assert got[name] == getattr(want, name), name
        marked = [a for a, candidate in enumerate(want.minority) if candidate]
        assert np.flatnonzero(got["minority"]).tolist() == marked

    @invariant()
    def the_whole_state_is_the_references(self) -> None:
        state = arrays(self.state)
        for problem in range(N_PROBLEMS):
            known = self.reference.problems.get(problem)
            if known is None:
                assert (state["label"][problem], state["visits"][problem]) == (-1, 0)
                continue
            for name in ("label", "visits", "c2_fired", "steady", "mps_active"):
                assert state[name][problem] == getattr(known, name), name
            assert known.c2_fired <= self.config.W
            assert state["had_competition"][problem] == (problem in self.contested)
            self.compare_memory(state["memory"][problem], problem)

    def compare_memory(self, memory: np.ndarray, problem: int) -> None:
        if self.config.label_from != "memory":
            assert memory.size == 0
            return
        known = self.reference.problems[problem].memory
        assert memory.tolist() == known[: len(memory)] and not any(known[len(memory) :])


TestGuardMachine = GuardMachine.TestCase
TestGuardMachine.settings = settings(checked(40), stateful_step_count=20)
