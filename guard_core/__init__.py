"""TTRL-Guard as pure functions on vote counts.

    guard = Guard(GuardConfig.paper())
    state = guard.init(n_problems)
    state = guard.prime(state, votes, draws)  # optional: votes drawn before training
    rows, decision = guard.step(state.take(problems), votes, draws)
    state = state.put(problems, rows)
    advantages = group_advantages(answers, decision, guard.config)
    majority, minority, weight, drop = policy_streams(*advantages, decision, guard.config)

The loss of a token is that of `PolicyStreams`, in the mean over the tokens of the problems that are
not dropped.
"""

from guard_core.advantages import (
    PolicyStreams,
    answer_advantages,
    group_advantages,
    policy_streams,
    standardise,
)
from guard_core.config import (
    FRS,
    MPS,
    RCSU,
    Advantages,
    Brake,
    ConfigError,
    GuardConfig,
    Labels,
    Margin,
    Rates,
)
from guard_core.decision import Decision, Route
from guard_core.guard import Guard
from guard_core.state import GuardState
from guard_core.votes import Draws, Votes, count_answers

__version__ = "0.1.0"
__all__ = [
    "FRS",
    "MPS",
    "RCSU",
    "Advantages",
    "Brake",
    "ConfigError",
    "Decision",
    "Draws",
    "Guard",
    "GuardConfig",
    "GuardState",
    "Labels",
    "Margin",
    "PolicyStreams",
    "Rates",
    "Route",
    "Votes",
    "answer_advantages",
    "count_answers",
    "group_advantages",
    "policy_streams",
    "standardise",
]
