"""Single problems: who got their votes visit by visit, and the course and prediction of the lost.

With the run's votes every answer has an area of its own. A trace that did not keep them still
knows the label's share, the true answer's share and the unparseable ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit

from guard_core.config import ROUNDING
from lab.base.columns import Bools, Floats, Ints, flags, floats, ints, require, where
from lab.base.errors import UserError
from lab.base.stats import auroc_of_runs, percentile_interval, resample_counts
from lab.measures.fate import LOST, histories, of_fate
from lab.trace.schema import names as columns_of
from lab.trace.trace import Trace

Kind = Literal["correct", "label", "answer", "other", "unparseable"]
Areas = Iterator[tuple[str, Kind, Floats]]
"""Name, kind and (visits,) share of each area of a problem's life, see `vote_areas`."""
Names = Mapping[int, str]
"""Answer id to its text."""
TOP = 6
"""Answers that get an area of their own if nothing else is asked for."""
THIRDS = 3
PAPER_FATES = ("Degraded",)
"""The problems that the paper's figure follows."""
VISITS = (1, 3, 5, 8, 12, 20)
"""Visits after which the scores are judged, as far as a run goes."""
SCORES = {"votes": "all votes so far", "mr": "low match rate", "fr": "high flip rate"}
"""The fitted predictor, and the two scores of the paper, which need no fit."""
_VOTES = ("label", "flipped", "tie", "match_rate", "flip_rate", "n_unparseable", "n_votes")
_SLOPE_VISITS = 5
_RIDGE = 1.0
_FOLDS, _RESAMPLES = 4, 1000
"""At most as many folds as replicates."""
_TAU = 0.3
"""Flip rate that tells of a problem at risk."""


def problem_life(visits: pd.DataFrame, replicate: int, problem: int) -> pd.DataFrame:
    """The visits of one problem in order, visit 0 first; a UserError where there are none."""
    require(visits, columns_of("visits", required=True), "problem's life")
    life = where(visits, replicate=replicate, problem=problem)
    if life.empty:
        raise UserError(
            f"problem's life: replicate {replicate} has no visit of problem {problem}; choose "
            "a problem of the run"
        )
    return life.sort_values("visit").reset_index(drop=True)


def vote_areas(
    trace: Trace, replicate: int, problem: int, names: Names | None = None, top: int = TOP
) -> pd.DataFrame:
    """Shares of the votes that fill each visit, by answer where the trace kept its votes.

    Args:
        names: by default those of the trace; without a name the id is shown.
        top: answers that get an area of their own; the rest share one.

    Returns:
        One row per visit and area, areas from the bottom up: visit, area (name), kind (`correct`
        the true answer, `label` one not known to be right, without votes maybe another from
        visit to visit, `answer`, `other` answers together, `unparseable`), share (0 to 1; the
        areas of a visit sum to 1).
    """
    life = problem_life(trace.visits, replicate, problem)
    votes = where(trace.votes, replicate=replicate, problem=problem)
    names = trace.answer_texts(replicate, problem) if names is None else names
    visit, shares = ints(life, "visit"), areas(life, votes, names, top)
    parts = [pd.DataFrame({"visit": visit, "area": a, "kind": k, "share": s}) for a, k, s in shares]
    return pd.concat(parts, ignore_index=True)


def areas(life: pd.DataFrame, votes: pd.DataFrame, names: Names, top: int) -> Areas:
    """The areas of a problem's life from the bottom up, empty ones included.

    Without votes they are those of the true answer, empty where it is not known, and the label.
    """
    unparseable = floats(life, "n_unparseable") / np.maximum(floats(life, "n_votes"), 1)
    left, accuracy = 1 - unparseable, floats(life, "label_accuracy")
    label = np.where(flags(life, "label_correct"), 0.0, floats(life, "match_rate"))
    name = "wrong label" if np.isfinite(accuracy).any() else "label"
    two = ("true answer", "correct", np.nan_to_num(accuracy)), (name, "label", label)
    for area, kind, share in _by_answer(life, votes, names, top) if len(votes) else two:
        left = left - share
        yield area, kind, share
    yield "other answers", "other", np.maximum(left, 0.0)
    yield "unparseable", "unparseable", unparseable


def true_answer(life: pd.DataFrame, votes: pd.DataFrame | None = None) -> int | None:
    """Id of the true answer as far as a trace gives it away.

    Where it was never the label, it is the one answer whose share of a problem's votes is the label
    accuracy of every visit.
    """
    right = flags(life, "label_correct")
    if right.any():
        return int(ints(life, "label")[right][0])
    accuracy = floats(life, "label_accuracy")
    if votes is None or not np.isfinite(accuracy).all() or not (accuracy > 0).any():
        return None
    shares = _shares(life, votes).items()
    fitting = [answer for answer, share in shares if (np.abs(share - accuracy) < ROUNDING).all()]
    return fitting[0] if len(fitting) == 1 else None


def _shares(life: pd.DataFrame, votes: pd.DataFrame) -> dict[int, Floats]:
    """(visits,) share of the votes that each answer got, by the answer's id."""
    visit, voted = ints(life, "visit"), ints(votes, "visit")
    answers, row = np.unique(ints(votes, "answer"), return_inverse=True)
    width = 1 + max(visit.max(), voted.max(initial=0))
    counts = np.bincount(row * width + voted, floats(votes, "count"), len(answers) * width)
    shares = counts.reshape(-1, width)[:, visit] / np.maximum(floats(life, "n_votes"), 1)
    return dict(zip(answers.tolist(), shares, strict=True))


def _by_answer(life: pd.DataFrame, votes: pd.DataFrame, names: Names, top: int) -> Areas:
    truth = true_answer(life, votes)
    totals = np.bincount(ints(votes, "answer"), floats(votes, "count"))
    # The true answer always has an area; equal totals keep the order of the ids.
    answers = np.flatnonzero(totals).tolist()
    ranked = sorted(answers, key=lambda answer: (answer != truth, -totals[answer]))
    labels = set(ints(life, "label").tolist())
    shares = _shares(life, votes)
    for answer in ranked[:top]:
        kind: Kind = "correct" if answer == truth else "label" if answer in labels else "answer"
        yield names.get(answer) or f"answer {answer}", kind, shares[answer]


def scissor(visits: pd.DataFrame, fates: pd.DataFrame) -> pd.DataFrame:
    """Wrong labels' match rates and correct labels of `PAPER_FATES`, per third of the visits.

    The visits of a problem are cut into three parts by their number, visit 0 left out; where three
    does not divide it, the earlier parts are the longer ones. The match rate of the wrong label in
    a part is the mean over those visits whose label is a wrong answer; a problem without such a
    visit there counts in `wins` alone. Problems without a known true answer are left out.

    Returns:
        One row per replicate and third (1, 2, 3): `below_half`, the share of the problems with a
        wrong label in this third whose wrong label's mean match rate is below 0.5; `survival`, 1 -
        the mean of these match rates; `wins`, visits per problem at which the correct answer is the
        label. NaN where no problem is left to take a mean of.
    """
    needed = ("label", "match_rate", "label_accuracy", "label_correct")
    require(visits, ("replicate", "problem", "visit", *needed), "scissor")
    require(fates, ("replicate", "problem", "fate"), "scissor")
    known = np.isfinite(floats(visits, "label_accuracy"))
    past = histories(visits, known & of_fate(visits, fates, PAPER_FATES))
    rows = visits.take(past.order)
    correct = flags(rows, "label_correct")
    # Without a label nothing is wrong yet: that is no wrong label with a match rate of 0.
    is_wrong = ~correct & (ints(rows, "label") >= 0)
    by_visit = {
        "replicate": ints(rows, "replicate"),
        "history": past.number,
        "third": 1 + past.visit * THIRDS // past.length[past.number],
        "rate": np.where(is_wrong, floats(rows, "match_rate"), np.nan),
        "wins": correct,
    }
    keys = ["replicate", "third"]
    parts = pd.DataFrame(by_visit).groupby([*keys, "history"]).agg({"rate": "mean", "wins": "sum"})
    low = np.where(parts["rate"].isna(), np.nan, parts["rate"] < 0.5 - ROUNDING)
    means = parts.assign(below_half=low).groupby(keys).mean()
    means["survival"] = 1 - means["rate"]
    all_of = [pd.Index(visits["replicate"].unique()).sort_values(), range(1, THIRDS + 1)]
    table = means.reindex(pd.MultiIndex.from_product(all_of, names=keys)).reset_index()
    return table[[*keys, "below_half", "survival", "wins"]]


class AtStake(NamedTuple):
    """S problems that have something to lose, and their votes at visits 0 to T."""

    replicate_S: Ints
    lost_S: Bools
    """The fate is Degraded or Marginal Degraded."""
    last_win_S: Ints
    """Last visit at which the correct answer was the label."""
    votes: dict[str, Floats]
    """(S, T + 1) of each column of votes; NaN where there was no visit."""


def lost_problem_auroc(
    visits: pd.DataFrame, fates: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """AUROC of scores of votes alone, for lost against kept problems of one run.

    The predictor is one logistic regression per visit, fitted on the replicates of the other folds.
    Intervals are 95 % percentiles of a bootstrap over whole replicates, the same for all scores;
    they leave the fitted models as they are, and with few replicates are on the narrow side.

    Args:
        visits: a trace's visits, visit 0 included.
        rng: deals the folds and draws the bootstrap.

    Returns:
        One row per visit of `VISITS` that the run has, and score of `SCORES`: visit, score, auroc,
        low, high, n_lost, n_kept. NaN without both.

    Raises:
        UserError: no problem is at stake, or there are fewer than two replicates.
    """
    stake = at_stake(visits, fates)
    at = [t for t in VISITS if t < stake.votes["label"].shape[1]]
    numbers, run_S = np.unique(stake.replicate_S, return_inverse=True)
    n_runs = len(numbers)
    if n_runs < 2:
        raise UserError(
            f"prediction: replicates = {n_runs}, folds = {_FOLDS}; at least two of each are "
            "needed, since it is fitted on some replicates and judged on others"
        )
    # Each fold holds out the problems of whole replicates.
    held_out = np.array_split(rng.permutation(n_runs), min(_FOLDS, n_runs))
    folds = [np.isin(run_S, held) for held in held_out]
    draws_BR = resample_counts(n_runs, _RESAMPLES, rng)
    # The data itself first, then its resamples.
    weights_BR = np.concatenate([np.ones((1, n_runs), np.int64), draws_BR])
    rows = []
    for t in at:
        scores = _scores(stake, t, folds)
        there = np.isfinite(scores["mr"])
        lost, run = stake.lost_S[there], run_S[there]
        counts = int(lost.sum()), int((~lost).sum())
        for name, score_S in scores.items():
            values = auroc_of_runs(score_S[there], lost, run, weights_BR)
            rows.append((t, name, float(values[0]), *percentile_interval(values[1:]), *counts))
    columns = ["visit", "score", "auroc", "low", "high", "n_lost", "n_kept"]
    return pd.DataFrame(rows, columns=columns)


def flip_rate_in_time(visits: pd.DataFrame, fates: pd.DataFrame) -> float:
    """Share of the lost problems whose flip rate exceeds .3 before their last right label.

    NaN where no problem at stake is lost.
    """
    stake = at_stake(visits, fates)
    before_SV = np.arange(stake.votes["flip_rate"].shape[1]) < stake.last_win_S[:, None]
    seen_S = np.any((stake.votes["flip_rate"] > _TAU) & before_SV, axis=1)
    return float(seen_S[stake.lost_S].mean()) if stake.lost_S.any() else np.nan


def at_stake(visits: pd.DataFrame, fates: pd.DataFrame) -> AtStake:
    """Return the problems whose label was right at visits 0 and 1."""
    require(visits, ("replicate", "problem", "visit", "label_correct", *_VOTES), "prediction")
    replicate, problem, visit = (ints(visits, name) for name in ("replicate", "problem", "visit"))
    width, n_visits = 1 + problem.max(initial=0), 1 + visit.max(initial=1)
    ids, row = np.unique(replicate * width + problem, return_inverse=True)

    def by_visit(values: Floats) -> Floats:
        table_SV = np.full((len(ids), n_visits), np.nan)
        table_SV[row, visit] = values
        return table_SV

    right_SV = by_visit(floats(visits, "label_correct")) == 1
    known_S = np.isin(ids, ints(fates, "replicate") * width + ints(fates, "problem"))
    chosen_S = right_SV[:, :2].all(axis=1) & known_S
    if not chosen_S.any():
        raise UserError(
            "prediction: no problem is at stake: none had the correct label at visits 0 and 1"
        )
    lost_S = np.zeros(len(ids), bool)
    lost_S[row[of_fate(visits, fates, LOST)]] = True
    last_win_S = n_visits - 1 - np.argmax(right_SV[:, ::-1], axis=1)
    votes = {name: by_visit(floats(visits, name))[chosen_S] for name in _VOTES}
    return AtStake(ids[chosen_S] // width, lost_S[chosen_S], last_win_S[chosen_S], votes)


def features(votes: dict[str, Floats], t: int) -> Floats:
    """(S, 11) features of the votes up to visit t, NaN where a problem lacks a visit.

    In order: match rate now, its mean, change since visit 0 and least-squares slope over the last
    five visits; the votes of the first label if it still holds, and 1 if it does not; flips so far,
    visits since the last one as a share, flip rate; shares of ties and of unparseable responses.
    """
    past = {name: values_SV[:, : t + 1] for name, values_SV in votes.items()}
    rate, flipped, label = past["match_rate"], past["flipped"], past["label"]
    recent = rate[:, -_SLOPE_VISITS:]
    place = np.arange(recent.shape[1]) - (recent.shape[1] - 1) / 2
    first = label[np.arange(len(label)), np.argmax(label >= 0, axis=1)]
    moved = np.not_equal(label[:, -1], first).astype(np.float64)
    since = t - (np.greater(flipped, 0) * np.arange(t + 1)).max(axis=1)
    columns = (
        rate[:, -1],
        rate.mean(axis=1),
        rate[:, -1] - rate[:, 0],
        recent @ place / max(place @ place, 1.0),
        rate[:, -1] * (1 - moved),
        moved,
        flipped.sum(axis=1),
        since / max(t, 1),
        past["flip_rate"][:, -1],
        past["tie"].mean(axis=1),
        past["n_unparseable"].sum(axis=1) / np.maximum(past["n_votes"].sum(axis=1), 1),
    )
    table_SF = np.stack(columns, axis=1)
    table_SF[~np.isfinite(label).all(axis=1)] = np.nan
    return table_SF


def _scores(stake: AtStake, t: int, folds: list[Bools]) -> dict[str, Floats]:
    """(S,) of every score at visit t, higher where likelier lost; NaN where a visit is missing."""
    seen_SF = features(stake.votes, t)
    whole_S = np.isfinite(seen_SF).all(axis=1)
    risk_S = np.full(len(stake.lost_S), np.nan)
    for held_S in folds:
        fitted_S = whole_S & ~held_S
        risk_S[held_S] = _risk(seen_SF[fitted_S], stake.lost_S[fitted_S], seen_SF[held_S])
    return {"votes": risk_S, "mr": 1 - seen_SF[:, 0], "fr": seen_SF[:, 8]}


def _risk(fitted_NF: Floats, lost_N: Bools, judged_SF: Floats) -> Floats:
    """(S,) risk by a logistic regression with a small ridge; NaN where it saw one class only."""
    from scipy.optimize import minimize  # too slow for runs, of which it measures none

    if lost_N.all() or not lost_N.any():
        return np.full(len(judged_SF), np.nan)
    mean_F, sd_F = fitted_NF.mean(axis=0), fitted_NF.std(axis=0)
    # A constant column's spread is 0 up to rounding; dividing by that would make noise of it.
    scale_F = np.where(sd_F > 1e-12, sd_F, np.inf)
    x_NF = (fitted_NF - mean_F) / scale_F

    def loss(weights: Floats) -> tuple[float, Floats]:
        score_N = weights[0] + x_NF @ weights[1:]
        error_N = expit(score_N) - lost_N
        value = (np.logaddexp(0, score_N) - lost_N * score_N).sum()
        slope = np.append(error_N.sum(), error_N @ x_NF + _RIDGE * weights[1:])
        return float(value + _RIDGE / 2 * weights[1:] @ weights[1:]), slope

    weights = minimize(loss, np.zeros(1 + x_NF.shape[1]), jac=True, method="L-BFGS-B").x
    return expit(weights[0] + ((judged_SF - mean_F) / scale_F) @ weights[1:])
