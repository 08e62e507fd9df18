"""The columns of a trace, defined once, the check of rows by them, and a visit's columns.

Both worlds write the same three tables; `votes` is there where a run keeps it, and `answers` where
its answers are texts. Step, epoch and visit 0 are the votes and the evaluation before training.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guard_core.decision import DECIDED, Decision, Route
from guard_core.votes import Votes

if TYPE_CHECKING:
    import pandas as pd

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


def _number(name: str, unit: str, meaning: str, **kind: bool) -> Column:
    return Column(name, "float64", unit, meaning, **kind)


_measured = partial(_number, required=False)
_true = partial(_number, required=False, needs_truth=True)

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
    _number("match_rate", "share of votes", "MR: votes that the label got"),
    _number("flip_rate", "share of visits", "FR of the problem over its last W visits"),
    _number("mean_match_rate", "share of votes", "mean MR over the last W visits"),
    Column("had_competition", "bool", "", "the flip rate once exceeded tau_FR"),
    Column("route", "int8", "code", "route taken, see ROUTES"),
    _number("weight", "factor", "weight of the problem's loss, by FRS and the margin"),
    _number("beta", "share of loss", "share of the minority loss"),
    Column("n_minority", "int16", "answers", "minority candidates"),
    Column("skipped", "bool", "", "the problem sat this step out"),
    _true(
        "label_accuracy", "share of votes", "LA: votes for the true answer, or NaN", required=True
    ),
    Column("label_correct", "bool", "", "the label is the true answer", needs_truth=True),
    Column("correct_competitive", "bool", "", "LA is at least a quarter", needs_truth=True),
)

STEPS = (
    _REPLICATE,
    _STEP,
    _EPOCH,
    _number("lr", "per step", "learning rate or logit step, any factor included"),
    _number(
        "update_norm",
        "L2 norm",
        "mean over the batch's scheduled optimizer steps of the norm of the parameter (real) or"
        " logit (sim) change; a step left out counts as 0",
    ),
    Column("n_problems", "int32", "problems", "problems in the batch"),
    Column("n_skipped", "int32", "problems", "problems of the batch that sat out"),
    _measured("loss", "nats", "mean loss, the KL term included"),
    _measured("grad_norm", "L2 norm", "mean norm before clipping"),
    _measured("clip_fraction", "share of tokens", "tokens at the clip"),
    _measured(
        "entropy",
        "nats per token",
        "mean entropy of the distributions that the votes' tokens were drawn from; minus the "
        "tokens' mean log-prob, an unbiased estimate, where the engine gives no entropies",
    ),
    _measured("kl", "nats per token", "divergence from the start model, with kl_coef > 0"),
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
    _measured("n_left_out", "tokens", "response tokens left out for a log-prob that is not finite"),
    _measured("mean_length", "tokens", "mean response length"),
    _measured("truncated", "share of responses", "votes cut at `max_response_tokens`"),
    _measured("majority_ratio", "share of votes", "mean match rate of the batch's labels"),
    _measured("repeated", "share of votes", "boxes with a formula of the question"),
    _measured("n_labels", "answers", "different labels over all problems"),
    _measured(
        "reward",
        "share of samples",
        "mean reward of the batch's K samples a problem; NaN for rules that pay otherwise than 1 "
        "to the label",
    ),
    _true("label_correct", "share of problems", "true labels of the batch; NaN where unknown"),
    _true("reward_correct", "share of samples", "rewards that the true answer would give, too"),
    _measured("staleness", "batches", "batches trained on since the votes were drawn; 0 if absent"),
    _measured("seconds_rollout", "s", "time to sample the responses, or to wait for early ones"),
    _measured(
        "seconds_ahead",
        "s",
        "time to sample the votes while the batch before was trained on; no part of this step",
    ),
    _measured("seconds_further", "s", "time to sample further responses, which a rule asks for"),
    _measured("seconds_grade", "s", "time to read the answers and what a rule observes"),
    _measured("seconds_guard", "s", "time of the guard"),
    _measured("seconds_update", "s", "time of forward, backward, step"),
    _measured("seconds_sync", "s", "time to hand over the weights"),
    _measured("seconds_sync_copy", "s", "part of `seconds_sync`: to gather and copy them"),
    _measured("seconds_sync_load", "s", "part of `seconds_sync`: until the engine has loaded them"),
    _measured("seconds_step", "s", "time of the whole step"),
    _measured("sampled_per_second", "tokens per s", "tokens sampled by the time to sample them"),
    _measured("trained_per_second", "tokens per s", "tokens trained on by the time of the update"),
    _measured("gpu_memory_gb", "GB", "most memory of the first GPU that torch held in the step"),
    _measured("tokens_per_gpu_second", "tokens per s", "tokens sampled by `seconds_step`, per GPU"),
    _measured(
        "share_of_peak",
        "factor",
        "operations that the update's products with weights need, by what the GPUs could do in "
        "its time in bfloat16, by its data sheet or else by a product of large matrices",
    ),
)

EVALS = (
    _REPLICATE,
    _STEP,
    _EPOCH,
    _true("pass_at_1", "share", "chance that one response is right", required=True),
    _true(
        "maj_accuracy",
        "share of problems",
        "problems whose majority of V votes after the step is right, a tie counting by its chance "
        "and no answer as wrong; measured before and after training, NaN where not measured",
        required=True,
    ),
    _measured("n_responses", "responses", "responses drawn per problem"),
    *(
        _true(
            f"pass_at_{k}",
            "share of problems",
            f"chance that one of {k} responses is right, unbiased; NaN where fewer were drawn",
        )
        for k in get_args(PassAt)
    ),
    _true("strict_pass_at_1", "share", "the same by the last box alone"),
    _true("flexible_pass_at_1", "share", "the same with the last number where there is no box"),
    _true("held_out_pass_at_1", "share", "the same as `pass_at_1` for problems not trained on"),
    _true("held_out_maj_accuracy", "share of problems", "the same as `maj_accuracy` for these"),
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
_BEFORE_TRAINING = {
    **dict.fromkeys(("flipped", "had_competition", "skipped"), False),
    **dict.fromkeys(("flip_rate", "route", "beta", "n_minority"), 0),
    "mean_match_rate": np.nan,
    "weight": 1.0,
}
"""Values of visit 0, at which the guard takes no decision yet."""
COMPETITIVE_SHARE = 0.25
"""The true answer is competitive while it holds at least this share of the votes."""


@cache
def names(table: Table, *, required: bool = False) -> tuple[str, ...]:
    """Column names in order; with `required`, only those that every row has."""
    return tuple(c.name for c in TABLES[table] if c.required or not required)


def missing(table: Table, columns: Container[str]) -> list[str]:
    """Required columns that are not among `columns`."""
    return [name for name in names(table, required=True) if name not in columns]


def record_dtype(*more: tuple[str, type[np.generic]]) -> np.dtype[np.void]:
    """Record type of one visit: more fields, `n_unparseable`, `n_minority`, those of `DECIDED`.

    The largest come first, so that records are aligned without gaps.
    """
    needed = {"n_unparseable", "n_minority", *DECIDED}
    fields = [*more, *((c.name, np.dtype(c.dtype)) for c in VISITS if c.name in needed)]
    fields.sort(key=lambda field: -np.dtype(field[1]).itemsize)
    return np.dtype(fields, align=True)


def visit_columns(
    decision: Decision,
    votes: Votes,
    truth: ArrayLike,
    known: ArrayLike = True,
    *,
    before_training: bool = False,
) -> dict[str, Any]:
    """Columns of visits but those that number the visit, (..., P) each or a value for all rows.

    Args:
        decision: of (..., P) problems, as NumPy arrays.
        votes: counts (..., P, A).
        truth: (..., P) ids of the true answers; negative where no response has given it.
        known: (..., P) bool; False where the problem has no true answer.
        before_training: the votes are those of visit 0.
    """
    counts, truth_P = np.asarray(votes.counts), np.asarray(truth)
    given_P, label_P = truth_P >= 0, np.asarray(decision.label)
    at_truth_P = np.take_along_axis(counts, np.maximum(truth_P, 0)[..., None], axis=-1)[..., 0]
    n_right_P = np.where(given_P, at_truth_P, 0)
    right = truth_columns(n_right_P, votes.n_votes, given_P & (label_P == truth_P))
    unknown = {name: np.nan if c.dtype.kind == "f" else False for name, c in right.items()}
    return {
        "n_votes": votes.n_votes,
        "n_unparseable": votes.n_votes - counts.sum(axis=-1),
        "n_minority": np.asarray(decision.minority).sum(axis=-1),
        **{name: getattr(decision, field) for name, field in DECIDED.items()},
        **(_BEFORE_TRAINING if before_training else {}),
        **{name: np.where(known, column, unknown[name]) for name, column in right.items()},
    }


def truth_columns(
    n_right: NDArray[np.integer], n_votes: int, label_correct: NDArray[np.bool_]
) -> dict[str, NDArray[np.generic]]:
    """Columns that need the true answer, of `n_right` votes for it."""
    share = n_right / n_votes
    return {
        "label_accuracy": share,
        "label_correct": label_correct,
        "correct_competitive": share >= COMPETITIVE_SHARE,
    }


def checked(table: Table, columns: Columns) -> Arrays:
    """The rows of one call in the schema's dtypes and order, views of `columns` where these fit.

    A ValueError where a column is missing, unknown, of a wrong kind or length, or out of range.
    """
    kinds = _dtypes(table, frozenset(columns))
    rows = {name: np.asarray(columns[name]) for name in kinds}
    if deep := [name for name, values in rows.items() if values.ndim > 1]:
        shape = rows[deep[0]].shape
        raise ValueError(f"{table}: {deep[0]}: shape {shape}, must be one-dimensional")
    lengths = sorted({len(values) for values in rows.values() if values.ndim})
    if len(lengths) > 1:
        raise ValueError(f"{table}: columns of different lengths {lengths}")
    n_rows = lengths[0] if lengths else 1
    for name, wanted in kinds.items():
        _check_cast(f"{table}: {name}", rows[name], wanted)
        values = rows[name].astype(wanted, copy=False)
        rows[name] = values if values.ndim else np.broadcast_to(values, n_rows)
    _check_start(table, rows)
    return rows


def check_values(table: Table, rows: pd.DataFrame) -> None:
    """Refuse rows, in the schema's types, with values that no run writes (ValueError)."""
    if rows.empty:
        return
    for column in TABLES[table]:
        is_integer = np.dtype(column.dtype).kind == "i"
        if column.name in rows and (is_integer or column.unit.startswith("share")):
            low, high = (column.low, MOST) if is_integer else (0.0, 1.0 + _ROUNDING)
            values = rows[column.name].to_numpy()
            least, most = np.fmin.reduce(values), np.fmax.reduce(values)
            if least < low or most > high:
                raise ValueError(f"{column.name} has a value of {least if least < low else most:g}")


@cache
def _dtypes(table: Table, given: frozenset[str]) -> dict[str, np.dtype]:
    if lacking := missing(table, given):
        raise ValueError(f"{table}: missing columns {', '.join(lacking)}")
    if unknown := sorted(given - set(names(table))):
        raise ValueError(f"{table}: {', '.join(unknown)}: not in the schema (lab/trace/schema.py)")
    return {c.name: np.dtype(c.dtype) for c in TABLES[table] if c.name in given}


def _check_cast(where: str, values: NDArray[np.generic], wanted: np.dtype) -> None:
    fits = {"b": "b", "i": "iu", "f": "iuf", "U": "U"}[wanted.kind]
    if values.dtype.kind not in fits:
        raise ValueError(f"{where}: {values.dtype}, must be {wanted}")
    if wanted.kind == "i" and values.size and not np.can_cast(values.dtype, wanted):
        limits = np.iinfo(wanted)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise ValueError(f"{where}: value outside {wanted}")


def _check_start(table: Table, rows: Arrays) -> None:
    """Step, epoch and visit are 0 together, before training, and only there."""
    places = [name for name in ("step", "epoch", "visit") if name in rows]
    least = min(rows[name].min(initial=1) for name in places)
    if least > 0:
        return
    start = rows["step"] == 0
    if table == "steps" and start.any():
        raise ValueError("steps: step 0 is before training, the first batch is step 1")
    if least < 0:
        raise ValueError(f"{table}: step, epoch and visit cannot be negative")
    if table != "evals" and any(((rows[n] == 0) != start).any() for n in places):
        raise ValueError(
            f"{table}: step, epoch and visit must be 0 together (before training) and from 1 in it"
        )
