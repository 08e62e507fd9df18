"""The columns of a trace, defined once: name, dtype, unit and meaning.

Both worlds write the same three tables; `votes` is there where a run keeps it, and `answers` where
its answers are texts. Counting starts at 1: step 0, epoch 0 and visit 0 are the votes and the
evaluation before training.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guard_core.decision import Route

SCHEMA_VERSION = 1
"""Raised when a reader of the old schema would misread a folder of the new one."""

MOST = 10_000_000
"""Largest integer that a reader takes, so that replicate, problem and visit make one 64-bit key."""
_ROUNDING = 1e-6

PassAt = Literal[2, 4, 8, 16, 32, 64, 128, 256]
"""k of the pass@k columns of the evaluations."""

Table = Literal["visits", "steps", "evals", "votes", "answers"]
Columns = Mapping[str, ArrayLike]
"""Column name to one value per row, or one value for all rows of the call."""
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    dtype: str
    unit: str
    meaning: str
    required: bool = True
    needs_truth: bool = False
    """Computed from the true answer, which no guard may see."""
    low: int = 0
    """Least value of an integer."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value that a reader takes, NaN apart."""
        if np.dtype(self.dtype).kind == "i":
            return self.low, MOST
        return (0.0, 1.0 + _ROUNDING) if self.unit.startswith("share") else (-np.inf, np.inf)


def _measured(name: str, unit: str, meaning: str, *, needs_truth: bool = False) -> Column:
    """Return an optional column of numbers."""
    return Column(name, "float64", unit, meaning, required=False, needs_truth=needs_truth)


_REPLICATE = Column("replicate", "int16", "index", "replicate of the run, one seed each")
_STEP = Column("step", "int32", "batches", "batch of the run, the first is 1; 0 before training")
_EPOCH = Column("epoch", "int32", "passes", "pass over the problems, from 1; 0 before training")

VISITS = (
    _REPLICATE,
    _STEP,
    _EPOCH,
    Column("visit", "int32", "visits", "visit of this problem, the first is 1; 0 before training"),
    Column("problem", "int32", "index", "problem, 0 to N-1"),
    Column("n_votes", "int32", "responses", "votes drawn, unparseable ones included"),
    Column("n_unparseable", "int32", "responses", "responses without an answer"),
    Column("label", "int32", "answer id", "pseudo-label, -1 for none yet", low=-1),
    Column("flipped", "bool", "", "the label changed since the visit before"),
    Column("tie", "bool", "", "several answers shared the first place"),
    Column("match_rate", "float64", "share of votes", "MR: votes that the label got"),
    Column("flip_rate", "float64", "share of visits", "FR of the problem over its last W visits"),
    Column("mean_match_rate", "float64", "share of votes", "mean MR over the last W visits"),
    Column("had_competition", "bool", "", "the flip rate once exceeded tau_FR"),
    Column("route", "int8", "code", "route taken, see ROUTES"),
    Column("weight", "float64", "factor", "weight of the problem's loss, by FRS and the margin"),
    Column("beta", "float64", "share of loss", "share of the minority loss"),
    Column("n_minority", "int16", "answers", "minority candidates"),
    Column("skipped", "bool", "", "the problem sat this step out"),
    Column(
        "label_accuracy",
        "float64",
        "share of votes",
        "LA: votes equal to the true answer; NaN where no true answer is known",
        needs_truth=True,
    ),
    Column("label_correct", "bool", "", "the label is the true answer", needs_truth=True),
    Column(
        "correct_competitive",
        "bool",
        "",
        "the true answer holds at least a quarter of the votes",
        needs_truth=True,
    ),
)

STEPS = (
    _REPLICATE,
    _STEP,
    _EPOCH,
    Column("lr", "float64", "per step", "learning rate or logit step, any factor included"),
    Column(
        "update_norm",
        "float64",
        "L2 norm",
        "mean over the batch's scheduled optimizer steps of the norm of the parameter (real) or"
        " logit (sim) change; a step left out counts as 0",
    ),
    Column("n_problems", "int32", "problems", "problems in the batch"),
    Column("n_skipped", "int32", "problems", "problems of the batch that sat out"),
    _measured("loss", "nats", "mean policy loss"),
    _measured("grad_norm", "L2 norm", "mean norm before clipping"),
    _measured("clip_fraction", "share of tokens", "tokens at the clip"),
    _measured(
        "entropy",
        "nats per token",
        "mean entropy of the distributions that the votes' tokens were drawn from; minus the "
        "tokens' mean log-prob, an unbiased estimate, where the engine gives no entropies",
    ),
    _measured("kl", "nats per token", "divergence from the sampler"),
    _measured("mismatch_kl", "nats per token", "KL(engine || trainer)"),
    _measured("tis_weight", "factor", "mean truncated importance weight, where there is a cap"),
    _measured("masked", "share of responses", "outliers that its mask left out of the loss"),
    _measured("tokens", "tokens", "response tokens trained on"),
    _measured("tokens_sampled", "tokens", "response tokens sampled"),
    _measured("n_uniform", "problems", "groups with equal rewards"),
    _measured("n_unread", "problems", "problems without an answer in any vote"),
    _measured(
        "n_gen_batches",
        "batches",
        "sampled batches whose problems the update chose from; 0 where they wait for further ones",
    ),
    _measured("n_trained", "problems", "problems in the update, those that waited included"),
    _measured("n_updates", "steps", "optimizer steps made"),
    _measured("n_refused", "steps", "steps with a number not finite"),
    _measured(
        "n_left_out",
        "tokens",
        "response tokens outside of the loss because a log-prob was not finite",
    ),
    _measured("mean_length", "tokens", "mean response length"),
    _measured("truncated", "share of responses", "votes cut at `max_response_tokens`"),
    _measured("majority_ratio", "share of votes", "mean match rate of the batch's labels"),
    _measured(
        "reward",
        "share of samples",
        "mean reward of the batch's K samples a problem; NaN for rules that pay otherwise than 1 "
        "to the label",
    ),
    _measured(
        "label_correct",
        "share of problems",
        "problems of the batch whose label is the true answer; NaN where none is known",
        needs_truth=True,
    ),
    _measured(
        "reward_correct",
        "share of samples",
        "rewards of the batch's K samples a problem that the true answer would give, too; NaN "
        "where none is known",
        needs_truth=True,
    ),
    _measured(
        "staleness",
        "batches",
        "updates of batches between the weights that drew the votes and those that they train; 0 "
        "where the column is missing",
    ),
    _measured(
        "seconds_rollout",
        "s",
        "time to sample the responses; with votes sampled ahead, time to wait for those of the "
        "next batch",
    ),
    _measured(
        "seconds_ahead",
        "s",
        "time to sample the votes while the batch before was trained on; no part of this step",
    ),
    _measured(
        "seconds_further",
        "s",
        "time to sample responses other than the votes, which a rule asks for",
    ),
    _measured(
        "seconds_grade",
        "s",
        "time to read the answers, and to observe what a rule reads of the responses",
    ),
    _measured("seconds_guard", "s", "time of the guard"),
    _measured("seconds_update", "s", "time of forward, backward, step"),
    _measured("seconds_sync", "s", "time to hand over the weights"),
    _measured(
        "seconds_sync_copy",
        "s",
        "part of `seconds_sync`: the trainer's, to gather and copy them for an engine's process",
    ),
    _measured(
        "seconds_sync_load",
        "s",
        "part of `seconds_sync`: until the engine's process has loaded them",
    ),
    _measured("seconds_step", "s", "time of the whole step"),
    _measured(
        "sampled_per_second",
        "tokens per s",
        "response tokens sampled by the time to sample them",
    ),
    _measured(
        "trained_per_second",
        "tokens per s",
        "response tokens trained on by the time of the update",
    ),
    _measured(
        "gpu_memory_gb",
        "GB",
        "most memory of the first GPU that torch held for the trainer's tensors in the step",
    ),
    _measured(
        "tokens_per_gpu_second",
        "tokens per s",
        "response tokens sampled by the time of the whole step, of each of the trainer's GPUs",
    ),
    _measured(
        "share_of_peak",
        "share of peak",
        "operations that the update's products with weights need, by what the GPUs could do in "
        "its time in bfloat16; NaN for a GPU whose peak is not known",
    ),
)

EVALS = (
    _REPLICATE,
    _STEP,
    _EPOCH,
    Column("pass_at_1", "float64", "share", "chance that one response is right", needs_truth=True),
    Column(
        "maj_accuracy",
        "float64",
        "share of problems",
        "problems whose majority of V votes after the step is right, a tie counting by its chance "
        "and no answer as wrong; measured before and after training, NaN where not measured",
        needs_truth=True,
    ),
    Column("n_responses", "float64", "responses", "responses drawn per problem", required=False),
    *(
        Column(
            f"pass_at_{k}",
            "float64",
            "share of problems",
            f"chance that one of {k} responses is right, unbiased; NaN where fewer were drawn",
            required=False,
            needs_truth=True,
        )
        for k in get_args(PassAt)
    ),
    *(
        Column(f"{kind}_pass_at_1", "float64", "share", meaning, required=False, needs_truth=True)
        for kind, meaning in (
            ("strict", "the same by the last box alone"),
            ("flexible", "the same with the last number where there is no box"),
            ("held_out", "the same as `pass_at_1` for problems that are not trained on"),
        )
    ),
)

VOTES = (
    *VISITS[:5],
    Column("answer", "int32", "answer id", "an answer that somebody gave, stable over the run"),
    Column("count", "int32", "votes", "votes that it got at this visit, at least 1"),
)
"""Sparse: only answers with a vote; unparseable responses are counted in the visits."""

ANSWERS = (
    *VISITS[:5],
    Column("answer", "int32", "answer id", "an answer of `votes`, at the visit that gave it first"),
    Column("text", "str", "", "its canonical writing, as a response gave it first"),
)
"""Each answer of a problem once, if votes are kept and answers are texts."""

TABLES: dict[Table, tuple[Column, ...]] = {
    "visits": VISITS,
    "steps": STEPS,
    "evals": EVALS,
    "votes": VOTES,
    "answers": ANSWERS,
}

ROUTES: dict[int, str] = {
    Route.STABLE: "Stable",
    Route.AT_RISK: "At risk",
    Route.HIGH_RISK: "High risk",
    Route.SKIPPED: "Skipped",
}
"""Route code to the name shown to readers."""


@cache
def names(table: Table, *, required: bool = False) -> tuple[str, ...]:
    """Column names in order; with `required`, only those that every row has."""
    return tuple(c.name for c in TABLES[table] if c.required or not required)


def missing(table: Table, columns: Container[str]) -> list[str]:
    """Required columns that are not among `columns`."""
    return [name for name in names(table, required=True) if name not in columns]
